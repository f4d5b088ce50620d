"""Backups of PostgreSQL by the product's own role: whole in spite of row-level security, restored in one step."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import psycopg
import pytest

from chatapp.backups import manifest
from tests.backups.conftest import command, manage
from tests.backups.test_restoring import FILL
from tests.postgresql.server import binaries, running
from tests.stack import wait_for

pytestmark = [pytest.mark.long, pytest.mark.django_db, pytest.mark.timeout(300)]


@pytest.fixture
def database(tmp_path: Path) -> Iterator[str]:
    programs = binaries()
    if programs is None:
        pytest.skip("there is no PostgreSQL on this machine")
    with running(programs) as url:
        yield url


def rows(url: str, table: str) -> int:
    """As a superuser, who sees all of them."""
    with psycopg.connect(url.replace("octavo:@", "postgres:@", 1)) as everything:
        return int(everything.execute(f"SELECT count(*) FROM {table}").fetchone()[0])  # type: ignore[index]


def test_a_backup_by_the_products_role_is_whole_and_a_restore_counts_when_it_is_finished(
    database: str, tmp_path: Path
) -> None:
    here = {"env": {"DATABASE_URL": database}}
    manage(tmp_path / "site", "shell", "-v0", "-c", FILL, **here)
    manage(tmp_path / "site", "backup", tmp_path / "backups", **here)
    (backup,) = (tmp_path / "backups").glob("octavo-*")
    made = manifest.read(backup)
    assert (made.engine, made.rows["chat_message"]) == ("postgresql", 2)
    for table in ("tenants_apikey", "prompts_promptversion", "chat_generation", "files_storedfile"):
        assert made.rows[table] == rows(database, table) > 0, "rows of all teams"
    assert "holds tables already" in manage(tmp_path / "site", "restore", backup, status=1, **here)

    with psycopg.connect(database, autocommit=True) as creating:
        creating.execute("CREATE DATABASE another")
    other = database.removesuffix("octavo") + "another"
    there: dict[str, Any] = {"env": {"DATABASE_URL": other}}
    new = tmp_path / "new"
    with psycopg.connect(other):
        assert "1 other connections use the database" in manage(new, "restore", backup, status=1, **there)
    assert "answers interrupted: 1" in manage(new, "restore", backup, **there)
    for table, count in made.rows.items():
        if table not in ("audit_auditentry", "usage_usagerow", "django_session", "limits_reservation"):
            assert rows(other, table) == count, table
    assert "No changes detected" in manage(new, "makemigrations", "--check", "--dry-run", **there)
    with psycopg.connect(other) as nobody:
        assert nobody.execute("SELECT count(*) FROM chat_message").fetchone() == (0,), "the second wall stands again"

    # One that fails at the end leaves what was there.
    wrong = Path(shutil.copytree(backup, tmp_path / "wrong"))
    told = msgspec.structs.replace(made, rows={**made.rows, "chat_message": 7})
    (wrong / manifest.NAME).write_bytes(msgspec.json.encode(told))
    before = rows(other, "audit_auditentry")
    assert "had 7" in manage(new, "restore", "--replace", wrong, status=1, **there)
    assert rows(other, "audit_auditentry") == before

    # One that is killed is served to nobody, and can be begun again.
    with subprocess.Popen(**command(new, "restore", "--replace", backup, **there["env"])) as process:
        wait_for(lambda: _exists(other, "public.chat_message"), 60, 0.02)
        wait_for(lambda: _exists(other, "octavo_before_restore.chat_message"), 60, 0.02)
        os.kill(process.pid, signal.SIGKILL)
    assert "restore into this database was broken off" in manage(new, "migrate", status=1, **there)
    assert "Say --replace to begin it again" in manage(new, "restore", backup, status=1, **there)
    assert "nothing was backed up" in manage(new, "backup", tmp_path / "half", status=1, **there)
    wait_for(lambda: _alone(other), 60)
    manage(new, "restore", "--replace", backup, **there)
    assert rows(other, "chat_message") == 2
    assert not _exists(other, "octavo_before_restore.chat_message")
    manage(new, "migrate", "-v0", **there)
    manage(new, "backup", tmp_path / "again", **there)


def _exists(url: str, table: str) -> bool:
    with psycopg.connect(url) as asking:
        return asking.execute("SELECT to_regclass(%s)", [table]).fetchone() != (None,)


def _alone(url: str) -> bool:
    """The killed restore's children have gone."""
    with psycopg.connect(url) as asking:
        others = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
        return asking.execute(others).fetchone() == (0,)
