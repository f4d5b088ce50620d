"""A real PostgreSQL server of this test run, in a folder of its own, and a role that is no superuser."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

import psycopg

ROLE = "octavo"


def binaries() -> Path | None:
    """The newest server's programs: where Debian keeps them, or on PATH."""
    versions = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    if versions:
        return versions[-1].parent
    found = shutil.which("initdb")
    return Path(found).resolve().parent if found else None


def _user() -> str | None:
    """The server refuses to run as root."""
    if os.geteuid() != 0:
        return None
    names = {entry.pw_name for entry in pwd.getpwall()}
    return "postgres" if "postgres" in names else "nobody"


def control(url: str, *arguments: str) -> None:
    """pg_ctl on a server of `running`: "stop" and "start" it for a while."""
    folder = Path(unquote(urlsplit(url).netloc.rpartition("@")[2].partition(":")[0]))
    programs = binaries()
    assert programs is not None
    command = [str(programs / "pg_ctl"), "-D", str(folder / "data"), "-w", "-l", str(folder / "log"), *arguments]
    subprocess.run(command, user=_user(), cwd=folder, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


@contextmanager
def running(programs: Path) -> Iterator[str]:
    """The URL of an empty database that ROLE owns; the role may make others (tests do)."""
    user = _user()
    folder = Path(tempfile.mkdtemp(prefix="octavo-pg-"))
    if user:
        shutil.chown(folder, user)

    def call(program: str, *arguments: str) -> None:
        done = subprocess.run(
            [str(programs / program), *arguments],
            user=user,
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**os.environ, "LC_ALL": "C.UTF-8"},
        )
        assert done.returncode == 0, f"{program} failed: {done.stdout.decode(errors='replace')}"

    data = folder / "data"
    try:
        call("initdb", "-D", str(data), "-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-sync")
        # No fsync: this data does not outlive the tests. Sockets only: no port to collide on. In the server's own file,
        # so that it is the same when it is started again.
        with (data / "postgresql.conf").open("a") as settings:
            settings.write(
                f"listen_addresses = ''\nunix_socket_directories = '{folder}'\nfsync = off\nmax_connections = 60\n"
            )
        call("pg_ctl", "-D", str(data), "-l", str(folder / "log"), "-w", "start")
        try:
            with psycopg.connect(f"postgresql://postgres@/postgres?host={folder}", autocommit=True) as connection:
                connection.execute(f"CREATE ROLE {ROLE} LOGIN CREATEDB")
                connection.execute(f"CREATE DATABASE {ROLE} OWNER {ROLE}")
            yield f"postgres://{ROLE}:@{quote(str(folder), safe='')}:5432/{ROLE}"
        finally:
            call("pg_ctl", "-D", str(data), "-m", "immediate", "-w", "stop")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
