"""A backup is whole or not there; it is of one moment while others write; what it lacks, it says."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import subprocess
import threading
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import time_machine
from django.db import connection

from chatapp.backups import manifest, taking
from chatapp.backups.errors import BackupError
from chatapp.chat.models import Message
from chatapp.chat.services import ask
from chatapp.files import contents, services
from chatapp.files.models import Purpose, StoredFile
from chatapp.scope import unscoped
from tests.chat.conftest import Team

pytestmark = pytest.mark.django_db(transaction=True)


def store(team: Team, text: bytes) -> StoredFile:
    return services.store(access=team.key, name="a.txt", content=[text], purpose=Purpose.USER_DATA)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_backup_has_every_row_and_file_and_nobody_else_may_read_it(team: Team, tmp_path: Path, data: Path) -> None:
    kept = [store(team, f"file {n}".encode() * 1000) for n in range(3)]
    ask(access=team.member, text="Hi")
    (data / "demo.json").write_text("{}")
    path, made = taking.take(tmp_path / "backups")
    assert manifest.read(path) == made
    manifest.verify(path, made)
    assert made.rows["chat_message"] == Message.objects.count() == 2
    assert (made.files.count, made.files.bytes) == (3, sum(file.bytes for file in kept))
    for file in kept:
        assert hashlib.sha256((path / "files" / file.content).read_bytes()).hexdigest() == file.sha256
    assert names(path) == sorted(["manifest.json", "SHA256SUMS", "files", "demo.json", made.database.name])
    assert {oct(entry.stat().st_mode & 0o777) for entry in path.rglob("*")} == {"0o600", "0o700"}
    done = subprocess.run(["sha256sum", "-c", "--quiet", "SHA256SUMS"], cwd=path, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")


def test_a_backup_is_of_one_moment_while_others_write(team: Team, tmp_path: Path) -> None:
    """Each transaction writes two messages and a generation, so no moment has them in other proportions."""
    over = threading.Event()
    asked = [0]

    def write() -> None:
        try:
            with unscoped("tests"):
                while not over.is_set():
                    ask(access=team.member, text="x" * 2000)
                    asked[0] += 1
        finally:
            connection.close()

    writer = threading.Thread(target=write)
    writer.start()
    try:
        seen = []
        for number in range(3):
            before = asked[0]
            made = taking.take(tmp_path / f"backups-{number}")[1]
            assert made.rows["chat_message"] == 2 * made.rows["chat_generation"]
            assert made.rows["limits_reservation"] == made.rows["chat_generation"]
            seen.append(made.rows["chat_generation"])
            assert before <= seen[-1] <= asked[0] + 1
    finally:
        over.set()
        writer.join()
    assert asked[0] > seen[0], "somebody wrote meanwhile"


def test_a_file_that_is_deleted_meanwhile_is_known_as_such_and_a_later_one_is_not_in_it(
    team: Team, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    goes, stays = store(team, b"goes"), store(team, b"stays")
    copy = taking._copy_files

    def meanwhile(*args: Any) -> Any:
        services.delete(access=team.key, file_id=goes.public_id)
        store(team, b"comes")
        return copy(*args)

    monkeypatch.setattr(taking, "_copy_files", meanwhile)
    path, made = taking.take(tmp_path / "backups")
    assert (made.files.gone, made.files.missing, made.files.damaged) == ([goes.content], [], [])
    assert [name for name, _ in manifest.listed(path)] == [f"files/{stays.content}"]
    assert made.rows["files_storedfile"] == 2


def test_what_the_storage_has_lost_is_named_and_the_rest_is_backed_up(team: Team, tmp_path: Path, folder: Path) -> None:
    from django.core.management import CommandError, call_command

    lost, changed, fine = (store(team, text) for text in (b"lost", b"changed", b"fine"))
    contents.remove(lost.content)
    (folder / changed.content).write_bytes(b"CHANGED")
    with pytest.raises(CommandError, match="lost 2 files") as failed:
        call_command("backup", tmp_path / "backups")
    assert failed.value.returncode == 2
    (path,) = taking.whole(tmp_path / "backups")
    made = manifest.read(path)
    manifest.verify(path, made)
    assert (made.files.missing, made.files.damaged) == ([lost.content], [changed.content])
    assert f"files/{fine.content}" in dict(manifest.listed(path))


def test_only_the_newest_are_kept_and_nothing_else_in_the_folder_is_touched(team: Team, tmp_path: Path) -> None:
    backups = tmp_path / "backups"
    mine = (".octavo-mine", "octavo-of-mine")
    for name in mine:
        (backups / name).mkdir(parents=True)
    broken_off = (".octavo-0123abcd.part", ".octavo-20261129T000000Z.old")
    for name in broken_off:
        (backups / name).mkdir()
    for hour in range(4):
        with time_machine.travel(datetime(2026, 11, 30, hour), tick=False):
            taking.take(backups, keep=2)
    assert [path.name for path in taking.whole(backups)] == ["octavo-20261130T020000Z", "octavo-20261130T030000Z"]
    assert names(backups) == sorted([".lock", "octavo-20261130T020000Z", "octavo-20261130T030000Z", *mine])


def test_those_of_another_installation_are_kept_and_those_with_a_former_key_are_its_own(
    team: Team, tmp_path: Path, settings: Any
) -> None:
    backups = tmp_path / "backups"
    keys = [letter * 20 + "0123456789abcdef" * 3 for letter in "abc"]
    for hour, key in enumerate(keys):
        settings.SECRET_KEY, settings.SECRET_KEY_FALLBACKS = key, [keys[1]] if key == keys[2] else []
        with time_machine.travel(datetime(2026, 11, 30, hour), tick=False):
            taking.take(backups, keep=1)
    assert [path.name for path in taking.whole(backups)] == ["octavo-20261130T000000Z", "octavo-20261130T020000Z"]


def test_of_two_at_once_the_second_is_refused_and_a_dead_ones_lock_holds_nobody_up(team: Team, tmp_path: Path) -> None:
    backups = tmp_path / "backups"
    taking.take(backups)
    with (backups / ".lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(BackupError, match="Another backup is being made"):
            taking.take(backups)
    assert len(taking.whole(backups)) == 1


@contextmanager
def tiny_disk(path: Path) -> Any:
    """A file system of half a megabyte."""
    path.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", str(path)], capture_output=True)
    if done.returncode:
        pytest.skip("file systems can be mounted by root alone")
    try:
        yield
    finally:
        subprocess.run(["umount", str(path)], check=True)


def test_a_full_disk_is_said_and_nothing_is_left_on_it(team: Team, tmp_path: Path) -> None:
    """Once while the files are copied, and once while the database is."""
    store(team, os.urandom(600_000))
    disk = tmp_path / "disk"
    with tiny_disk(disk):
        with pytest.raises(BackupError, match=r"no room|is full|No space left"):
            taking.take(disk)
        assert names(disk) == [".lock"]
    bare = tmp_path / "files-alone"
    with tiny_disk(bare), pytest.raises(OSError, match="No space left"):
        taking._copy(StoredFile.objects.get().content, bare / "files" / "team" / "copy")


def test_a_manifest_of_another_format_and_one_that_is_none_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BackupError, match="is no backup"):
        manifest.read(tmp_path)
    for text, said in ((json.dumps({"format": 2}), "format 2"), ("{", "is damaged"), ('{"format": 1}', "is damaged")):
        (tmp_path / "manifest.json").write_text(text)
        with pytest.raises(BackupError, match=said):
            manifest.read(tmp_path)
