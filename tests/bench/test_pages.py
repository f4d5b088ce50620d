"""bench.pages cannot lie: what it counts of a trace as the page's work in a frame, and its table. Needs no browser."""

from __future__ import annotations

from typing import Any

import pytest

from bench import __main__ as program
from bench.chats import answer, question
from bench.children import ChildError
from bench.pages import frames_ms, table
from bench.writer import PIECE


def thread(pid: int, name: str = "CrRendererMain") -> dict[str, Any]:
    return {"name": "thread_name", "ph": "M", "pid": pid, "tid": pid, "args": {"name": name}}


def task(pid: int, at: float, ms: float, waited: float = 0.0) -> dict[str, Any]:
    times = {"dur": (ms + waited) * 1000, "tdur": ms * 1000}
    return {"name": "ThreadControllerImpl::RunTask", "ph": "X", "pid": pid, "tid": pid, "ts": at * 1000, **times}


def render(pid: int, at: float) -> dict[str, Any]:
    return {"name": "AnimationFrame::Render", "ph": "b", "pid": pid, "tid": pid, "ts": at * 1000}


def test_a_frame_has_the_work_from_the_one_before_to_it_and_only_of_the_pages_own_thread() -> None:
    events = [thread(1), thread(2), thread(9, "Compositor")]
    for number in range(1, 6):
        events += [task(1, number * 16, 3.0, waited=9.0), render(1, number * 16 + 2)]
        events += [task(1, number * 16 + 8, 0.5 * number)]  # a message comes in, before the frame after
        events += [task(9, number * 16, 12.0), task(2, number * 16, 0.1), render(2, number * 16)]
    assert frames_ms(events[::-1]) == pytest.approx([3.0 + 0.5 * number for number in (2, 3, 4)])


def test_a_trace_without_frames_is_no_measurement() -> None:
    with pytest.raises(ChildError, match="no frames"):
        frames_ms([thread(1), task(1, 0, 5)])


def test_the_table_says_what_was_found() -> None:
    grid = table({"new chat": {"JS, KB": 190.04}, "500 messages": {"JS, KB": 191.0, "open by click, ms": 312.4}})
    assert grid == [
        ["the chat's pages", "new chat", "500 messages"],
        ["JS, KB", "190.0", "191.0"],
        ["open by click, ms", "-", "312"],
    ]


def test_messages_are_of_several_kinds_and_are_told_apart_and_written_whole() -> None:
    texts = [question(number) if number % 2 == 0 else answer(number) for number in range(500)]
    assert len(set(texts)) == 500
    assert all(f"message {number}" in text for number, text in enumerate(texts))
    assert sum("```python" in text and "|---|" in text and "\n2. " in text for text in texts) > 50
    assert sum(len(text) < 600 for text in texts) > 250
    assert "".join(PIECE.findall(answer(1))) == answer(1)


def test_pages_are_measured_on_demand_only(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[str] = []
    monkeypatch.setattr(program, "run_module", lambda module, *arguments, timeout_s: ran.append(module))
    for other in ("served", "carried", "in_process"):
        monkeypatch.setattr(program, other, lambda *given: None)
    assert program.main([]) == 0
    assert ran == [f"bench.{name}" for name in program.OTHERS]
    assert program.main(["--only", "pages"]) == 0
    assert ran[len(program.OTHERS) :] == ["bench.pages"]
