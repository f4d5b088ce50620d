"""What the log and the traces say of a generation, wherever it ends."""

from __future__ import annotations

import time
from itertools import pairwise
from typing import Any

import pytest
from structlog.testing import capture_logs

from engine import protocol, run_ends, tracing
from engine.protocol import ChatMessage, Request, Taken
from engine.run import Run

REQUEST = Request(
    id="g", tenant="t", model="m", messages=[ChatMessage("user", "a private question")], salt="s", request_id="req_1",
    traceparent=f"00-{'a' * 32}-{'b' * 16}-01",
)  # fmt: skip


def a_run(**reached: float) -> Run:
    """Taken after two seconds in the queue; `reached`: what it came to, in seconds from then."""
    run = Run(Taken("g", 1, b"", 2000, 0, -1))
    run.request = REQUEST
    run.taken_at = time.monotonic() - 10
    for name, after in reached.items():
        setattr(run, name, run.taken_at + after)
    return run


@pytest.mark.parametrize(
    ("error", "said"),
    [
        ("the model's output was not a number", "the model's output was not a number"),
        (
            'the grammar: Parser Error: token "Paris" doesn\'t satisfy it',
            "the grammar: Parser Error: token … doesn't satisfy it",
        ),
        ("token 'Pa\\'ris' and `Rome`", "token … and …"),
        ('cut off in "Par', "cut off in …"),
    ],
)
def test_what_an_error_quotes_stays_out_of_the_log(error: str, said: str) -> None:
    with capture_logs() as lines:
        run_ends.failed(a_run(), error)
    assert [line["error"] for line in lines] == [said]
    assert lines[0]["request_id"] == "req_1"


@pytest.mark.parametrize(
    ("reached", "names"),
    [
        ({}, ["queue", "prepare"]),
        ({"added_at": 1}, ["queue", "prepare", "schedule"]),
        ({"added_at": 1, "scheduled_at": 3}, ["queue", "prepare", "schedule", "prefill"]),
        (
            {"added_at": 1, "scheduled_at": 3, "first_at": 6, "last_at": 9},
            ["queue", "prepare", "schedule", "prefill", "decode"],
        ),
    ],
)
def test_the_phases_of_a_generation_follow_each_other_as_far_as_it_came(
    monkeypatch: pytest.MonkeyPatch, reached: dict[str, float], names: list[str]
) -> None:
    told: list[tracing.Part] = []
    monkeypatch.setattr(tracing, "on", lambda: True)
    monkeypatch.setattr(tracing, "ended", lambda *parts: told.extend(parts))
    run = a_run(**reached)
    run_ends.ended(run, protocol.Cancelled())
    whole, *phases = told
    assert [phase.name for phase in phases] == names
    assert (whole.began, whole.parent) == (run.taken_at - 2, REQUEST.traceparent)
    assert phases[0].began == whole.began
    for before, after in pairwise(phases):
        assert before.ended == after.began
    assert phases[-1].ended == (run.last_at if "first_at" in reached else whole.ended)
    assert "private" not in repr([vars_of(part) for part in told])


def vars_of(part: tracing.Part) -> dict[str, Any]:
    return {name: getattr(part, name) for name in part.__slots__}


def test_a_generation_that_could_not_be_read_is_said_by_its_own_id() -> None:
    run = a_run()
    run.request = None
    with capture_logs() as lines:
        run_ends.ended(run, protocol.Refused(code="invalid_request"))
    assert (lines[0]["generation"], lines[0]["status"], lines[0]["reason"]) == ("g", "refused", "invalid_request")
    assert "tenant" not in lines[0]


def test_a_failure_is_a_warning_and_a_cancelled_answer_is_none() -> None:
    with capture_logs() as lines:
        run_ends.ended(a_run(), protocol.Failed(code="engine_fault"))
        run_ends.ended(a_run(), protocol.Cancelled())
    assert [line["log_level"] for line in lines] == ["warning", "info"]
