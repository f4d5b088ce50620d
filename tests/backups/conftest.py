"""A storage of the test's own, files in it, and `manage.py` as an operator calls it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.chat.conftest import ScriptedWorker, Team, record, server, team, worker
from tests.conftest import ROOT
from tests.files.conftest import folder

__all__ = ["ScriptedWorker", "Team", "folder", "record", "server", "team", "worker"]


@pytest.fixture(autouse=True)
def data(tmp_path: Path, settings: Any) -> Path:
    settings.DATA = tmp_path / "data"
    settings.DATA.mkdir()
    return settings.DATA


def command(data: Path, *arguments: object, **env: str) -> dict[str, Any]:
    """What subprocess needs for `manage.py` with the settings of `make run` and this data folder."""
    outside = ("REDIS_URL", "DATABASE_URL", "SECRET_KEY")
    clean = {name: value for name, value in os.environ.items() if name not in outside}
    local = {"OCTAVO_DATA": str(data), "DJANGO_SETTINGS_MODULE": "chatapp.settings.local"}
    args = [sys.executable, "manage.py", *map(str, arguments)]
    return {"args": args, "cwd": ROOT, "env": {**clean, **local, **env}}


def manage(data: Path, *arguments: object, status: int = 0, **more: Any) -> str:
    """What the command said: on standard output, or where it failed as expected, on standard error."""
    env = more.pop("env", {})
    done = subprocess.run(**command(data, *arguments, **env), capture_output=True, text=True, timeout=120, **more)
    assert done.returncode == status, f"{arguments}: {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stderr if status else done.stdout
