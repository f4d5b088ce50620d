"""What a worker says of the chats that somebody looks at: the engine's look at their memory, a few times a second.

Owns which chats are watched and what was said of each. Promises: where nobody looks, nothing is done; otherwise it
takes a bounded share of the engine loop's time, and little at once, however many look, and looks at each in its turn;
what has not changed is said again only now and then, so that who looks knows that we live. Knows no Redis.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

import msgspec

from engine.protocol import Memory, MemoryRun, Watch

if TYPE_CHECKING:
    from engine.bus import Bus
    from engine.llm_engine import LLMEngine

EVERY_S = 0.25
SHARE = 0.01  # of the engine loop's time, at most
AT_ONCE_S = 0.002  # between two steps, and then the look that is under way
AGAIN_S = 4.0


class Running(Protocol):
    """What is needed of a generation that this worker runs."""

    id: str
    seq: int


class WorkerMemory:
    def __init__(self, engine: LLMEngine, bus: Bus, worker: str) -> None:
        self._engine = engine
        self._bus = bus
        self._worker = worker
        self._turns: deque[Watch] = deque()  # what is watched; the next look is at the first
        self._said: dict[Watch, tuple[Memory, float]] = {}
        self._look_at = 0.0

    def watch(self, watches: list[Watch]) -> None:
        """These are looked at from now on, and no others. A new one is told of at once; the turns of the others stay,
        as looks come, go and are renewed too often for each to have had its own in between."""
        wanted, known = set(watches), set(self._turns)
        new = [watch for watch in watches if watch not in known]
        self._turns = deque([*new, *(watch for watch in self._turns if watch in wanted)])
        self._said = {watch: said for watch, said in self._said.items() if watch in wanted}
        if new:
            self._look_at = 0.0

    def show(self, runs: Mapping[str, Running]) -> None:
        """Between two steps: say what has changed, unless it is too early."""
        if not self._turns:
            return
        now = time.monotonic()
        if now < self._look_at:
            return
        news = {}
        for _ in range(len(self._turns)):
            watch = self._turns[0]
            self._turns.rotate(-1)
            memory = self._look(watch, runs)
            said, at = self._said.get(watch, (None, 0.0))
            if said is None or now - at > AGAIN_S or msgspec.structs.replace(memory, at_ms=said.at_ms) != said:
                self._said[watch] = memory, now
                news[watch] = memory
            if time.monotonic() - now > AT_ONCE_S:
                break
        if news:
            self._bus.remember(news)
        # The bus's thread spends about as long again on encoding it.
        cost = 2 * (time.monotonic() - now)
        self._look_at = now + max(EVERY_S, cost / SHARE)

    def _look(self, watch: Watch, runs: Mapping[str, Running]) -> Memory:
        fields = self._engine.chats.look(watch.tenant, watch.conversation, watch.prompt or watch.tenant)
        name, _, _ = fields.pop("request_id", "").rpartition("/")
        run = runs.get(name)
        told = [
            MemoryRun(kind, chats, pinned, host, since, blocks)
            for kind, chats, pinned, host, since, blocks in fields.pop("runs")
        ]
        return Memory(
            worker=self._worker,
            at_ms=int(time.time() * 1000),
            runs=told,
            response=name if run is not None else "",
            seq=run.seq - 1 if run is not None else -1,
            **fields,
        )
