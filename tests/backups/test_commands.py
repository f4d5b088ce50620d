"""`make backup` and `make restore` as they are typed, and what their endings say."""

from __future__ import annotations

import secrets
import subprocess
import sys
from pathlib import Path

import pytest

from tests.backups.conftest import command, manage

pytestmark = pytest.mark.timeout(300)


def make(data: Path, target: str, *variables: str) -> str:
    asked = command(data)
    asked["args"] = ["make", f"PY={sys.executable}", f"OCTAVO_DATA={data}", target, *variables]
    done = subprocess.run(**asked, capture_output=True, text=True, timeout=120)
    return done.stderr if done.returncode else done.stdout


def test_make_takes_names_with_blanks_and_replaces_what_is_there_where_it_is_told_to(tmp_path: Path) -> None:
    data, folder = tmp_path / "the site", tmp_path / "my backups"
    manage(data, "migrate", "-v0")
    assert f"{folder}/octavo-" in make(data, "backup", f"TO={folder}", "KEEP=1")
    (backup,) = folder.glob("octavo-*")
    for variables in ([], ["REPLACE=0"]):
        assert "or say --replace" in make(data, "restore", f"FROM={backup}", *variables)
    assert f"Restored {backup.name}" in make(data, "restore", f"FROM={backup}", "REPLACE=1")


@pytest.mark.parametrize("wrong", [["--keep", "0"], ["--keep", "x"], ["--keep", "1.5"], ["--kept", "1"], ["another"]])
def test_a_backup_that_was_asked_for_wrongly_does_not_end_like_one_that_was_made(
    wrong: list[str], tmp_path: Path
) -> None:
    said = manage(tmp_path / "site", "backup", tmp_path / "backups", *wrong, status=1)
    assert wrong[-1] in said or "keep at least one" in said
    assert not (tmp_path / "backups").exists()


def test_a_site_whose_redis_and_model_make_run_brings_is_backed_up_with_what_it_runs_with(tmp_path: Path) -> None:
    """In production, where all else has to be named."""
    site = tmp_path / "site"
    site.mkdir()
    env = {
        "DJANGO_SETTINGS_MODULE": "chatapp.settings.production",
        "SECRET_KEY": secrets.token_urlsafe(64),
        "OCTAVO_HOSTS": "chat.example.org",
        "DATABASE_URL": f"sqlite:///{site}/db.sqlite3",
        "OCTAVO_MODEL": "",
        "OCTAVO_MODELS": "",
    }
    brought = {"REDIS_URL": "unix:///valkey.sock", "OCTAVO_MODEL": "/models/m"}
    manage(site, "migrate", "-v0", env={**env, **brought})
    manage(site, "backup", tmp_path / "backups", env=env)
    (backup,) = (tmp_path / "backups").glob("octavo-*")
    assert f"Restored {backup.name}" in manage(site, "restore", backup, "--replace", env=env)
    said = manage(site, "migrate", status=1, env=env)
    assert said.startswith("Octavo does not start: REDIS_URL (or REDIS_URL_FILE) must be set; OCTAVO_MODEL must")
    assert said.count("\n") == 1, "and no traceback"
