"""The project's own pages lead nowhere that is not there, and their tables have every variable that is read."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

import pytest

from tests.docs.pages import PAGES, ROOT, anchors, links

PRODUCT = ("chatapp", "engine", "kernels", "ops")
READ = re.compile(
    r"(?:OCTAVO_[A-Z0-9_]*[A-Z0-9]|(?:SECRET_KEY|REDIS_URL|DATABASE_URL)(?:_FILE)?|PORT|DJANGO_SETTINGS_MODULE"
    r"|PROMETHEUS_MULTIPROC_DIR|OTEL_EXPORTER_OTLP_[A-Z_]*(?:ENDPOINT|PROTOCOL))"
)
WORD = re.compile(r"\b(?:OCTAVO|REDIS|DATABASE|SECRET|PROMETHEUS|DJANGO)_[A-Z0-9_]+\b")
NOT_FOR_PEOPLE = {
    "OCTAVO_EMBEDDED_REDIS": "make run says it to its programs",
    "OCTAVO_STATIC": "the web's image has its files elsewhere than in the data",
    "OCTAVO_CHECK_GROUPS": "for whoever works on the kernels, and said there",
    "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "OpenTelemetry's own, which come before the general ones",
    "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "OpenTelemetry's own, which come before the general ones",
}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_and_anchor_of_a_page_leads_somewhere(page: Path) -> None:
    for link in links(page):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = unquote(link).partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.is_relative_to(ROOT), link
        assert target.exists(), f"{page.name}: {link}"
        if anchor:
            assert anchor in anchors(target), f"{page.name}: {link}"


def test_the_pages_for_each_reader_are_linked_from_the_readme_and_with_each_other() -> None:
    readers = {"operators.md", "admins.md", "members.md", "integrators.md"}
    assert {f"docs/{name}" for name in readers} <= {link.partition("#")[0] for link in links(ROOT / "README.md")}
    linked = {name: {link.partition("#")[0] for link in links(ROOT / "docs" / name)} for name in readers}
    for name in readers:
        assert linked[name] & (readers - {name}), f"{name} leads to none of the others"


def test_files_and_modules_that_pages_name_are_there() -> None:
    for page in PAGES:
        if page.name == "LOG.md":
            continue  # a diary: what it names was there then
        for name in re.findall(
            r"`((?:tests|ops|engine|chatapp|bench|deploy|clients|static|docs)/[\w./-]+)`", page.read_text()
        ):
            assert (ROOT / name).exists(), f"{page.name}: {name}"


def constants(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def read_variables() -> set[str]:
    """Names of variables that stand alone in the product's code, and those that the worker makes of its options."""
    found = {
        value
        for package in PRODUCT
        for path in (ROOT / package).rglob("*.py")
        for value in constants(path)
        if READ.fullmatch(value)
    }
    worker = (ROOT / "engine" / "worker.py").read_text()
    numbers = re.findall(r'^    number\("([a-z_]+)"', worker, re.MULTILINE)
    switches = re.findall(r'^        \("([a-z]+)", (?:True|False|None), ', worker, re.MULTILINE)
    assert "block_size" in numbers
    assert "graphs" in switches
    return found | {f"OCTAVO_WORKER_{name.upper()}" for name in (*numbers, *switches)}


def told() -> set[str]:
    """Variables in the tables of our pages, and in the example of an environment."""
    files = [*PAGES, ROOT / ".env.example"]
    rows = [
        line
        for file in files
        if file.exists()
        for line in file.read_text().splitlines()
        if line.startswith(("|", "#", "-"))
    ]
    plain = (ROOT / ".env.example").read_text() if (ROOT / ".env.example").exists() else ""
    return set(READ.findall("\n".join(rows) + plain))


def test_every_variable_that_the_code_reads_is_in_a_table() -> None:
    missing = read_variables() - told() - NOT_FOR_PEOPLE.keys()
    assert not missing, f"in no table of README.md, docs/ or .env.example: {sorted(missing)}"


def test_no_page_tells_of_a_variable_that_nothing_reads() -> None:
    known = read_variables()
    for pattern in (
        "clients/**/*.py",
        "tests/docs/*.py",
        "docker-compose.yml",
        "Dockerfile",
        "deploy/**/*",
        "Makefile",
        "bench/**/*.py",
    ):
        for path in ROOT.glob(pattern):
            if path.is_file():
                known |= set(WORD.findall(path.read_text(encoding="utf-8", errors="ignore")))
    for page in [*PAGES, ROOT / ".env.example"]:
        if page.name == "LOG.md" or not page.exists():
            continue
        for name in WORD.findall(page.read_text()):
            if name.startswith(("OCTAVO_ENGINE_", "OCTAVO_SETUP_")) or name.endswith("_"):
                continue  # of a model's name, of an option's
            assert name.removesuffix("_FILE") in known, f"{page.name}: nothing reads {name}"


def test_exceptions_are_read_by_something() -> None:
    assert NOT_FOR_PEOPLE.keys() <= read_variables()
