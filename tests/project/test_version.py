"""The product's version is said in two places, and is one."""

from __future__ import annotations

import tomllib

import engine
from tests.conftest import ROOT


def test_a_worker_says_the_version_of_the_project() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert engine.__version__ == project["version"]
