"""Which signal hits which process when: drawn from a seed, and done.

A frozen process is woken after longer than a worker may be silent, so that one that wakes is fenced off. A process that
ends by TERM is begun anew by the supervisor, as one that is killed.
"""

from __future__ import annotations

import asyncio
import random
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from tests.chaos.product import Product
from tests.stack import wait_for

KILL, FREEZE, TERM = "KILL", "STOP/CONT", "TERM"
WEIGHTS = {
    ("engine", KILL): 6,
    ("engine", FREEZE): 3,
    ("engine", TERM): 2,
    ("web", KILL): 4,
    ("web", FREEZE): 2,
    ("web", TERM): 2,
    ("recorder", KILL): 3,
    ("recorder", FREEZE): 1,
    ("recorder", TERM): 1,
    ("celery", KILL): 2,
    ("celery", TERM): 1,
    ("beat", KILL): 1,
    ("redis", KILL): 2,
    ("redis", TERM): 1,
    ("redis", FREEZE): 1,
}
FROZEN_S = (4.0, 6.5)
LEAVES_S = 10.0  # a web process that is told to end cuts its last streams by then (stopwaitsecs in supervisord.conf)
AT_ONCE = 0.4
"""So many events do not wait: they hit what is just getting up again, and the last one that stands. If all did, a slow
machine would do nothing but start processes."""
AGAIN_S = 90.0


@dataclass(frozen=True)
class Event:
    """`wait_s` after the one before; `at_once`: whether or not somebody could answer again by then."""

    program: str
    how: str
    wait_s: float
    frozen_s: float = 0.0
    at_once: bool = False

    @property
    def kind(self) -> str:
        return f"{self.program.partition('-')[0]} {self.how}"


def planned(
    rng: random.Random, count: int, *, engines: int, webs: int, every_s: float, only: Sequence[str] = ()
) -> list[Event]:
    """So many events, one of each kind among them as far as they go. `only`: what these programs are hit by."""
    weights = {kind: weight for kind, weight in WEIGHTS.items() if not only or kind[0] in only}
    kinds = list(weights)
    rng.shuffle(kinds)
    kinds.sort(key=lambda kind: kind[0] != "engine")
    drawn = kinds[:count] + rng.choices(list(weights), list(weights.values()), k=max(0, count - len(kinds)))
    rng.shuffle(drawn)
    found = []
    for program, how in drawn:
        several = {"engine": engines, "web": webs}.get(program, 0)
        name = f"{program}-{rng.randrange(several)}" if several else program
        frozen = rng.uniform(*FROZEN_S) if how == FREEZE else 0.0
        wait_s = rng.uniform(0.3, 2 * every_s - 0.3)
        found.append(Event(name, how, wait_s, frozen, at_once=rng.random() < AT_ONCE))
    return found


@dataclass
class Done:
    """What has happened: when (monotonic), until when the process was frozen, or was leaving."""

    event: Event
    at: float
    until: float = 0.0


@dataclass
class Trouble:
    """Makes the events happen, one after the other. One whose process is just not there waits for the next one."""

    product: Product
    events: list[Event]
    done: list[Done] = field(default_factory=list)

    async def make(self) -> None:
        waking = []
        for event in self.events:
            await asyncio.sleep(event.wait_s)
            if not event.at_once:
                await asyncio.to_thread(wait_for, self.product.serves, AGAIN_S, 0.2)
            number = {KILL: signal.SIGKILL, FREEZE: signal.SIGSTOP, TERM: signal.SIGTERM}[event.how]
            await asyncio.to_thread(wait_for, lambda: self.product.send(event.program, number), 60, 0.2)  # noqa: B023
            done = Done(event, time.monotonic())
            done.until = done.at + (LEAVES_S if event.kind == f"web {TERM}" else event.frozen_s)
            self.done.append(done)
            if event.how == FREEZE:
                waking.append(asyncio.create_task(self._wake(event)))
        await asyncio.gather(*waking)

    async def _wake(self, event: Event) -> None:
        await asyncio.sleep(event.frozen_s)
        await asyncio.to_thread(self.product.send, event.program, signal.SIGCONT)
