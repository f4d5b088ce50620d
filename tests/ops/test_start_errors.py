"""What keeps `make run` from starting is said in one line that names the value and the way out."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ops import run
from ops.run import LONGEST_RUN_FOLDER, data_folder, run_folder
from ops.supervision import StartError, check_supervisor, wait_for_the_one_before
from ops.valkey import write_config

ROOT = Path(__file__).resolve().parents[2]


def start(tmp_path: Path, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "ops.run"],
        cwd=ROOT,
        env={**os.environ, "OCTAVO_DATA": str(tmp_path / "data"), **env},
        capture_output=True,
        text=True,
        timeout=60,
    )


def one_line(result: subprocess.CompletedProcess[str]) -> str:
    assert result.returncode == 1, result
    assert "Traceback" not in result.stderr
    lines = result.stderr.strip().splitlines()
    assert len(lines) == 1, lines
    return lines[0]


def test_a_port_in_use_is_one_line_and_exit_1(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        line = one_line(start(tmp_path, PORT=str(port)))
    assert f"Port {port} is taken" in line
    assert f"PORT={port + 1}" in line


@pytest.mark.parametrize("port", ["", "abc", "0", "70000", "-1"])
def test_a_port_that_is_none_is_named(tmp_path: Path, port: str) -> None:
    assert f"PORT={port} is no port" in one_line(start(tmp_path, PORT=port))


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        ("/nowhere/model", "does not exist"),
        ("./nowhere.gguf", "does not exist"),
        (str(ROOT / "docs"), "no config.json"),
        (str(ROOT / "Makefile"), "neither a model folder nor a .gguf file"),
    ],
)
def test_a_model_path_that_is_no_model_is_one_line_and_exit_1(tmp_path: Path, model: str, reason: str) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    line = one_line(start(tmp_path, PORT=str(port), OCTAVO_MODEL=model))
    assert model in line
    assert reason in line


def free_port() -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return str(free.getsockname()[1])


@pytest.mark.parametrize(
    ("env", "said"),
    [
        ({"OCTAVO_BIND": "192.0.2.1"}, "OCTAVO_BIND=192.0.2.1"),
        ({"DATABASE_URL": "nonsense"}, "DATABASE_URL"),
        ({"DATABASE_URL": "postgres://nobody@127.0.0.1:1/none"}, "(DATABASE_URL): connection failed"),
        ({"DATABASE_URL": "postgres://nobody@127.0.0.1:1/none"}, "port 1 failed"),
        ({"OCTAVO_DATABASE_WAIT_S": "soon"}, "\nOCTAVO_DATABASE_WAIT_S must be"),
        ({"OCTAVO_DATA": "/tmp/octavo-%d"}, "OCTAVO_DATA=/tmp/octavo-%d has a %"),
    ],
)
def test_a_setting_that_cannot_work_is_named(tmp_path: Path, env: dict[str, str], said: str) -> None:
    line = one_line(start(tmp_path, PORT=free_port(), OCTAVO_MODEL=str(model_stub(tmp_path)), **env))
    assert said in f"\n{line}"


@pytest.mark.parametrize(("held", "said"), [(b" \n", "is empty"), (b"\xff\xfe", "it is no text")])
def test_a_file_for_redis_without_an_address_is_named(tmp_path: Path, held: bytes, said: str) -> None:
    """And nobody goes to a Redis that happens to be on this machine."""
    (tmp_path / "redis_url").write_bytes(held)
    given = {"REDIS_URL_FILE": str(tmp_path / "redis_url"), "OCTAVO_MODEL": str(model_stub(tmp_path))}
    line = one_line(start(tmp_path, PORT=free_port(), **given))
    assert line.startswith(f"REDIS_URL_FILE={tmp_path / 'redis_url'} ")
    assert said in line


def test_another_model_than_the_one_that_was_asked_for_is_said_at_once(tmp_path: Path) -> None:
    line = one_line(
        start(tmp_path, PORT=free_port(), OCTAVO_MODEL=str(model_stub(tmp_path)), OCTAVO_MODEL_SHA256="0" * 64)
    )
    assert f"{tmp_path / 'model'} is not the one that OCTAVO_MODEL_SHA256 asks for" in line


def test_one_digest_for_several_models_is_refused_with_what_to_say_instead(tmp_path: Path) -> None:
    models = f"tiny={model_stub(tmp_path)}"
    line = one_line(start(tmp_path, PORT=free_port(), OCTAVO_MODELS=models, OCTAVO_MODEL_SHA256="0" * 64))
    assert "OCTAVO_ENGINE_TINY='--model-sha256 …'" in line


def model_stub(tmp_path: Path) -> Path:
    """A folder that passes for a model as long as nobody loads it."""
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    return tmp_path / "model"


@pytest.mark.long
def test_a_redis_that_does_not_answer_is_named(tmp_path: Path) -> None:
    result = start(tmp_path, PORT=free_port(), REDIS_URL="redis://127.0.0.1:1/0")
    assert result.returncode == 1
    assert result.stderr.startswith("REDIS_URL: ")
    assert len(result.stderr.strip().splitlines()) == 1


def test_a_second_start_on_the_same_data_is_refused(tmp_path: Path) -> None:
    with (
        data_folder(tmp_path / "data"),
        pytest.raises(StartError, match="already runs"),
        data_folder(tmp_path / "data"),
    ):
        pass
    with data_folder(tmp_path / "data"):
        assert (tmp_path / "data").stat().st_mode & 0o777 == 0o700


def test_a_start_waits_for_the_programs_of_one_that_was_killed(short: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wait_for_the_one_before(short)
    assert capsys.readouterr().out == ""
    with ThreadPoolExecutor() as pool, socket.socket(socket.AF_UNIX) as supervisor:
        supervisor.bind(str(short / "supervisor.sock"))
        supervisor.listen()
        waiting = pool.submit(wait_for_the_one_before, short)
        supervisor.accept()
        supervisor.accept()
        assert not waiting.done()
        supervisor.close()  # and its file stays, as after a kill
        waiting.result(60)
    assert capsys.readouterr().out.count("still ending") == 1


@pytest.fixture
def short() -> Iterator[Path]:
    """A folder whose path has room for a socket's name."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


def test_a_supervisor_that_ends_at_once_is_said_with_its_last_line(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "supervisord.log").write_text("first\nwhat is wrong\n")
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        ended.wait()
        with pytest.raises(StartError, match="The supervisor ended: what is wrong"):
            check_supervisor(ended, tmp_path)


def test_a_data_folder_with_a_long_path_gets_a_short_private_place_for_sockets(tmp_path: Path) -> None:
    assert run_folder(Path("/srv/octavo")) == Path("/srv/octavo")
    long = tmp_path / ("x" * LONGEST_RUN_FOLDER)
    folder = run_folder(long)
    assert folder == run_folder(long)
    assert folder != run_folder(long / "other")
    assert folder.stat().st_mode & 0o777 == 0o700
    assert len(os.fsencode(folder)) <= LONGEST_RUN_FOLDER


def test_the_embedded_redis_keeps_every_accepted_request(tmp_path: Path) -> None:
    config = write_config(tmp_path / "val key", tmp_path / "v.sock").read_text()
    for setting in ("appendonly yes", "appendfsync everysec", "maxmemory-policy noeviction", "port 0"):
        assert setting in config.splitlines()


def test_a_supervisor_that_ends_before_the_site_starts_is_one_line_and_exit_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is there when somebody looks, and does not answer."""
    data = tmp_path / "data"
    monkeypatch.setenv("OCTAVO_DATA", str(data))
    monkeypatch.setenv("PORT", free_port())

    def dying_supervisor(*_: object) -> subprocess.Popen[bytes]:
        (data / "logs" / "supervisord.log").write_text("shutting down\n")
        return subprocess.Popen(["sleep", "60"])

    monkeypatch.setattr(run, "start_supervisor", dying_supervisor)
    monkeypatch.setattr(run, "prepare", lambda env: None)
    with pytest.raises(StartError, match="The supervisor ended: shutting down"):
        run.serve()
