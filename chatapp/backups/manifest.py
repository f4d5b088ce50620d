"""What a backup is: a folder with a manifest that names each of its parts, and is written last.

    octavo-20261130T151200Z/
      manifest.json                      this module's Manifest
      database.sqlite3 | database.pgdump the database as it was at one moment
      SHA256SUMS                         a line for each stored file, for `sha256sum -c` too
      files/<team>/<name>                the stored files that the database names
      secret_key, metrics_token, demo.json   what the data folder holds beside them, as far as there is any

A folder is made under a hidden name and gets its own when all of it is on disk, so what has the name is whole. Reading
it again proves that: every part is held against its SHA-256.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import BinaryIO

import msgspec

from chatapp.backups.errors import BackupError

FORMAT = 1
NAME = "manifest.json"
SUMS = "SHA256SUMS"
FILES = "files"
PREFIX = "octavo-"
CHUNK = 1 << 20


class Part(msgspec.Struct, frozen=True):
    name: str
    bytes: int
    sha256: str


class StoredFiles(msgspec.Struct, frozen=True):
    """`gone`: deleted while the backup was made, so a restore deletes their rows too. `missing` and `damaged`: the
    storage has not, or not any more, what was uploaded; the rows stay."""

    count: int = 0
    bytes: int = 0
    gone: list[str] = []
    missing: list[str] = []
    damaged: list[str] = []


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """`proof` is sealed by the SECRET_KEY that the database's secrets are sealed by. `migrations`: "app.name"."""

    format: int = FORMAT
    version: str
    taken_at: datetime
    engine: str
    server: str
    migrations: list[str]
    rows: dict[str, int]
    database: Part
    sums: Part
    kept: list[Part]
    files: StoredFiles
    proof: str

    @property
    def parts(self) -> list[Part]:
        return [self.database, self.sums, *self.kept]

    @property
    def holds_secret_key(self) -> bool:
        return any(part.name == "secret_key" for part in self.kept)


def write(folder: Path, manifest: Manifest) -> None:
    with create(folder / NAME) as file:
        file.write(msgspec.json.format(msgspec.json.encode(manifest), indent=2) + b"\n")


def read(folder: Path) -> Manifest:
    """Raises BackupError where that is no backup, or one that this version does not understand."""
    try:
        text = (folder / NAME).read_bytes()
    except OSError as error:
        hint = "It was broken off: take another one." if folder.name.startswith(".") else "Name the folder of a backup."
        raise BackupError(f"{folder} is no backup: {NAME} cannot be read ({error.strerror}). {hint}") from None
    try:
        version = msgspec.json.decode(text, type=dict[str, object]).get("format")
        if version != FORMAT:
            raise BackupError(f"{folder} has format {version}, and this version reads {FORMAT}. Use a newer Octavo.")
        return msgspec.json.decode(text, type=Manifest)
    except msgspec.MsgspecError as error:
        raise BackupError(f"{folder / NAME} is damaged ({error}). Take another backup.") from None


def verify(folder: Path, manifest: Manifest) -> None:
    """Hold every part against its sum. Raises BackupError that names the first that is not what it was."""
    for part in manifest.parts:
        _verify(folder / part.name, part.sha256)
    count = 0
    for name, digest in listed(folder):
        _verify(folder / name, digest)
        count += 1
    if count != manifest.files.count:
        raise BackupError(f"{folder / SUMS} names {count} files, and the manifest says {manifest.files.count}.")


def _verify(path: Path, digest: str) -> None:
    try:
        found = sha256(path)
    except OSError as error:
        raise BackupError(f"{path} cannot be read ({error.strerror}). Use another backup.") from None
    if found != digest:
        raise BackupError(f"{path} is damaged: its SHA-256 is not what it was. Use another backup.")


def listed(folder: Path) -> Iterator[tuple[str, str]]:
    """(name below the folder, SHA-256) of each stored file."""
    with (folder / SUMS).open(encoding="utf-8") as lines:
        for line in lines:
            digest, _, name = line.rstrip("\n").partition("  ")
            if not name.startswith(f"{FILES}/") or ".." in name.split("/"):
                raise BackupError(f"{folder / SUMS} names {name!r}, which no backup has.")
            yield name, digest


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def part(folder: Path, name: str) -> Part:
    """Of a file that is there, as it reads."""
    path = folder / name
    return Part(name, path.stat().st_size, sha256(path))


def create(path: Path) -> BinaryIO:
    """A new file for its owner only."""
    return os.fdopen(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb")
