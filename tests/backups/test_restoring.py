"""What cannot be restored is refused before anything is changed; what can is there again, and settled."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import sqlite3
import subprocess
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest
from django.db import connection

from chatapp.backups import manifest, restoring
from chatapp.backups.errors import BackupError
from tests.backups.conftest import command, manage
from tests.stack import wait_for

pytestmark = [pytest.mark.django_db, pytest.mark.timeout(300)]
sqlite = pytest.mark.skipif(connection.vendor != "sqlite", reason="the backup is of SQLite")
FILL = """
from django.core.management import call_command
call_command("migrate", verbosity=0)
call_command("demo")
from datetime import timedelta
from django.utils import timezone
from chatapp.accounts.models import User
from chatapp.audit.models import BreakGlass
from chatapp.chat.services import ask
from chatapp.files import services
from chatapp.tenants.access import access_for_user
from chatapp.webhooks.models import WebhookDelivery, WebhookEndpoint
from django.contrib.sessions.backends.db import SessionStore
from chatapp.chat import queueing
from chatapp.chat.models import Generation
user = User.objects.get(memberships__tenant__slug="larkspur", memberships__role="member")
access = access_for_user(user, "larkspur")
queueing.enqueue = lambda *args: None  # it is in a Redis that no backup has
ask(access=access, text="Will it be there?")
queueing.enqueue = None
for text in (b"one", b"two"):
    services.store(access=access, name="a.txt", content=[text * 1000], purpose="user_data")
hook = WebhookEndpoint.objects.create(tenant=access.tenant, url="https://x.example/", created_by_name="x")
WebhookDelivery.objects.create(tenant=access.tenant, endpoint=hook, event=hook.pk, kind="member.joined", payload={})
tomorrow = timezone.now() + timedelta(days=1)
BreakGlass.objects.create(tenant=access.tenant, operator_name="o", reason="r", expires_at=tomorrow)
store = SessionStore(); store["_auth_user_id"] = str(user.pk); store.save()
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder of `make run` with a chat under way and two files; and in `backups` a backup of it."""
    folder = tmp_path_factory.mktemp("site")
    manage(folder, "shell", "-v0", "-c", FILL + f"call_command('backup', '{folder / 'backups'}')")
    return folder


@pytest.fixture
def backup(site: Path, tmp_path: Path) -> Path:
    """A copy of the backup, for the test to break."""
    (found,) = (site / "backups").glob("octavo-*")
    return Path(shutil.copytree(found, tmp_path / "backups" / found.name))


def rows(folder: Path, sql: str) -> list[Any]:
    with closing(sqlite3.connect(folder / "db.sqlite3")) as database:
        return database.execute(sql).fetchall()


def edit(backup: Path, **changes: Any) -> None:
    made = msgspec.structs.replace(manifest.read(backup), **changes)
    (backup / manifest.NAME).write_bytes(msgspec.json.encode(made))


def test_a_restored_site_is_as_it_was_but_settled(site: Path, backup: Path, tmp_path: Path) -> None:
    new = tmp_path / "new"
    said = manage(new, "restore", backup)
    for line in ("answers interrupted: 1", "webhook events not sent: 1", "sessions ended: 1", "readings by operators"):
        assert line in said
    for name in ("secret_key", "demo.json"):
        assert (new / name).read_text() == (site / name).read_text()
        assert oct((new / name).stat().st_mode & 0o777) == "0o600"
    for content, digest in rows(site, "SELECT content, sha256 FROM files_storedfile"):
        assert manifest.sha256(new / "files" / content) == digest
    for table in ("accounts_user", "tenants_apikey", "prompts_promptversion", "tenants_membership"):
        assert rows(new, f"SELECT * FROM {table}") == rows(site, f"SELECT * FROM {table}"), table
    assert rows(new, "SELECT state, error_code, request FROM chat_generation") == [
        ("interrupted", "redis_lost_it", None)
    ]
    assert rows(new, "SELECT status FROM chat_message WHERE role = 'assistant'") == [("failed",)]
    assert rows(new, "SELECT count(*) FROM limits_reservation") == [(0,)]
    assert rows(new, "SELECT DISTINCT reserved FROM limits_meter") == [(0,)]
    assert rows(new, "SELECT state, next_attempt_at FROM webhooks_webhookdelivery") == [("failed", None)]
    assert rows(new, "SELECT count(*) FROM django_session") == [(0,)]
    assert rows(new, "SELECT count(*) FROM audit_breakglass WHERE closed_at IS NULL") == [(0,)]
    assert ("site.restored",) in rows(new, "SELECT action FROM audit_auditentry")
    # There is something there now: it is not lost by mistake, and lost when told so.
    assert "--replace" in manage(new, "restore", backup, status=1)
    with closing(sqlite3.connect(new / "db.sqlite3")) as database, database:
        database.execute("UPDATE chat_message SET text = 'later'")
    (new / "valkey").mkdir()
    manage(new, "restore", "--replace", backup)
    assert rows(new, "SELECT text FROM chat_message WHERE role = 'user'") == [("Will it be there?",)]
    assert not (new / "valkey").exists(), "what Redis knew went with the database that it was about"


@pytest.mark.long
def test_an_older_backup_is_migrated_and_what_was_deleted_meanwhile_is_deleted(
    site: Path, backup: Path, tmp_path: Path
) -> None:
    """Older: as it was before its last migration, which this version brings again."""
    ((app, name),) = rows(site, "SELECT app, name FROM django_migrations ORDER BY id DESC LIMIT 1")
    before = sorted(
        row[0] for row in rows(site, f"SELECT name FROM django_migrations WHERE app = '{app}' ORDER BY name")
    )
    old = tmp_path / "old"
    manage(old, "restore", backup)
    manage(old, "migrate", "-v0", app, before[-2] if len(before) > 1 else "zero")
    gone = rows(old, "SELECT content FROM files_storedfile")[0][0]
    manage(old, "backup", tmp_path / "older")
    (older,) = (tmp_path / "older").glob("octavo-*")
    lines = (older / manifest.SUMS).read_text().splitlines(keepends=True)
    (older / manifest.SUMS).write_text("".join(line for line in lines if gone not in line))
    made = manifest.read(older)
    files = msgspec.structs.replace(made.files, gone=[gone], count=made.files.count - 1)
    edit(older, files=files, sums=manifest.part(older, manifest.SUMS))
    new = tmp_path / "new"
    assert "files deleted: 1" in manage(new, "restore", older)
    assert rows(new, f"SELECT count(*) FROM django_migrations WHERE app = '{app}' AND name = '{name}'") == [(1,)]
    assert rows(new, f"SELECT count(*) FROM files_storedfile WHERE content = '{gone}'") == [(0,)]
    assert not (new / "files" / gone).exists()


@sqlite
def test_what_is_damaged_missing_or_newer_is_refused(backup: Path, tmp_path: Path) -> None:
    whole = restoring.checked(backup)
    broken = tmp_path / "broken"

    def refused(said: str) -> None:
        with pytest.raises(BackupError, match=said) as failed:
            restoring.restore(broken, replace=True)
        assert "\n" not in str(failed.value), "one line for whoever has to act on it"
        shutil.rmtree(broken)

    def spoil(path: Path) -> None:
        text = bytearray(path.read_bytes())
        text[len(text) // 2] ^= 1
        path.write_bytes(text)

    some = next(manifest.listed(backup))[0]
    for name in (whole.database.name, some, manifest.SUMS, "secret_key"):
        shutil.copytree(backup, broken)
        spoil(broken / name)
        refused("is damaged")
    for name in (whole.database.name, some):
        shutil.copytree(backup, broken)
        (broken / name).unlink()
        refused("cannot be read")
    shutil.copytree(backup, broken)
    spoil(broken / whole.database.name)
    edit(broken, database=manifest.part(broken, whole.database.name))  # by somebody who has the sums made anew
    refused(r"is damaged|cannot be read")
    shutil.copytree(backup, broken)
    edit(broken, migrations=[*whole.migrations, "chat.9999_from_the_future"], version="99.0")
    refused("is of version 99.0")
    shutil.copytree(backup, broken)
    edit(broken, engine="postgresql")
    refused("is a backup of postgresql")


@sqlite
def test_nothing_is_restored_by_another_secret_key_nor_into_what_runs_or_holds_something(
    backup: Path, data: Path, settings: Any, folder: Path
) -> None:
    with pytest.raises(BackupError, match="SECRET_KEY is not the one"):
        restoring.restore(backup, replace=True)
    settings.SECRET_KEY = (backup / "secret_key").read_text()
    with (data / "run.lock").open("w") as lock:  # as `make run` holds it
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(BackupError, match="Stop it, then restore"):
            restoring.restore(backup, replace=True)
    with pytest.raises(BackupError, match="holds a database already, and nothing was changed"):
        restoring.restore(backup)
    assert not folder.exists(), "no file was restored before that was known"


@pytest.mark.long
@sqlite
def test_a_restore_that_cannot_take_the_place_of_a_database_in_use_leaves_its_key_and_its_redis(
    backup: Path, tmp_path: Path
) -> None:
    site = tmp_path / "site"
    manage(site, "migrate", "-v0")
    (site / "metrics_token").write_text("its own")
    (site / "valkey").mkdir()
    kept = {path.name: path.read_bytes() for path in site.iterdir() if path.is_file() and "sqlite" not in path.name}
    assert kept["secret_key"] != (backup / "secret_key").read_bytes()
    with closing(sqlite3.connect(site / "db.sqlite3")) as reading:
        reading.execute("BEGIN")
        reading.execute("SELECT count(*) FROM django_migrations").fetchone()
        assert "Nothing was changed" in manage(site, "restore", backup, "--replace", status=1)
    assert {name: (site / name).read_bytes() for name in kept} == kept
    assert (site / "valkey").is_dir()
    assert {path.name for path in site.iterdir()} - {*kept, "run.lock", "valkey", "files"} <= {
        f"db.sqlite3{ending}" for ending in ("", "-wal", "-shm")
    }, "nothing more, but bytes of files without a row"

    manage(site, "restore", backup, "--replace")
    assert (site / "secret_key").read_bytes() == (backup / "secret_key").read_bytes()
    assert not [*site.glob("*.before"), *site.glob("valkey")]


@pytest.mark.long
def test_a_database_that_is_not_the_one_that_was_copied_does_not_come_to_count(backup: Path, tmp_path: Path) -> None:
    edit(backup, rows={**manifest.read(backup).rows, "chat_message": 7})
    new = tmp_path / "new"
    assert "chat_message has 2 rows and had 7" in manage(new, "restore", backup, status=1)
    assert not list(new.glob("*.restoring*"))
    assert not (new / "db.sqlite3").exists() or rows(new, "SELECT name FROM sqlite_master") == []


@pytest.mark.long
def test_a_backup_killed_in_the_middle_is_never_taken_for_one_and_the_next_clears_it_away(
    site: Path, tmp_path: Path
) -> None:
    data = Path(shutil.copytree(site, tmp_path / "site", ignore=shutil.ignore_patterns("backups")))
    ((name,),) = rows(data, "SELECT content FROM files_storedfile LIMIT 1")
    with (data / "files" / name).open("r+b") as file:
        file.truncate(1 << 30)  # holes: it takes a while to copy, and no room here
    folder = tmp_path / "backups"
    with subprocess.Popen(**command(data, "backup", folder), stderr=subprocess.DEVNULL) as process:
        part = wait_for(lambda: next(folder.glob(".octavo-*/SHA256SUMS"), None), 60, 0.01)
        os.kill(process.pid, signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL
    assert list(folder.glob("octavo-*")) == []
    assert "was broken off" in manage(tmp_path / "new", "restore", part.parent, status=1)
    with (data / "files" / name).open("r+b") as file:
        file.truncate(100)
    manage(data, "backup", folder, status=2)
    assert [path.name.startswith("octavo-2") for path in folder.glob("*octavo-*")] == [True]


@pytest.mark.long
def test_a_restore_killed_in_the_middle_leaves_no_database_and_can_be_begun_again(backup: Path, tmp_path: Path) -> None:
    new = tmp_path / "new"
    with subprocess.Popen(**command(new, "restore", backup), stderr=subprocess.DEVNULL) as process:
        wait_for(lambda: (new / "db.sqlite3.restoring").exists(), 60, 0.01)
        os.kill(process.pid, signal.SIGKILL)
    if (new / "db.sqlite3").exists():
        assert rows(new, "SELECT name FROM sqlite_master") == []
    wait_for(lambda: not _alive(new), 60)
    manage(new, "restore", backup)
    assert rows(new, "SELECT state FROM chat_generation") == [("interrupted",)]
    assert len(list((new / "files").rglob("*"))) == 1 + 2, "each file once, below its team's folder"


def _alive(new: Path) -> bool:
    """Whether the killed restore's own child still works on the database."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            found.append(str(new).encode() in path.read_bytes())
        except OSError:
            continue
    return any(found)


def test_the_manifest_says_what_a_person_wants_to_know(backup: Path) -> None:
    said = json.loads((backup / manifest.NAME).read_text())
    assert (said["format"], said["engine"], said["files"]["count"]) == (1, "sqlite", 2)
    assert said["migrations"][-1].count(".") == 1
    assert said["rows"]["chat_message"] == 2
