"""What a database has to be able to do for backups: give a copy of one moment, and take one in an empty place."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

from django.db import connection

from chatapp.backups.errors import BackupError

FILES_SQL = "SELECT content, sha256 FROM files_storedfile"
MIGRATIONS_SQL = "SELECT app, name FROM django_migrations ORDER BY id"


class Snapshot(Protocol):
    """One moment of the database, while the context that gave it is open."""

    migrations: list[str]
    rows: dict[str, int]

    def files(self) -> Iterator[tuple[str, str]]:
        """(name in the storage, SHA-256) of each stored file that has a row."""


class Target(Protocol):
    """Where a backup has been restored to, before it counts: `env` leads Django there."""

    env: dict[str, str]

    def rows(self) -> dict[str, int]: ...

    def commit(self) -> None:
        """From here on the restored database is the product's."""


class Database(Protocol):
    """The dialect of one kind of database. `part`: the name of its copy in a backup."""

    engine: str
    part: str

    def server(self) -> str:
        """Which server or library, with its version."""

    def dump(self, path: Path) -> AbstractContextManager[Snapshot]:
        """Write a copy to `path` while others go on writing. Raises BackupError."""

    def refuse_unless_empty(self) -> None:
        """Raises BackupError where there is something that a restore would overwrite, or where others are at it."""

    def check(self, path: Path) -> None:
        """Raises BackupError where the copy cannot be read by the database's own tools."""

    def load(self, path: Path, *, replace: bool) -> AbstractContextManager[Target]:
        """Load a copy beside what is there; whatever ends it without `commit` leaves that as it was."""


def database() -> Database:
    """That of the settings."""
    from chatapp.backups.postgresql import PostgreSQL
    from chatapp.backups.sqlite import SQLite

    kinds: dict[str, Any] = {"sqlite": SQLite, "postgresql": PostgreSQL}
    if connection.vendor not in kinds:
        raise BackupError(f"Octavo can back up SQLite and PostgreSQL, and not {connection.vendor}.")
    found: Database = kinds[connection.vendor]()
    return found
