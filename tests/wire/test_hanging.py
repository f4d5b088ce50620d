"""When a worker takes its own engine for hung: only while that has work, whatever else there is to be told."""

from __future__ import annotations

from typing import Any

import pytest

from engine import bus
from engine.bus import Bus
from engine.protocol import Taken, WorkerDetails
from tests.wire.conftest import MODEL, a_request


class Heard:
    def __init__(self) -> None:
        self.hung_for: list[float] = []

    def hung(self, for_s: float) -> None:
        self.hung_for.append(for_s)


def details(steps: int, running: int = 0, waiting: int = 0) -> WorkerDetails:
    return WorkerDetails(
        id="w",
        model=MODEL,
        context=99,
        block_size=16,
        num_blocks=9,
        pid=1,
        steps=steps,
        running=running,
        waiting=waiting,
    )


@pytest.fixture
def looked(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A bus that holds an ended answer which Redis has not taken yet, and what its listener heard."""
    monkeypatch.setattr(bus, "HUNG_S", 0.0)
    heard: Any = Heard()
    one = Bus("unix:///nowhere", "w", MODEL, 4, heard, lambda: details(0))
    request = a_request()
    one._outbox.add(Taken(request.id, 1, b"{}", 0, 0, -1), request.tenant)
    return one, heard


def test_an_engine_without_work_is_not_hung_though_its_last_words_are_not_told(looked: Any) -> None:
    one, heard = looked
    for _ in range(3):
        one._look_for_steps(details(7))
    assert heard.hung_for == []


@pytest.mark.parametrize("work", [{"running": 1}, {"waiting": 1}], ids=str)
def test_one_with_work_is_hung_once_it_makes_no_steps(looked: Any, work: dict[str, int]) -> None:
    one, heard = looked
    one._look_for_steps(details(7, **work))
    one._look_for_steps(details(8, **work))
    assert heard.hung_for == [], "it gets on"
    one._look_for_steps(details(8, **work))
    assert len(heard.hung_for) == 1
