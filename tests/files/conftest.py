"""Two teams, and a storage of the test's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from django.core.files.storage import storages

from tests.chat.conftest import ScriptedWorker, Team, record, server, strangers, team, worker

__all__ = ["ScriptedWorker", "Team", "record", "server", "strangers", "team", "worker"]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, settings: Any) -> Path:
    """Where files lie; its path."""
    options = {**settings.FILES["OPTIONS"], "location": tmp_path / "files"}
    settings.STORAGES = {**settings.STORAGES, "files": {**settings.FILES, "OPTIONS": options}}
    assert str(storages["files"].path("x")).startswith(str(tmp_path)), "the storage follows the settings"
    return tmp_path / "files"
