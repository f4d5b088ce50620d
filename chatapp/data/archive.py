"""A zip file that is there whole or not at all, with a manifest of what is in it.

Rows stream through: neither a file of the archive nor the archive is ever in memory. A file of the archive may grow
beyond 4 GB (zip64).
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any
from zipfile import ZIP_DEFLATED, ZipFile

from django.utils import timezone

from chatapp.sheets import safe

CHUNK = 1 << 20


class Archive:
    """Use as a context manager: at its good end the file is at `path`, otherwise nothing of it is left.

    `tick(rows)` is told how many rows have been written since the last time, and may raise to stop it all.
    """

    def __init__(self, path: Path, part: Path, tick: Callable[[int], None]) -> None:
        self.path = path
        self._part = part
        self._tick = tick
        self._files: list[dict[str, Any]] = []
        self.size = 0
        self.sha256 = ""

    def __enter__(self) -> Archive:
        self._part.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle = os.open(self._part, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
        self._file = os.fdopen(handle, "w+b")
        self._zip = ZipFile(self._file, "w", ZIP_DEFLATED, compresslevel=6)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        try:
            if kind is None:
                self._zip.close()
                self._file.flush()
                os.fsync(self._file.fileno())
                self.size, self.sha256 = _measure(self._file)
                self._part.replace(self.path)
        finally:
            self._zip.fp = None  # else it would write a directory as it is collected
            self._file.close()
            self._part.unlink(missing_ok=True)

    def lines(self, name: str, rows: Iterable[dict[str, Any]]) -> int:
        """One JSON object a line, UTF-8, ended by a line feed and nothing else; how many rows that were."""
        return self._add(name, (_line(row) for row in rows))

    def table(self, name: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> int:
        """CSV with a head, as RFC 4180 has it."""
        return self._add(name, _csv(columns, rows), head=1)

    def text(self, name: str, text: str) -> None:
        self._add(name, [text.encode()])

    def document(self, name: str, value: Any) -> None:
        self.text(name, json.dumps(value, ensure_ascii=False, indent=2, default=_plain) + "\n")

    def binary(self, name: str, chunks: Iterable[bytes]) -> None:
        """A file as it is; the manifest says of its parts as it does of rows."""
        self._add(name, chunks)

    def manifest(self, about: dict[str, Any]) -> None:
        """What is in it, with row counts and SHA-256; the last file."""
        made = timezone.now().isoformat()
        self.document("manifest.json", {"format": "octavo.export/1", "made_at": made, **about, "files": self._files})

    def _add(self, name: str, chunks: Iterable[bytes], head: int = 0) -> int:
        digest = hashlib.sha256()
        size, rows = 0, -head
        with self._zip.open(name, "w", force_zip64=True) as file:
            for chunk in chunks:
                file.write(chunk)
                digest.update(chunk)
                size += len(chunk)
                rows += 1
                self._tick(1)
        self._files.append({"name": name, "rows": rows, "bytes": size, "sha256": digest.hexdigest()})
        return rows


def _measure(file: Any) -> tuple[int, str]:
    digest = hashlib.sha256()
    size = 0
    file.seek(0)
    while chunk := file.read(CHUNK):
        digest.update(chunk)
        size += len(chunk)
    return size, digest.hexdigest()


def _line(row: dict[str, Any]) -> bytes:
    # A database of another make may have let half a character in; it must not end an export.
    text = json.dumps(row, ensure_ascii=False, separators=(",", ":"), default=_plain)
    return text.encode("utf-8", "backslashreplace") + b"\n"


def _csv(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> Iterator[bytes]:
    buffer = io.StringIO()
    writer = csv.writer(buffer)
    writer.writerow(columns)
    yield _taken(buffer)
    for values in rows:
        writer.writerow([_cell(value) for value in values])
        yield _taken(buffer)


def _taken(buffer: io.StringIO) -> bytes:
    data = buffer.getvalue().encode("utf-8", "backslashreplace")
    buffer.seek(0)
    buffer.truncate()
    return data


def _cell(value: Any) -> Any:
    if isinstance(value, dict | list):
        return json.dumps(value, ensure_ascii=False, default=_plain)
    if isinstance(value, datetime):
        return value.isoformat()
    return safe(value)


def _plain(value: Any) -> str:
    return value.isoformat() if isinstance(value, datetime) else str(value)
