"""PostgreSQL: pg_dump of one exported snapshot, which our own questions read as well.

Row-level security holds for the owner of the tables too, and pg_dump refuses to copy half a table without knowing. It
is therefore told to heed the policies (--enable-row-security), in a session whose settings say what the product's
unscoped code says: every tenant's rows. So the product's own role makes backups; none with BYPASSRLS is needed. That
nothing was left out is proved twice: rows are counted in the same snapshot, and again when they have been restored.

A restore loads into a schema of its own name while what was there waits under another one; a table marks the database
as unfinished until all is done, and `migrate` refuses such a one, so nothing is served from half a restore.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from django.core.checks import CheckMessage, Error
from django.db import connection, connections, transaction
from django.db.utils import Error as DatabaseError

from chatapp.backups import manifest
from chatapp.backups.errors import BackupError
from chatapp.backups.snapshot import FILES_SQL, MIGRATIONS_SQL

BEFORE = "octavo_before_restore"
UNFINISHED = "octavo_restoring"
PAGE = 2000


@dataclass
class _Snapshot:
    migrations: list[str]
    rows: dict[str, int]

    def files(self) -> Iterator[tuple[str, str]]:
        # A cursor on the server: there may be millions.
        with connection.cursor() as plain, plain.connection.cursor(name="octavo_files") as cursor:
            cursor.itersize = PAGE
            cursor.execute(FILES_SQL)
            yield from cursor


@dataclass
class _Target:
    schema: str
    env: dict[str, str] = field(default_factory=dict)
    committed: bool = False

    def rows(self) -> dict[str, int]:
        return {table: count for table, count in _rows().items() if table != UNFINISHED}

    def commit(self) -> None:
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute(f"DROP TABLE {UNFINISHED}")
            cursor.execute(f"DROP SCHEMA IF EXISTS {BEFORE} CASCADE")
        self.committed = True


class PostgreSQL:
    engine = "postgresql"
    part = "database.pgdump"

    def server(self) -> str:
        return f"PostgreSQL {_one('SHOW server_version')}"

    @contextmanager
    def dump(self, path: Path) -> Iterator[_Snapshot]:
        program = _program("pg_dump")
        manifest.create(path).close()  # for its owner only
        try:
            _one("SELECT 1")  # says the scope: a transaction's level is set before its first statement
            with transaction.atomic():
                with connection.cursor() as cursor:
                    # From here on everything is of this moment.
                    cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
                    cursor.execute("SELECT pg_export_snapshot()")
                    (snapshot,) = cursor.fetchone()
                tables = connection.introspection.table_names()
                if UNFINISHED in tables:
                    raise BackupError(
                        "A restore into this database is under way, or was broken off; nothing was backed up. "
                        "Let it end, or restore again with --replace."
                    )
                if "django_migrations" not in tables:
                    raise BackupError("The database is empty. Is DATABASE_URL the one that Octavo runs with?")
                _call(
                    [
                        program, "--format=custom", f"--snapshot={snapshot}", "--enable-row-security", "--no-owner",
                        "--no-privileges", f"--exclude-schema={BEFORE}", f"--file={path}", f"--dbname={_name()}",
                    ],
                    "The database cannot be copied",
                )  # fmt: skip
                with connection.cursor() as cursor:
                    cursor.execute(MIGRATIONS_SQL)
                    migrations = [f"{app}.{name}" for app, name in cursor.fetchall()]
                yield _Snapshot(migrations, _rows())
        except DatabaseError as error:
            raise BackupError(f"The database cannot be copied: {_line(error)}.") from None

    def refuse_unless_empty(self) -> None:
        try:
            tables = connection.introspection.table_names()
        except DatabaseError as error:
            raise BackupError(f"The database cannot be reached: {_line(error)}.") from None
        if UNFINISHED in tables:
            raise BackupError("An earlier restore into this database was broken off. Say --replace to begin it again.")
        if tables:
            raise BackupError(
                "The database holds tables already, and nothing was changed. Let DATABASE_URL name an empty one "
                "(createdb), or say --replace to lose what is there."
            )

    def check(self, path: Path) -> None:
        _call([_program("pg_restore"), "--list", str(path)], f"{path} cannot be read")

    @contextmanager
    def load(self, path: Path, *, replace: bool) -> Iterator[_Target]:
        program = _program("pg_restore")
        target = None
        try:
            _refuse_if_used()
            schema = str(_one("SELECT current_schema()"))
            _make_room(schema)
            target = _Target(schema)
            _call(
                [
                    program, "--no-owner", "--no-privileges", "--single-transaction", "--exit-on-error",
                    f"--dbname={_name()}", str(path),
                ],
                "The database cannot be restored",
            )  # fmt: skip
            yield target
        except DatabaseError as error:
            raise BackupError(f"The database cannot be restored: {_line(error)}.") from None
        finally:
            if target is not None and not target.committed:
                _take_back(target.schema)


def check_whole(app_configs: Any, databases: Any = None, **_: Any) -> list[CheckMessage]:
    """Before migrations: half a restored database is served to nobody."""
    return [
        Error(
            "A restore into this database was broken off.",
            hint="Restore again with --replace, or into an empty database.",
            id="octavo.E002",
        )
        for name in databases or ()
        if connections[name].vendor == "postgresql" and UNFINISHED in connections[name].introspection.table_names()
    ]


def _make_room(schema: str) -> None:
    """An empty schema with the mark of a restore in it. What was there is kept under another name until the end; what
    an earlier restore left unfinished is not."""
    name = connection.ops.quote_name(schema)
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_namespace WHERE nspname = %s", [BEFORE])
        if cursor.fetchone()[0]:
            cursor.execute(f"DROP SCHEMA {name} CASCADE")
        else:
            cursor.execute(f"ALTER SCHEMA {name} RENAME TO {BEFORE}")
        cursor.execute(f"CREATE SCHEMA {name}")
        cursor.execute(f"CREATE TABLE {name}.{UNFINISHED} (begun timestamptz DEFAULT now())")


def _take_back(schema: str) -> None:
    name = connection.ops.quote_name(schema)
    connection.close()  # whatever state it is in
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(f"DROP SCHEMA {name} CASCADE")
        cursor.execute(f"ALTER SCHEMA {BEFORE} RENAME TO {name}")


def _refuse_if_used() -> None:
    others = _one(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
        " AND backend_type = 'client backend'"
    )
    if others:
        raise BackupError(
            f"{others} other connections use the database, and nothing was changed. "
            "Stop Octavo (web, recorder, celery, beat) and whatever else is connected."
        )


def _rows() -> dict[str, int]:
    with connection.cursor() as cursor:
        found = {}
        for table in sorted(connection.introspection.table_names(cursor)):
            cursor.execute(f"SELECT count(*) FROM {connection.ops.quote_name(table)}")  # noqa: S608
            found[table] = int(cursor.fetchone()[0])
        return found


def _one(question: str) -> Any:
    with connection.cursor() as cursor:
        cursor.execute(question)
        return cursor.fetchone()[0]


def _program(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        raise BackupError(f"{name} is not on PATH. Install PostgreSQL's client programs (Debian: postgresql-client).")
    return found


def _name() -> str:
    return str(connection.settings_dict["NAME"])


def _call(command: list[str], failing: str) -> None:
    """With the connection of the settings, by the environment: a password is in nobody's list of processes."""
    given = connection.settings_dict
    _, more = connection.client.settings_to_cmd_args_env(given, [])
    env = {**os.environ, **(more or {}), "PGOPTIONS": "-c octavo.all=on", "LC_MESSAGES": "C"}
    for variable, setting in (("PGHOST", "HOST"), ("PGPORT", "PORT"), ("PGUSER", "USER")):
        if given.get(setting):
            env[variable] = str(given[setting])
    done = subprocess.run(command, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode:
        said = " ".join(done.stderr.split()) or f"{Path(command[0]).name} ended with status {done.returncode}"
        raise BackupError(f"{failing}: {said}")


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())
