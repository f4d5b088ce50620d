"""The secrets of a deployment: made once, never changed, never said, and of a kind that production takes."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from ops.secret_files import SecretsError, make
from tests.conftest import ROOT
from tests.project.test_settings import run

FILES = {
    "SECRET_KEY_FILE": "secret_key", "SECRET_KEY_FALLBACKS_FILE": "former_keys", "DATABASE_URL_FILE": "database_url",
    "REDIS_URL_FILE": "redis_url", "OCTAVO_MAIL_URL_FILE": "mail_url", "OCTAVO_METRICS_TOKEN_FILE": "metrics_token",
}  # fmt: skip


def command(folder: Path, *more: str) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "ops.secret_files", str(folder), *more]
    return subprocess.run(line, cwd=ROOT, capture_output=True, text=True)


def contents(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in folder.iterdir()}


def test_it_makes_what_is_missing_says_none_of_it_and_changes_nothing_that_is_there(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "secrets"
    first = command(folder, "--self-signed", "chat.example.org")
    assert first.returncode == 0, first.stderr
    made = contents(folder)
    for name, held in made.items():
        assert not held or held.strip() not in first.stdout + first.stderr, name
    (folder / "mail_url").chmod(0o644)
    (folder / "mail_url").write_text("smtps://mail.example")
    (folder / "metrics_token").unlink()
    second = command(folder, "--self-signed", "other.example.org")
    assert "made metrics_token" in second.stdout
    assert second.stdout.count("made") == 1
    again = contents(folder)
    assert again.pop("metrics_token") != made.pop("metrics_token")
    assert again == {**made, "mail_url": "smtps://mail.example"}
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700, "nobody passes through"
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} <= {0o444, 0o644}


def test_passwords_agree_with_the_addresses_that_they_are_in_and_none_is_used_twice(tmp_path: Path) -> None:
    make(tmp_path)
    held = contents(tmp_path)
    assert held["database_url"] == f"postgres://octavo:{held['database_password']}@postgres:5432/octavo"
    assert held["redis_url"] == f"redis://:{held['redis_auth.conf'].split()[1]}@redis:6379/0"
    names = ("secret_key", "postgres_password", "database_password", "metrics_token", "redis_auth.conf")
    assert len({held[name] for name in names}) == 5


@pytest.mark.parametrize(("file", "address"), [("database_password", "database_url"), ("redis_auth.conf", "redis_url")])
def test_one_of_a_pair_that_was_made_anew_is_said_and_servers_of_ones_own_are_not_judged(
    file: str, address: str, tmp_path: Path
) -> None:
    make(tmp_path)
    (tmp_path / file).unlink()
    done = command(tmp_path)
    assert done.returncode == 1
    assert f"{tmp_path / address} has not the password of {tmp_path / file}: they come in pairs" in done.stderr
    (tmp_path / address).unlink()
    assert command(tmp_path).returncode == 0
    (tmp_path / address).unlink()
    (tmp_path / address).write_text("postgres://octavo:its-own@database.example.org/octavo\n")
    assert command(tmp_path).returncode == 0


def test_a_password_that_is_empty_is_not_put_into_an_address_without_a_word(tmp_path: Path) -> None:
    (tmp_path / "database_password").touch()
    with pytest.raises(SecretsError, match="they come in pairs"):
        make(tmp_path)


def test_a_new_secret_key_keeps_those_before_for_what_they_have_signed(tmp_path: Path) -> None:
    make(tmp_path)
    before = contents(tmp_path)
    keys = [before["secret_key"]]
    for _ in range(2):
        assert command(tmp_path, "--new-secret-key").returncode == 0
        keys.insert(0, (tmp_path / "secret_key").read_text())
    assert len(set(keys)) == 3
    assert (tmp_path / "former_keys").read_text().split() == keys[1:]
    changed = {name for name, held in contents(tmp_path).items() if held != before[name]}
    assert changed == {"secret_key", "former_keys"}
    env = {name: str(tmp_path / file) for name, file in FILES.items()}
    env |= {"OCTAVO_HOSTS": "chat.example.org", "OCTAVO_MODEL": "/models/m", "OCTAVO_DATA": str(tmp_path / "data")}
    sealed = run(
        "from django.conf import settings as s; s.SECRET_KEY = s.SECRET_KEY_FALLBACKS[-1]\n"
        "from chatapp.sealing import seal; print(seal('a text', purpose='test'))",
        "production",
        **env,
    )
    opened = run(
        f"from chatapp.sealing import unseal; print(unseal({sealed.stdout.strip()!r}, purpose='test'))",
        "production",
        **env,
    )
    assert opened.stdout == "a text\n", sealed.stderr + opened.stderr


def test_production_takes_what_it_makes(tmp_path: Path) -> None:
    folder = tmp_path / "secrets"
    make(folder)
    files = {name: str(folder / file) for name, file in FILES.items()}
    env = {"OCTAVO_HOSTS": "chat.example.org", "OCTAVO_MODEL": "/models/m", "OCTAVO_DATA": str(tmp_path / "data")}
    done = run("print('started')", "production", **files, **env)
    assert done.stdout == "started\n", done.stderr


def test_a_file_that_somebody_wrote_another_way_is_named(tmp_path: Path) -> None:
    (tmp_path / "redis_auth.conf").write_text("a password")
    with pytest.raises(SecretsError, match=r"redis_auth.conf must read: requirepass PASSWORD"):
        make(tmp_path)


@pytest.mark.skipif(os.geteuid() != 0, reason="a folder of somebody else is needed")
def test_a_folder_that_cannot_be_written_to_is_said_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = command(tmp_path / "file" / "secrets")
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert str(tmp_path / "file") in done.stderr
