"""Every program on the page for integrators, and in the README, runs against the running product as it stands there."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import httpx
import pytest

from tests.docs.pages import ROOT, Block, blocks
from tests.stack import Stack

pytestmark = [pytest.mark.long, pytest.mark.timeout(180)]
TEAM = 2
INTEGRATORS = blocks(ROOT / "docs" / "integrators.md")
README = blocks(ROOT / "README.md")


def programs(found: list[Block]) -> list[Block]:
    return [block for block in found if block.language in ("python", "bash")]


def name(block: Block) -> str:
    return f"{block.page}:{block.line}"


@pytest.fixture(scope="module")
def environment(stack: Stack) -> dict[str, str]:
    """What the page says to export, for one of the demo teams; its owner makes the key of the scope admin."""
    team = stack.demo["tenants"][TEAM]
    slug = str(team["slug"])
    with httpx.Client(base_url=stack.url, follow_redirects=True) as owner:
        owner.get("/accounts/login/")
        who = {"login": team["admin"]["email"], "password": team["admin"]["password"]}
        headers = {"X-CSRFToken": owner.cookies["csrftoken"], "Referer": stack.url}
        owner.post("/accounts/login/", data=who, headers=headers).raise_for_status()
        headers["X-CSRFToken"] = owner.cookies["csrftoken"]
        wanted = {"name": "Examples", "scopes": ["admin", "usage"]}
        made = owner.post(f"/api/t/{slug}/keys", json=wanted, headers=headers)
        assert made.status_code == 201, made.text
    return {
        **os.environ,
        "PYTHONPATH": str(ROOT / "clients" / "python" / "src"),
        "OCTAVO_URL": stack.url,
        "OCTAVO_KEY": stack.key(TEAM),
        "OCTAVO_ADMIN_KEY": made.json()["secret"],
        "OCTAVO_TEAM": slug,
    }


def run(block: Block, text: str, env: dict[str, str]) -> str:
    command = [sys.executable, "-c", text] if block.language == "python" else ["bash", "-euc", text]
    done = subprocess.run(command, env=env, cwd=ROOT, capture_output=True, text=True, timeout=150)
    assert done.returncode == 0, f"{name(block)}: {done.stdout}{done.stderr}"
    return done.stdout


@pytest.mark.parametrize("block", programs(INTEGRATORS), ids=name)
def test_every_program_for_integrators_runs(block: Block, environment: dict[str, str], stack: Stack) -> None:
    said = run(block, block.text, environment)
    assert said.strip() or "assert" in block.text, "it shows nothing"


def test_the_page_says_what_its_programs_read() -> None:
    read = {one for block in programs(INTEGRATORS) for one in re.findall(r"\bOCTAVO_[A-Z_]+", block.text)}
    said = {one for block in INTEGRATORS if not block.language for one in re.findall(r"\bOCTAVO_[A-Z_]+", block.text)}
    assert read == said


@pytest.mark.parametrize("block", programs(README), ids=name)
def test_every_program_of_the_readme_runs(block: Block, environment: dict[str, str], stack: Stack) -> None:
    """With the address, key and model of this machine in the places of the page's."""
    text = block.text.replace("http://127.0.0.1:8000", stack.url).replace("octv_…", environment["OCTAVO_KEY"])
    assert run(block, text.replace('"PATH"', f'"{stack.model}"'), environment).strip()


def test_commands_of_the_readme_are_targets_of_make_and_modules_that_there_are() -> None:
    text = (ROOT / "README.md").read_text()
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    asked = set(re.findall(r"(?:^|`)make ([a-z-]+)", text, re.MULTILINE))
    assert {"run", "test", "check"} <= asked <= targets, asked - targets
    modules = set(re.findall(r"python -m ([a-z._]+)", text))
    assert modules
    for module in modules:
        path = ROOT / module.replace(".", "/")
        assert path.with_suffix(".py").exists() or (path / "__main__.py").exists() or module == "venv", module
