"""What the worker is told on its command line and by the environment."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.config import EngineConfig
from engine.worker import ENGINE_SETTINGS, _arguments, main


@pytest.mark.parametrize(
    ("value", "on"),
    [
        ("", False),
        ("0", False),
        ("False", False),
        ("off", False),
        ("No", False),
        ("1", True),
        ("TRUE", True),
        ("on", True),
    ],
)
def test_speculation_is_on_or_off_as_the_environment_says(
    monkeypatch: pytest.MonkeyPatch, value: str, on: bool
) -> None:
    monkeypatch.setenv("OCTAVO_WORKER_SPECULATION", value)
    assert _arguments([]).speculation is on
    assert _arguments(["--speculation"]).speculation is True
    assert _arguments(["--no-speculation"]).speculation is False


def test_switches_that_are_not_set_are_left_to_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OVERLAP", "GRAPHS"):
        monkeypatch.delenv(f"OCTAVO_WORKER_{name}", raising=False)
    assert (_arguments([]).overlap, _arguments([]).graphs) == (EngineConfig.overlap, EngineConfig.graphs)
    assert _arguments(["--overlap"]).overlap is True
    monkeypatch.setenv("OCTAVO_WORKER_OVERLAP", "off")
    monkeypatch.setenv("OCTAVO_WORKER_GRAPHS", "0")
    assert (_arguments([]).overlap, _arguments([]).graphs) == (False, False)


@pytest.mark.parametrize(("name", "value"), [("SPECULATION", "maybe"), ("OVERLAP", "2"), ("MAX_ITL_MS", "soon")])
def test_a_value_that_means_nothing_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str, value: str
) -> None:
    monkeypatch.setenv(f"OCTAVO_WORKER_{name}", value)
    with pytest.raises(SystemExit):
        _arguments([])
    assert f"OCTAVO_WORKER_{name}={value}" in capsys.readouterr().err


def test_the_dtype_of_keys_and_values_comes_from_the_option_or_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _arguments([]).kv_dtype == "bfloat16"
    assert _arguments(["--kv-dtype", "int8"]).kv_dtype == "int8"
    monkeypatch.setenv("OCTAVO_WORKER_KV_DTYPE", "int8")
    assert _arguments([]).kv_dtype == "int8"
    assert "kv_dtype" in ENGINE_SETTINGS


def test_a_dtype_of_keys_and_values_that_there_is_not_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--model", "m", "--redis", "redis://127.0.0.1:1", "--kv-dtype", "int4"]) == 1
    assert capsys.readouterr().err == "kv_dtype 'int4' is unknown; choose bfloat16, int8, fp8.\n"


def test_the_form_of_the_weights_comes_from_the_command_line_or_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert _arguments([]).weights == "auto"
    monkeypatch.setenv("OCTAVO_WORKER_WEIGHTS", "int4")
    assert _arguments([]).weights == "int4"
    assert _arguments(["--weights", "bf16"]).weights == "bf16"


def test_a_form_that_does_not_exist_ends_the_worker_with_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--model", "m", "--redis", "redis://nowhere", "--weights", "int3"]) == 1
    assert capsys.readouterr().err == "weights 'int3' is unknown; choose auto, int4, int8, bf16.\n"


def test_ranks_are_counted_by_an_option_or_by_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _arguments([]).tensor_parallel == 1
    monkeypatch.setenv("OCTAVO_WORKER_TENSOR_PARALLEL", "4")
    assert _arguments([]).tensor_parallel == 4
    assert _arguments(["--tensor-parallel", "2"]).tensor_parallel == 2
    assert "tensor_parallel" in ENGINE_SETTINGS


def test_a_secrets_file_that_holds_no_text_ends_the_worker_with_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "redis_url").write_bytes(b"\xff\xfe")
    monkeypatch.setenv("REDIS_URL_FILE", str(tmp_path / "redis_url"))
    assert main(["--model", "m"]) == 1
    assert capsys.readouterr().err == f"REDIS_URL_FILE={tmp_path / 'redis_url'} cannot be read: it is no text.\n"
