"""What is said of a program that could not start: the last of its log, in a person's words."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ops.supervision import last_line


@pytest.mark.parametrize(
    ("log", "said"),
    [
        ("No model given: set OCTAVO_MODEL or --model.\n", "No model given: set OCTAVO_MODEL or --model."),
        (json.dumps({"event": "redis.lost", "error": "Connection refused"}), "redis.lost: Connection refused"),
        (
            json.dumps({"event": "bus.failed", "exception": "  File x\nRuntimeError: no\n"}),
            "bus.failed: RuntimeError: no",
        ),
        (json.dumps({"event": "worker.ready", "blocks": 7}), "worker.ready"),
        ('first\n{"event": "cut off', '{"event": "cut off'),
        ("17", "17"),
        ("", "its log is empty"),
    ],
)
def test_the_last_line_of_a_log_is_said_in_words(tmp_path: Path, log: str, said: str) -> None:
    (tmp_path / "x.log").write_text(log)
    assert last_line(tmp_path / "x.log") == said
    assert last_line(tmp_path / "none.log") == "its log is empty"
