"""The last release with data in it is migrated by this code: nothing is lost, and its processes serve meanwhile.

The release is taken out of the history that a clone has: its commit is in ops/release.toml.
"""

from __future__ import annotations

import json
import os
import re
import sqlite3
import subprocess
import sys
import tarfile
from contextlib import closing
from io import BytesIO
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from engine import protocol
from ops.migrations import release
from tests.backups.test_cold_restore import ask, chat, figures, logged_in
from tests.conftest import ROOT
from tests.stack import Stack, free_port, wait_for
from tests.upgrade.rows import lost, tables

# What this version's migrations change on purpose: "table" or "table.column", and why nothing is lost by it.
MEANT: dict[str, str] = {"django_migrations": "it is told what has been migrated"}
PAGES = ("", "admin/", "admin/members", "admin/keys", "admin/webhooks", "admin/usage", "admin/limits", "admin/audit")
# Filled neither by the product nor by its fields' rules.
EMPTY: set[str] = set()


def git(*arguments: str) -> bytes:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True)
    if done.returncode:
        pytest.fail(
            f"The last release, {release()['version']}, is not in this copy's history (git {' '.join(arguments)}: "
            f"{done.stderr.decode().strip()}). Clone all of it, or: git fetch --unshallow.",
            pytrace=False,
        )
    return done.stdout


def test_a_library_in_redis_that_is_not_the_last_releases_has_a_higher_build() -> None:
    """Else a process of that release would put its own in the place of ours."""
    commit = release()["commit"]
    theirs = re.search(rb"^LIBRARY_BUILD = (\d+)", git("show", f"{commit}:engine/protocol.py"), re.MULTILINE)
    if git("show", f"{commit}:engine/wire.lua") != protocol.LIBRARY_SOURCE.read_bytes():
        assert int(theirs[1] if theirs else 0) < protocol.LIBRARY_BUILD


def test_a_history_that_does_not_reach_back_to_the_release_is_said_and_not_passed_over() -> None:
    with pytest.raises(pytest.fail.Exception, match=r"is not in this copy's history .* git fetch --unshallow"):
        git("archive", "0" * 40)


def test_what_is_lost_is_noticed(tmp_path: Path) -> None:
    def database(name: str, *statements: str) -> Any:
        with closing(sqlite3.connect(tmp_path / name)) as made, made:
            for statement in (
                "CREATE TABLE t (id, a, b)",
                "INSERT INTO t VALUES (1, 'x', 2), (2, 'y', 3)",
                *statements,
            ):
                made.execute(statement)
        return tables(tmp_path / name)

    before = database("before")
    assert list(lost(before, database("same", "ALTER TABLE t ADD c", "INSERT INTO t VALUES (3, 'z', 4, 5)"), {})) == []
    for statement, said in (
        ("DROP TABLE t", "the table t with 2 rows is gone"),
        ("ALTER TABLE t DROP b", "the column t.b is gone"),
        ("DELETE FROM t WHERE id = 2", "1 rows of t are gone or changed"),
        ("UPDATE t SET a = 'z'", "2 rows of t are gone or changed"),
    ):
        (line,) = lost(before, database(said[:20], statement), {})
        assert line.startswith(said)
    assert list(lost(before, database("meant", "ALTER TABLE t DROP b"), {"t.b": "nobody needs it"})) == []


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """The last release's code, with the libraries and the model that are set up here."""
    folder = tmp_path / "old"
    folder.mkdir()
    with tarfile.open(fileobj=BytesIO(git("archive", release()["commit"]))) as archive:
        archive.extractall(folder, filter="data")
    (folder / ".cache").symlink_to(ROOT / ".cache")
    (folder / "static" / "vendor").symlink_to(ROOT / "static" / "vendor")
    return folder


def manage(root: Path, data: Path, *arguments: str, text: str = "", **env: str) -> str:
    local = {"OCTAVO_DATA": str(data), "DJANGO_SETTINGS_MODULE": "chatapp.settings.local"}
    command = [sys.executable, "manage.py", *arguments]
    done = subprocess.run(
        command, cwd=root, env={**os.environ, **local, **env}, input=text, capture_output=True, text=True, timeout=180
    )
    assert done.returncode == 0, f"{arguments}: {done.stdout}\n{done.stderr}"
    return done.stdout


def hello(url: str, key: str) -> str:
    client = openai.OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0, timeout=90)
    words: Any = [{"role": "user", "content": "Say hello."}]
    reply = client.chat.completions.create(model="default", messages=words, max_tokens=8, temperature=0)
    return str(reply.choices[0].message.content)


def pages(http: httpx.Client, slug: str) -> dict[str, int]:
    return {path: http.get(f"/t/{slug}/{path}").status_code for path in PAGES}


@pytest.mark.long
@pytest.mark.timeout(600)
def test_nothing_is_lost_and_the_release_serves_while_this_version_migrates(
    old: Path, tmp_path: Path, model_path: str
) -> None:
    data = tmp_path / "data"
    stack = Stack(data, model_path, root=old)
    try:
        team = stack.demo["tenants"][0]
        slug, redis_url = team["slug"], f"unix://{data}/valkey.sock"
        if not (data / "valkey.sock").exists():  # its path was too long, and a short one stands in
            redis_url = f"unix://{stack.redis.connection_pool.connection_kwargs['path']}"
        said = hello(stack.url, team["api_key"])
        file = openai.OpenAI(base_url=f"{stack.url}/v1", api_key=team["api_key"]).files.create(
            file=("words.txt", b"words"), purpose="user_data"
        )
        with logged_in(stack, team["admin"]) as owner:
            first = ask(owner, slug, "What is an octavo?", max_tokens=12, temperature=0)
            wait_for(lambda: not chat(owner, slug, first)["running"], 90, 0.2)
            owner.put(f"/api/t/{slug}/limits/lower", json={"tokens_per_month": 5_000_000})
            # A copy with a row of every model, filled by the release itself, is migrated on its own: nothing is lost.
            copy = tmp_path / "copy.sqlite3"
            with closing(sqlite3.connect(data / "db.sqlite3")) as live, closing(sqlite3.connect(copy)) as target:
                live.backup(target)
            there = {"DATABASE_URL": f"sqlite:////{str(copy).lstrip('/')}", "REDIS_URL": redis_url}
            fill = Path(__file__).with_name("fill.py").read_text()
            empty = json.loads(manage(old, data, "shell", "-v0", text=fill, **there).strip().splitlines()[-1])
            assert set(empty) == EMPTY
            before = tables(copy)
            manage(ROOT, data, "migrate", "-v0", **there)
            assert list(lost(before, tables(copy), MEANT)) == []
            # Rolled back, the release finds a database of a later one, and takes it as it is.
            with closing(sqlite3.connect(copy)) as target, target:
                later = "INSERT INTO django_migrations (app, name, applied) VALUES ('chat', '9999_later', '2027-01-01')"
                target.execute(later)
            manage(old, data, "migrate", "-v0", **there)

            # The live one is migrated under the running release, which goes on: pages, writes, an answer, its record.
            manage(ROOT, data, "migrate", "-v0", REDIS_URL=redis_url)
            assert pages(owner, slug) == dict.fromkeys(PAGES, 200)
            used = figures(owner, slug)["tokens"]
            second = ask(owner, slug, "And a quarto?", max_tokens=12, temperature=0)
            wait_for(lambda: not chat(owner, slug, second)["running"], 90, 0.2)
            wait_for(lambda: figures(owner, slug)["tokens"] > used, 60, 0.2)
            # Beside it a web process of this version: its question is answered by the release's worker.
            with web(data, model_path, redis_url) as url:
                assert hello(url, team["api_key"]) == said
                assert hello(stack.url, team["api_key"]) == said
            kept = [chat(owner, slug, conversation) for conversation in (first, second)]
            cookies = dict(owner.cookies)
    finally:
        stack.stop()

    stack = Stack(data, model_path)
    try:
        assert stack.demo["tenants"][0] == team
        assert hello(stack.url, team["api_key"]) == said
        api = openai.OpenAI(base_url=f"{stack.url}/v1", api_key=team["api_key"])
        assert api.files.content(file.id).content == b"words"
        with httpx.Client(base_url=stack.url, cookies=cookies, timeout=30) as http:  # nobody has to log in anew
            assert pages(http, slug) == dict.fromkeys(PAGES, 200)
            assert [chat(http, slug, conversation) for conversation in (first, second)] == kept
        with logged_in(stack, team["member"]) as member:
            assert member.get(f"/t/{slug}/").status_code == 200
    finally:
        stack.stop()


class web:  # noqa: N801  reads as what it stands for
    """A web process of this version on the data of a running product."""

    def __init__(self, data: Path, model: str, redis_url: str) -> None:
        self.port = free_port()
        self.env = {
            **os.environ,
            "OCTAVO_DATA": str(data),
            "OCTAVO_MODEL": model,
            "REDIS_URL": redis_url,
            "DJANGO_SETTINGS_MODULE": "chatapp.settings.local",
        }

    def __enter__(self) -> str:
        command = [sys.executable, "-m", "daphne", "--bind", "127.0.0.1", "--port", str(self.port)]
        self.process = subprocess.Popen([*command, "chatapp.asgi:application"], cwd=ROOT, env=self.env)
        url = f"http://127.0.0.1:{self.port}"

        def up() -> bool:
            try:
                return httpx.get(f"{url}/healthz", timeout=5).status_code == 200
            except httpx.TransportError:
                return False

        wait_for(up, 90, 0.2)
        return url

    def __exit__(self, *error: object) -> None:
        self.process.terminate()
        self.process.wait(30)
