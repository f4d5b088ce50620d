"""The bytes of files, in Django's storage named "files": a folder of the data directory unless the settings say more.

Every name here is random and of our making, below the id of its team; what a person called a file never reaches a path.
Nothing is served from here by its name: who may read a file is asked of its row.
"""

from __future__ import annotations

import contextlib
import hashlib
import secrets
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, BinaryIO

from django.core.files import File
from django.core.files.storage import Storage, storages
from django.utils import timezone

CHUNK = 256 * 1024

Content = BinaryIO | File | Iterable[bytes]


class TooLarge(Exception):
    """More came than was allowed."""


@dataclass(frozen=True)
class Written:
    name: str
    bytes: int
    sha256: str


def storage() -> Storage:
    return storages["files"]


def write(tenant_id: uuid.UUID, content: Content, *, most: int) -> Written:
    """Keep the bytes, a chunk at a time. Raises TooLarge at the first byte beyond `most`, with nothing left behind."""
    incoming = _Incoming(content, most)
    name = f"{tenant_id.hex}/{secrets.token_hex(16)}"
    try:
        kept = storage().save(name, incoming)
    except BaseException:
        storage().delete(name)
        raise
    return Written(kept, incoming.seen, incoming.digest.hexdigest())


def read(name: str) -> File:
    """Open for reading; FileNotFoundError where it is gone."""
    return storage().open(name, "rb")


def remove(name: str) -> None:
    """Nothing happens where it is gone already."""
    storage().delete(name)


def names_of(tenant_id: uuid.UUID) -> list[str]:
    """What the storage has of a team, whatever the rows say."""
    return _names(tenant_id.hex)


def age(name: str) -> timedelta:
    """Since its last byte was written; none where it is gone."""
    try:
        return timezone.now() - storage().get_modified_time(name)
    except FileNotFoundError:
        return timedelta()


def teams() -> list[str]:
    """The teams (UUID in hex) that the storage has a folder of."""
    try:
        return storage().listdir("")[0]
    except FileNotFoundError:
        return []


def remove_all(tenant_id: uuid.UUID) -> int:
    """All that the storage has of a team; how many files that were."""
    names = names_of(tenant_id)
    for name in names:
        remove(name)
    with contextlib.suppress(OSError):  # something was written meanwhile: whoever asks again finds it
        storage().delete(tenant_id.hex)  # the empty folder, where the storage has folders
    return len(names)


def _names(folder: str) -> list[str]:
    try:
        return [f"{folder}/{name}" for name in storage().listdir(folder)[1]]
    except FileNotFoundError:
        return []


class _Incoming(File):
    """Counts and hashes what passes, so that a file is read once however large it is."""

    def __init__(self, content: Content, most: int) -> None:
        super().__init__(None, name="incoming")
        self._content = content
        self._most = most
        self.seen = 0
        self.digest = hashlib.sha256()

    def chunks(self, chunk_size: int | None = None) -> Iterator[bytes]:
        for part in _parts(self._content):
            self.seen += len(part)
            if self.seen > self._most:
                raise TooLarge
            self.digest.update(part)
            yield part

    def __bool__(self) -> bool:
        return True

    def __len__(self) -> int:
        raise TypeError("the length is known when all has been read")


def _parts(content: Any) -> Iterator[bytes]:
    if isinstance(content, File):
        yield from content.chunks(CHUNK)
    elif hasattr(content, "read"):
        while part := content.read(CHUNK):
            yield part
    else:
        yield from content
