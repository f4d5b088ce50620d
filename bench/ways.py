"""Ways to choose a worker, over made workers and a made clock; one of them is the wire's own. For bench.routing.

`Simulation` keeps the events in order of time; a `Policy` is told of what arrives and what ends, and gives it to
workers. Knows neither what the requests are nor what is printed of them.
"""

from __future__ import annotations

import hashlib
import heapq
import itertools
import random
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import redis

from bench.made_workers import ROWS, Asked, MadeWorker, name_of_tenant
from engine import protocol
from engine.fairness import OUTPUT_COST
from engine.protocol import ChatMessage, Delta, Finished, Request, Started, SystemText, Taken, Tell, WorkerDetails

HINT_S = 0.001  # until a worker has heard of something, give or take a half
MODEL = "m"
CLOCK = "bench:clock"


class Simulation:
    def __init__(self, count: int, policy: Callable[[Simulation], Policy]) -> None:
        self.now = 0.0
        self.workers = [MadeWorker(number) for number in range(count)]
        self.left = 0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self.policy = policy(self)

    def at(self, seconds: float, what: Callable[[], None]) -> None:
        heapq.heappush(self._events, (seconds, next(self._numbers), what))

    def run(self, requests: list[Asked]) -> None:
        self.left = len(requests)
        for asked in requests:
            self.at(asked.at_s, partial(self.policy.arrived, asked))
        while self.left:
            self.now, _, what = heapq.heappop(self._events)
            what()

    def give(self, worker: MadeWorker, asked: Asked) -> None:
        asked.taken_s = self.now
        worker.add(asked)
        if not worker.stepping:
            self._step(worker)

    def _step(self, worker: MadeWorker) -> None:
        worker.stepping = worker.has_work()
        if worker.stepping:
            seconds, started, ended = worker.step()
            self.at(self.now + seconds, lambda: self._stepped(worker, started, ended))

    def _stepped(self, worker: MadeWorker, started: list[Asked], ended: list[Asked]) -> None:
        for asked in started:
            if asked.first_s < 0:  # else it was preempted meanwhile
                asked.first_s = self.now
                self.policy.started(asked)
        for asked in ended:
            asked.end_s = self.now
            self.left -= 1
            self.policy.ended(worker, asked)
        self._step(worker)


class Policy:
    """Hands a request over as it comes."""

    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation
        self.rng = random.Random(2)

    def choose(self, asked: Asked) -> MadeWorker:
        raise NotImplementedError

    def arrived(self, asked: Asked) -> None:
        self.simulation.give(self.choose(asked), asked)

    def started(self, asked: Asked) -> None: ...

    def ended(self, worker: MadeWorker, asked: Asked) -> None: ...


class Anybody(Policy):
    def choose(self, asked: Asked) -> MadeWorker:
        return self.rng.choice(self.simulation.workers)


class LeastLoaded(Policy):
    def choose(self, asked: Asked) -> MadeWorker:
        return min(self.simulation.workers, key=lambda worker: (worker.held, self.rng.random()))


class Sticky(Policy):
    def choose(self, asked: Asked) -> MadeWorker:
        return max(
            self.simulation.workers,
            key=lambda worker: hashlib.sha256(f"{asked.tenant} {worker.number}".encode()).digest(),
        )


class Octavo(Policy):
    """engine/wire.lua in a real server, and what engine/bus.py does around it."""

    client: redis.Redis

    def __init__(self, simulation: Simulation) -> None:
        super().__init__(simulation)
        self.client.flushall()
        self._requests: dict[str, Asked] = {}
        self._gone: list[str] = []
        self._look_at = [float("inf")] * len(simulation.workers)
        for worker in simulation.workers:
            self._beat(worker)

    def at_now(self) -> Any:
        pipe = self.client.pipeline(transaction=False)
        pipe.set(CLOCK, int(self.simulation.now * 1e6) + 10**15)
        return pipe

    def arrived(self, asked: Asked) -> None:
        request = Request(
            id=f"g{asked.number}",
            tenant=name_of_tenant(asked.tenant),
            model=MODEL,
            salt="s",
            system=[SystemText("x" * 4 * asked.prompt, "s")],
            messages=[ChatMessage("user", "x" * 4 * asked.own)],
        )
        self._requests[request.id] = asked
        pipe = self.at_now()
        pipe.fcall(*protocol.enqueue(request, max_queued=10**6, max_bytes=10**10))
        pipe.xrange(protocol.control_key(MODEL))
        pipe.delete(protocol.control_key(MODEL))
        hints: Any = pipe.execute()[-2]
        for _, fields in hints:
            named = fields.get(b"worker", b"").decode()
            for worker in self.simulation.workers:
                if named in ("", name_of(worker)):
                    heard_s = HINT_S * self.rng.uniform(0.5, 1.5)
                    self.simulation.at(self.simulation.now + heard_s, partial(self._take, worker))
                else:
                    self._look_within(worker, protocol.KEPT_S)

    def _take(self, worker: MadeWorker, before: Iterable[protocol.Call] = ()) -> None:
        """All that it gets, after these calls."""
        calls = list(before)
        while True:
            running = [name_of_tenant(tenant) for tenant in worker.active]
            room = ROWS - worker.held
            warm = [name_of_tenant(tenant) for tenant in worker.kept]
            pipe = self.at_now()
            for call in [*calls, protocol.take(name_of(worker), MODEL, room, running, warm)]:
                pipe.fcall(*call)
            reply = pipe.execute()[-1]
            calls.clear()
            taken = protocol.parse_taken(reply)
            if not isinstance(taken, Taken):
                break
            self.simulation.give(worker, self._requests[taken.id])
        wait_s = protocol.parse_wait_s(reply)
        if wait_s is not None:
            self._look_within(worker, wait_s)

    def _look_within(self, worker: MadeWorker, wait_s: float) -> None:
        at = self.simulation.now + wait_s
        if at < self._look_at[worker.number]:
            self._look_at[worker.number] = at
            self.simulation.at(at, lambda: self._look(worker, at))

    def _look(self, worker: MadeWorker, at: float) -> None:
        if self._look_at[worker.number] == at:
            self._look_at[worker.number] = float("inf")
            self._take(worker)

    def _beat(self, worker: MadeWorker) -> None:
        name = name_of(worker)
        details = WorkerDetails(id=name, model=MODEL, context=1, block_size=16, num_blocks=1, pid=1, steps=worker.steps)
        self._take(worker, [protocol.heartbeat(name, details)])
        phase = worker.number / len(self.simulation.workers) if not self.simulation.now else 0.0
        self.simulation.at(self.simulation.now + protocol.HEARTBEAT_S - phase, lambda: self._beat(worker))

    def started(self, asked: Asked) -> None:
        total = asked.prompt + asked.own
        event = Started(seq=0, prompt_tokens=total, cached_tokens=asked.prompt if asked.warm else 0)
        tell = Tell(f"g{asked.number}", 1, event, total - event.cached_tokens)
        self.at_now().fcall(*protocol.tell(f"w{asked.worker}", [tell])).execute()

    def ended(self, worker: MadeWorker, asked: Asked) -> None:
        name, own = f"g{asked.number}", name_of(worker)
        output = Tell(name, 1, Delta(seq=1, parts=[]), OUTPUT_COST * asked.output)
        end = protocol.finish(own, name, 1, Finished(seq=2, finish_reason="stop"))
        self._take(worker, [protocol.tell(own, [output]), end])
        self._gone += [protocol.generation_key(name), protocol.request_key(name)]
        if len(self._gone) > 500:
            self.client.delete(protocol.FINISHED, *self._gone)
            self._gone.clear()


def name_of(worker: MadeWorker) -> str:
    return f"w{worker.number}"


POLICIES: dict[str, type[Policy]] = {
    "octavo": Octavo,
    "random": Anybody,
    "least loaded": LeastLoaded,
    "sticky": Sticky,
}


def library() -> str:
    """The functions with the simulation's clock in place of the server's."""
    source = protocol.LIBRARY_SOURCE.read_text()
    real = "local time = redis.call('TIME')"
    assert source.count(real) == 1, "wire.lua asks for the time in one place"
    made = f"local us = tonumber(redis.call('GET', '{CLOCK}')); local time = {{math.floor(us / 1e6), us % 1e6}}"
    return source.replace(real, made)
