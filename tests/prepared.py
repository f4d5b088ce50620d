"""A migrated, empty SQLite database, made once for the code as it is: what every product that tests start would make.

That `make run` makes one by itself is shown by those that start it without this (tests/ops/test_run.py).
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
KEPT = ROOT / ".cache" / "tests"


def code() -> str:
    """Of all that says what the database is like: our code, and which versions of the others'."""
    seen = hashlib.sha256()
    for path in sorted([*(ROOT / "chatapp").rglob("*.py"), *(ROOT / "requirements").iterdir()]):
        seen.update(str(path.relative_to(ROOT)).encode() + b"\0" + path.read_bytes() + b"\0")
    return seen.hexdigest()[:16]


def put_database(data: Path) -> None:
    """Into the data folder of a product that has none yet."""
    wanted = data / "db.sqlite3"
    if wanted.exists():
        return
    KEPT.mkdir(parents=True, exist_ok=True)
    with (KEPT / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # of two that come at once, one makes it
        ready = KEPT / f"{code()}.sqlite3"
        if not ready.exists():
            for old in KEPT.glob("*.sqlite3"):
                old.unlink()
            _make(ready)
    shutil.copyfile(ready, wanted)


def _make(ready: Path) -> None:
    with tempfile.TemporaryDirectory(dir=KEPT) as folder:
        env = {name: value for name, value in os.environ.items() if name not in ("DATABASE_URL", "REDIS_URL")}
        env |= {"DJANGO_SETTINGS_MODULE": "chatapp.settings.local", "OCTAVO_DATA": folder}
        subprocess.run([sys.executable, "manage.py", "migrate", "-v0"], cwd=ROOT, env=env, check=True)
        left = {path.name for path in Path(folder).glob("db.sqlite3*")}
        assert left == {"db.sqlite3"}, f"the database was not closed: {left}"
        (Path(folder) / "db.sqlite3").replace(ready)
