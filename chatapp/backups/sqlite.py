"""SQLite: its online backup, which copies one moment while others read and write.

A restore fills a file beside the database and puts it in its place when it is finished: one rename is the whole change.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from django.db import connection

from chatapp.backups import manifest
from chatapp.backups.errors import BackupError
from chatapp.backups.snapshot import FILES_SQL, MIGRATIONS_SQL

TIMEOUT_S = 20.0
ASIDE = ("-wal", "-shm", "-journal")


@dataclass
class _Snapshot:
    database: sqlite3.Connection
    migrations: list[str]
    rows: dict[str, int]

    def files(self) -> Iterator[tuple[str, str]]:
        yield from self.database.execute(FILES_SQL)


@dataclass
class _Target:
    staged: Path
    path: Path

    @property
    def env(self) -> dict[str, str]:
        return {"DATABASE_URL": f"sqlite:////{quote(str(self.staged).lstrip('/'))}"}

    def rows(self) -> dict[str, int]:
        with closing(_open(self.staged)) as database:
            return _rows(database)

    def commit(self) -> None:
        _one_file(self.staged)
        if self.path.exists():
            _one_file(self.path)  # what its log holds must not be read as the new one's
        os.replace(self.staged, self.path)


class SQLite:
    engine = "sqlite"
    part = "database.sqlite3"

    @property
    def path(self) -> Path:
        return Path(connection.settings_dict["NAME"]).absolute()

    def server(self) -> str:
        return f"SQLite {sqlite3.sqlite_version}"

    @contextmanager
    def dump(self, path: Path) -> Iterator[_Snapshot]:
        if not self.path.exists():
            raise BackupError(f"There is no database at {self.path}. Is OCTAVO_DATA the folder that Octavo runs with?")
        manifest.create(path).close()  # for its owner only, as is what SQLite puts beside it
        try:
            with closing(_open(self.path)) as source, closing(sqlite3.connect(path)) as copy:
                source.backup(copy)  # in one step: a copy by parts begins anew whenever somebody writes
                copy.execute("PRAGMA journal_mode=DELETE")
                faults = [row[0] for row in copy.execute("PRAGMA quick_check(3)")]
                if faults != ["ok"]:
                    raise BackupError(f"The database {self.path} is damaged: {'; '.join(faults)}. Restore a backup.")
                yield _Snapshot(copy, _migrations(copy, self.path), _rows(copy))
        except sqlite3.Error as error:
            raise BackupError(f"The database {self.path} cannot be copied to {path.parent}: {error}.") from None

    def refuse_unless_empty(self) -> None:
        if not self.path.exists():
            return
        try:
            with closing(_open(self.path)) as database:
                if _tables(database):
                    raise BackupError(
                        f"{self.path} holds a database already, and nothing was changed. Name an empty folder "
                        "(OCTAVO_DATA=…), or say --replace to lose what is there."
                    )
        except sqlite3.Error as error:
            raise BackupError(f"{self.path} cannot be read as a database ({error}): move it away.") from None

    def check(self, path: Path) -> None:
        try:
            with closing(sqlite3.connect(f"file:{quote(str(path))}?mode=ro&immutable=1", uri=True)) as database:
                faults = [row[0] for row in database.execute("PRAGMA integrity_check(3)")]
                faults += [f"{table}: a row refers to nothing" for table, *_ in _dangling(database)]
        except sqlite3.Error as error:
            raise BackupError(f"{path} cannot be read: {error}. Use another backup.") from None
        if faults != ["ok"]:
            raise BackupError(f"{path} is damaged: {'; '.join(faults)}. Use another backup.")

    @contextmanager
    def load(self, path: Path, *, replace: bool) -> Iterator[_Target]:
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        connection.close()
        staged = self.path.with_name(self.path.name + ".restoring")
        try:
            _remove(staged)  # of a restore that was broken off
            manifest.create(staged).close()
            shutil.copyfile(path, staged)
            yield _Target(staged, self.path)
        except sqlite3.Error as error:
            raise BackupError(f"The database cannot be restored: {error}. Nothing was changed.") from None
        finally:
            _remove(staged)


def _open(path: Path) -> sqlite3.Connection:
    """Never makes a new one. Not read-only: whoever reads a write-ahead log has to write into its index."""
    return sqlite3.connect(f"file:{quote(str(path))}?mode=rw", uri=True, timeout=TIMEOUT_S)


def _tables(database: sqlite3.Connection) -> list[str]:
    names = database.execute(
        "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\'"
    )
    return sorted(name for (name,) in names)


def _rows(database: sqlite3.Connection) -> dict[str, int]:
    return {table: database.execute(f'SELECT count(*) FROM "{table}"').fetchone()[0] for table in _tables(database)}  # noqa: S608


def _migrations(database: sqlite3.Connection, path: Path) -> list[str]:
    if "django_migrations" not in _tables(database):
        raise BackupError(f"The database {path} is empty. Is OCTAVO_DATA the folder that Octavo runs with?")
    return [f"{app}.{name}" for app, name in database.execute(MIGRATIONS_SQL)]


def _dangling(database: sqlite3.Connection) -> list[tuple[str, ...]]:
    return database.execute("PRAGMA foreign_key_check").fetchmany(3)


def _one_file(path: Path) -> None:
    """All of it in the file itself, and no log beside it. Raises where somebody still has it open."""
    with closing(_open(path)) as database:
        mode = database.execute("PRAGMA journal_mode=DELETE").fetchone()[0]
    if mode != "delete":
        raise BackupError(f"{path} is in use. Stop Octavo first; nothing was changed.")
    _remove_logs(path)


def _remove_logs(path: Path) -> None:
    for ending in ASIDE:
        with contextlib.suppress(FileNotFoundError):
            Path(f"{path}{ending}").unlink()


def _remove(path: Path) -> None:
    path.unlink(missing_ok=True)
    _remove_logs(path)
