"""Whose turn it is to be looked at, where many look: by a clock that moves as the looks cost, without engine or bus."""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest

from engine import worker_memory
from engine.protocol import Memory, Watch
from engine.worker_memory import AGAIN_S, AT_ONCE_S, EVERY_S, SHARE, WorkerMemory

LOOK_S = 0.0003
AT_ONCE = int(AT_ONCE_S / LOOK_S) + 1


class Looks:
    """In place of engine, bus and time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        self.told: dict[Watch, list[float]] = {}
        self.chats = SimpleNamespace(look=self._look)
        clock = SimpleNamespace(monotonic=lambda: self.now, time=lambda: self.now)
        monkeypatch.setattr(worker_memory, "time", clock)

    def _look(self, tenant: str, conversation: str, prompt: str) -> dict[str, Any]:
        self.now += LOOK_S
        return {"state": "new", "block_size": 16, "block_bytes": 1, "runs": [], "tokens": 0, "length": 0}

    def remember(self, memories: dict[Watch, Memory]) -> None:
        for watch in memories:
            self.told.setdefault(watch, []).append(self.now)

    def longest_silence(self, watch: Watch) -> float:
        times = [*self.told[watch], self.now]
        return max(later - earlier for earlier, later in pairwise(times))


def watches(count: int) -> list[Watch]:
    return [Watch("t", f"c{number}", "") for number in range(count)]


def test_none_of_many_is_passed_over_however_often_the_looks_are_renewed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Redis gives them in the order in which they were renewed, another one with each heartbeat."""
    looks = Looks(monkeypatch)
    memory = WorkerMemory(looks, looks, "w")  # type: ignore[arg-type]
    many = watches(64)
    began, beat, longest = looks.now, 0, 0.0
    while looks.now < began + 40:
        if looks.now >= began + beat:
            beat += 1
            memory.watch(many[beat % 5 :] + many[: beat % 5])
        before = looks.now
        memory.show({})
        longest = max(longest, looks.now - before)
        looks.now += 0.02
    round_s = len(many) * 2 * LOOK_S / SHARE
    assert set(looks.told) == set(many)
    assert longest <= AT_ONCE_S + LOOK_S
    assert max(map(looks.longest_silence, many)) < AGAIN_S + round_s + 1


def test_a_new_look_comes_first_and_one_that_has_ended_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = Looks(monkeypatch)
    memory = WorkerMemory(looks, looks, "w")  # type: ignore[arg-type]
    *old, new = watches(2 * AT_ONCE + 1)
    memory.watch(old)
    memory.show({})
    assert list(looks.told) == old[:AT_ONCE]
    memory.watch([*old[AT_ONCE:], new])
    memory.show({})
    assert list(looks.told) == [*old[:AT_ONCE], new, *old[AT_ONCE:-1]]
    looks.now += EVERY_S + AT_ONCE * 2 * LOOK_S / SHARE
    memory.show({})
    assert list(looks.told) == [*old[:AT_ONCE], new, *old[AT_ONCE:]]
    memory.watch([])
    looks.now += 100
    told = {watch: list(times) for watch, times in looks.told.items()}
    memory.show({})
    assert looks.told == told
