"""What `make run` says of a site that nobody runs yet."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from pathlib import Path

import pytest

from ops.run import DEMO_SETTINGS, ROOT, address, announce, environment, setup_link


@pytest.mark.long
def test_a_site_with_data_of_its_own_is_told_where_its_first_operator_is_made(tmp_path: Path, capsys: object) -> None:
    env = {
        **{name: value for name, value in os.environ.items() if not name.startswith("OCTAVO_")},
        "DJANGO_SETTINGS_MODULE": "chatapp.settings.production", "SECRET_KEY": secrets.token_urlsafe(64),
        "OCTAVO_HOSTS": "chat.example.org", "OCTAVO_MODEL": "/models/m", "OCTAVO_DATA": str(tmp_path),
        "REDIS_URL": "redis://127.0.0.1:1/0", "DATABASE_URL": f"sqlite:///{tmp_path}/db.sqlite3",
    }  # fmt: skip
    manage = [sys.executable, "manage.py"]
    subprocess.run([*manage, "migrate", "-v0"], cwd=ROOT, env=env, check=True)
    link = setup_link(env)
    assert link.startswith("https://chat.example.org/setup?token=")
    announce("https://chat.example.org", tmp_path, 3, link)
    assert link in capsys.readouterr().out  # type: ignore[attr-defined]
    made = {**env, "OCTAVO_SETUP_EMAIL": "me@example.org", "OCTAVO_SETUP_PASSWORD": "correct horse battery"}
    subprocess.run([*manage, "setup", "--no-input"], cwd=ROOT, env=made, check=True)
    assert setup_link(env) == ""
    assert setup_link({**env, "DJANGO_SETTINGS_MODULE": DEMO_SETTINGS}) == ""


def test_a_site_with_an_address_of_its_own_is_served_under_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OCTAVO_URL", "DJANGO_SETTINGS_MODULE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("OCTAVO_HOSTS", "chat.example.org,other.example.org")
    assert address(environment(tmp_path, tmp_path, "127.0.0.1", 8123, {})) == "http://127.0.0.1:8123"
    monkeypatch.setenv("DJANGO_SETTINGS_MODULE", "chatapp.settings.production")
    env = environment(tmp_path, tmp_path, "127.0.0.1", 8123, {})
    assert address(env) == "https://chat.example.org"
    needed = {"SECRET_KEY": secrets.token_urlsafe(64), "DATABASE_URL": f"sqlite:///{tmp_path}/db.sqlite3"}
    read = "from django.conf import settings; print(settings.OCTAVO_URL)"
    done = subprocess.run([sys.executable, "-c", read], cwd=ROOT, env={**env, **needed}, capture_output=True, text=True)
    assert done.stdout.strip() == "https://chat.example.org", done.stderr
    monkeypatch.setenv("OCTAVO_URL", "https://other.example.org:8443")
    assert address(environment(tmp_path, tmp_path, "127.0.0.1", 8123, {})) == "https://other.example.org:8443"
