"""Restores a backup into an empty installation, or with `replace` in the place of what is there.

All that can be refused is refused before anything is changed: a damaged part, a newer version's backup, another kind of
database, another SECRET_KEY. Then come the files (bytes without a row harm nobody), the database beside the present
one, where it is counted, migrated and settled (chatapp.backups.aftermath), and last the one step that makes it count.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from django.conf import settings
from django.db.migrations.loader import MigrationLoader

from chatapp.backups import manifest as manifests
from chatapp.backups.errors import BackupError
from chatapp.backups.manifest import Manifest
from chatapp.backups.snapshot import Target, database
from chatapp.backups.taking import KEPT, PROOF, PURPOSE, SECRET_KEY, secret_key_file
from chatapp.files import contents
from chatapp.sealing import Unreadable, unseal

LOCK = "run.lock"  # what `make run` holds while it serves from a data folder
OLD_REDIS = "valkey"


def checked(folder: Path) -> Manifest:
    """The manifest of a backup that is whole and that this version can restore. Raises BackupError; changes nothing."""
    made = manifests.read(folder)
    kind = database()
    if made.engine != kind.engine:
        raise BackupError(
            f"{folder} is a backup of {made.engine}, and this installation uses {kind.engine}. Restore it into "
            f"{made.engine} (DATABASE_URL)."
        )
    known = {f"{app}.{name}" for app, name in MigrationLoader(None).disk_migrations}
    newer = [name for name in made.migrations if name not in known]
    if newer:
        raise BackupError(
            f"{folder} is of version {made.version}, whose database this one does not know ({newer[-1]}). "
            "Restore it with that version or a newer one."
        )
    manifests.verify(folder, made)
    kind.check(folder / made.database.name)
    return made


def restore(folder: Path, *, replace: bool = False) -> tuple[Manifest, dict[str, int]]:
    """What was restored, and what the aftermath did. Raises BackupError."""
    made = checked(folder)
    key = _secret_key(folder, made)
    data = Path(settings.DATA)
    with _stopped(data) as lock:
        kind = database()
        if not replace:
            kind.refuse_unless_empty()
        try:
            _restore_files(folder)
            with kind.load(folder / made.database.name, replace=replace) as target:
                _count(made, target)
                done = _finish(folder, target, key, lock)
                with _placed(folder, made, data):
                    target.commit()
        except OSError as error:
            where = error.filename or data
            raise BackupError(f"The backup cannot be restored: {where}: {error.strerror}.") from None
    return made, done


def _secret_key(folder: Path, made: Manifest) -> str | None:
    """The key that the restored installation will have, where the data folder keeps it. Raises BackupError where
    it would not open what the backup's key has sealed."""
    if made.holds_secret_key and secret_key_file():
        return (folder / SECRET_KEY).read_text().strip()
    with contextlib.suppress(Unreadable):
        if unseal(made.proof, purpose=PURPOSE) == PROOF:
            return None
    where = f"It is in {folder / SECRET_KEY}." if made.holds_secret_key else "It was not put into the backup."
    raise BackupError(
        "SECRET_KEY is not the one that the backup was made with, and second factors, webhooks and sign-in services "
        f"could not be read. Set that one. {where}"
    )


@contextmanager
def _stopped(data: Path) -> Iterator[int]:
    """The lock's descriptor, for children: should this process be killed, the folder is not free before they end."""
    data.mkdir(mode=0o700, parents=True, exist_ok=True)
    with (data / LOCK).open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BackupError(f"Octavo runs with the data folder {data}. Stop it, then restore.") from None
        yield lock.fileno()


def _restore_files(folder: Path) -> None:
    storage = contents.storage()
    for name, _ in manifests.listed(folder):
        key = name.removeprefix(f"{manifests.FILES}/")
        storage.delete(key)  # of a restore that was broken off; the same name is the same file
        with (folder / name).open("rb") as file:
            kept = storage.save(key, contents.File(file))
        if kept != key:
            raise BackupError(f"The storage took {key} under another name. Empty it first.")


def _count(made: Manifest, target: Target) -> None:
    rows = target.rows()
    wrong = [table for table in sorted({*made.rows, *rows}) if made.rows.get(table) != rows.get(table)]
    if wrong:
        said = ", ".join(f"{table} has {rows.get(table)} rows and had {made.rows.get(table)}" for table in wrong[:3])
        raise BackupError(f"The restored database is not the one that was backed up: {said}.")


def _finish(folder: Path, target: Target, key: str | None, lock: int) -> dict[str, int]:
    """In a process of its own, whose settings are those that the restored installation will have."""
    env = {**os.environ, **target.env, **({"SECRET_KEY": key} if key else {})}
    command = [sys.executable, str(settings.ROOT / "manage.py"), "finish_restore", str(folder)]
    done = subprocess.run(command, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, pass_fds=[lock])
    if done.returncode:
        said = (done.stderr.strip() or done.stdout.strip() or "no message").splitlines()[-1]
        raise BackupError(f"The restored database cannot be brought up to this version: {said}")
    found: dict[str, int] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


@contextmanager
def _placed(folder: Path, made: Manifest, data: Path) -> Iterator[None]:
    """What belongs beside the database, the moment before it counts. What it takes the place of is gone when it does:
    should it not, the database that stays could not be read without its key."""
    names = {part.name for part in made.kept}
    placed: list[Path] = []
    try:
        for name in KEPT if secret_key_file() is None else (*KEPT, SECRET_KEY):
            if name in names:
                part = data / f".{name}.restoring"
                part.unlink(missing_ok=True)
                with manifests.create(part) as file:
                    file.write((folder / name).read_bytes())
                with contextlib.suppress(
                    FileNotFoundError, FileExistsError
                ):  # it is there after a restore that was killed
                    os.link(data / name, before(data / name))
                part.replace(data / name)
                placed.append(data / name)
        yield
    except BaseException:
        for path in placed:
            if before(path).exists():
                before(path).replace(path)
            else:
                path.unlink()
        raise
    for path in placed:
        before(path).unlink(missing_ok=True)
    shutil.rmtree(data / OLD_REDIS, ignore_errors=True)  # it knows of the database that went


def before(path: Path) -> Path:
    """Where a file of the data folder waits until the restored database counts."""
    return path.with_name(f"{path.name}.before")
