"""What the worker is told on its command line and by the environment."""

from __future__ import annotations

import pytest

from engine.worker import _arguments


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


@pytest.mark.parametrize(("name", "value"), [("SPECULATION", "maybe"), ("MAX_ITL_MS", "soon")])
def test_a_value_that_means_nothing_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str, value: str
) -> None:
    monkeypatch.setenv(f"OCTAVO_WORKER_{name}", value)
    with pytest.raises(SystemExit):
        _arguments([])
    assert f"OCTAVO_WORKER_{name}={value}" in capsys.readouterr().err
