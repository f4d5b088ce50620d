"""The product's version is said in three places, and is one."""

from __future__ import annotations

import tomllib

import chatapp
import engine
from tests.conftest import ROOT


def test_workers_and_backups_say_the_version_of_the_project() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert engine.__version__ == chatapp.__version__ == project["version"]
