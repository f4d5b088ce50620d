"""Takes a backup while the product runs.

The database comes first and the stored files after it. A file's bytes are in the storage before its row and leave it
after, so every file that the copied rows name was there at that moment. Files that come later have no row in the copy
and are not wanted. The only ones that can be missed are those that somebody deletes meanwhile; they are known by their
rows being gone now, and a restore deletes them again. Files first would miss those that are uploaded meanwhile, whose
rows the copy has: a loss of what nobody gave up.

What Redis holds is not copied: answers under way end as interrupted when the backup is restored.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from django.conf import settings
from django.utils import timezone

import chatapp
from chatapp.backups import manifest
from chatapp.backups.errors import BackupError
from chatapp.backups.manifest import FILES, PREFIX, SUMS, Manifest, Part, StoredFiles
from chatapp.backups.snapshot import Snapshot, database
from chatapp.files import contents
from chatapp.files.models import StoredFile
from chatapp.sealing import Unreadable, seal, unseal

PURPOSE = "backup"
PROOF = "Octavo"
# Of the data folder, beside database and files: what cannot be made anew. The rest is logs, and what is derived.
KEPT = ("metrics_token", "demo.json")
SECRET_KEY = "secret_key"  # noqa: S105  a file's name
# What is being made, and what is being removed (_remove).
UNFINISHED = re.compile(rf"^\.{PREFIX}([0-9a-f]{{8}}\.part|\d{{8}}T\d{{6}}Z\.old)$")
WHOLE = re.compile(rf"^{PREFIX}\d{{8}}T\d{{6}}Z$")
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_LISTED = ".listed"


@dataclass
class _Copied:
    count: int = 0
    bytes: int = 0
    gone: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    damaged: list[str] = field(default_factory=list)


def take(folder: Path, *, keep: int | None = None, with_secret_key: bool = False) -> tuple[Path, Manifest]:
    """Make a backup below `folder`, which is made if it is not there; then remove all but the newest `keep` of this
    installation.

    Raises BackupError, with nothing left of what was begun.
    """
    with _held(folder):
        _remove_broken_off(folder)
        part = folder / f".{PREFIX}{secrets.token_hex(4)}.part"
        try:
            part.mkdir(mode=0o700)
            made = _fill(part, with_secret_key)
            os.sync()
            target = folder / f"{PREFIX}{made.taken_at:%Y%m%dT%H%M%SZ}"
            if target.exists():
                raise BackupError(f"{target} is there already: a backup was made in the same second.")
            part.rename(target)
            os.sync()
        except OSError as error:
            raise BackupError(_in_words(error, folder)) from None
        finally:
            shutil.rmtree(part, ignore_errors=True)
        for old in [path for path in whole(folder) if _ours(path)][:-keep] if keep else []:
            _remove(old)
        return target, made


def whole(folder: Path) -> list[Path]:
    """The backups in a folder, oldest first."""
    return sorted(path for path in folder.iterdir() if WHOLE.match(path.name) and (path / manifest.NAME).is_file())


def secret_key_file() -> Path | None:
    """Where this installation keeps its key in the data folder; None where the environment or a secret gives it."""
    path = Path(settings.DATA) / SECRET_KEY
    with contextlib.suppress(OSError):
        if path.read_text().strip() == settings.SECRET_KEY:
            return path
    return None


def _ours(backup: Path) -> bool:
    """Made with this installation's key, or one that it had before. Another one's may lie beside it."""
    with contextlib.suppress(BackupError, Unreadable):
        return unseal(manifest.read(backup).proof, purpose=PURPOSE) == PROOF
    return False


def _fill(part: Path, with_secret_key: bool) -> Manifest:
    source = database()
    taken_at = timezone.now()
    with source.dump(part / source.part) as snapshot:
        listed = _list_files(part, snapshot)
    with listed:
        copied = _copy_files(part, listed)
    made = Manifest(
        version=chatapp.__version__,
        taken_at=taken_at,
        engine=source.engine,
        server=source.server(),
        migrations=snapshot.migrations,
        rows=snapshot.rows,
        database=manifest.part(part, source.part),
        sums=manifest.part(part, SUMS),
        kept=list(_kept(part, with_secret_key)),
        files=StoredFiles(copied.count, copied.bytes, copied.gone, copied.missing, copied.damaged),
        proof=seal(PROOF, purpose=PURPOSE),
    )
    manifest.write(part, made)
    return made


def _list_files(part: Path, snapshot: Snapshot) -> BinaryIO:
    """What the copied rows name, on disk, so that the database is let go before the bytes are copied."""
    path = part / _LISTED
    with manifest.create(path) as file:
        for name, digest in snapshot.files():
            file.write(f"{digest}  {name}\n".encode())
    listed = path.open("rb")
    path.unlink()
    return listed


def _copy_files(part: Path, listed: BinaryIO) -> _Copied:
    copied = _Copied()
    with manifest.create(part / SUMS) as sums:
        for line in listed:
            digest, _, name = line.decode().rstrip("\n").partition("  ")
            found = _copy(name, part / FILES / name)
            if found is None:
                known = StoredFile.objects.filter(content=name).exists()
                (copied.missing if known else copied.gone).append(name)
                continue
            if found.sha256 != digest:
                copied.damaged.append(name)
            copied.count += 1
            copied.bytes += found.bytes
            sums.write(f"{found.sha256}  {FILES}/{name}\n".encode())
    return copied


def _copy(name: str, target: Path) -> Part | None:
    try:
        source = contents.read(name)
    except FileNotFoundError:
        return None
    for folder in (target.parent.parent, target.parent):  # only the last of several would get the mode
        folder.mkdir(mode=0o700, exist_ok=True)
    digest, size = hashlib.sha256(), 0
    with source, manifest.create(target) as file:
        for chunk in source.chunks(manifest.CHUNK):
            digest.update(chunk)
            size += len(chunk)
            file.write(chunk)
    return Part(name, size, digest.hexdigest())


def _kept(part: Path, with_secret_key: bool) -> Iterator[Part]:
    for name in KEPT:
        with contextlib.suppress(FileNotFoundError):
            text = (Path(settings.DATA) / name).read_bytes()
            yield _written(part, name, text)
    if with_secret_key or secret_key_file():
        yield _written(part, SECRET_KEY, str(settings.SECRET_KEY).encode())


def _written(part: Path, name: str, text: bytes) -> Part:
    with manifest.create(part / name) as file:
        file.write(text)
    return manifest.part(part, name)


@contextmanager
def _held(folder: Path) -> Iterator[None]:
    """One backup at a time in a folder; the lock ends with its process, however that ends."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = os.fdopen(os.open(folder / ".lock", os.O_CREAT | os.O_RDWR, 0o600), "w")
    except OSError as error:
        raise BackupError(_in_words(error, folder)) from None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BackupError(f"Another backup is being made in {folder}. Try again when it is done.") from None
        yield


def _remove_broken_off(folder: Path) -> None:
    """Whoever holds the folder's lock is alone, so every hidden part in it is a dead process's. Other hidden folders in
    it, such as one of somebody's settings, are none of ours."""
    for path in folder.glob(f".{PREFIX}*"):
        if UNFINISHED.match(path.name):
            shutil.rmtree(path, ignore_errors=True)


def _remove(backup: Path) -> None:
    """First its name, so that one that is half removed is never taken for a whole one."""
    going = backup.with_name(f".{backup.name}.old")
    backup.rename(going)
    shutil.rmtree(going, ignore_errors=True)


def _in_words(error: OSError, folder: Path) -> str:
    where = error.filename or folder
    if error.errno in NO_ROOM:
        return f"There is no room for the backup in {folder} ({error.strerror}). Make room, or name another folder."
    return f"The backup cannot be written: {where}: {error.strerror}."
