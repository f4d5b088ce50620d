"""Made workers for bench.routing: engines without a model whose steps take what the real one's were measured to take.

A worker has rows, and keeps the prompts of tenants, least recently used out first, up to so many tokens. A step gives
every row that decodes a token, and computes a chunk of one prompt beside them. What waits inside a worker for a row
goes by its tenant's service here, as in the real scheduler; so does who is preempted for a tenant that runs nothing.
"""

from __future__ import annotations

import heapq
from collections import Counter, OrderedDict
from dataclasses import dataclass, field

from engine.fairness import OUTPUT_COST, PROMPT_COST, Fairness

# docs/LOG.md, 29 November 2026, SmolLM2-135M on two cores: steps of 1, 4 and 16 sequences at 900 tokens take 4.24, 6.68
# and 17.23 ms, and prompts are computed at 3,090 tokens a second.
STEP_S, DECODE_S, PREFILL_S = 0.0034, 0.00087, 1 / 3090
ROWS = 16
CHUNK = 256
MAX_STEP_S = 0.1  # the worker's own limit of a step beside decodes
# Half of a pool of 1 GiB, which is what pins may have, at 23,040 bytes a token.
WARM_TOKENS = (1 << 30) // 23040 // 2


@dataclass(slots=True)
class Asked:
    """A request: `prompt` tokens that its tenant's requests share, `own` ones behind them, `output` to be answered."""

    number: int
    at_s: float
    tenant: int
    prompt: int
    own: int
    output: int
    taken_s: float = -1.0
    first_s: float = -1.0
    end_s: float = -1.0
    warm: bool = False
    worker: int = -1
    done: int = 0
    """tokens of the answer that were there when it was last preempted"""


@dataclass(slots=True)
class Prefill:
    asked: Asked
    left: int


@dataclass
class MadeWorker:
    """`step` computes one and says what came of it; the caller keeps the clock."""

    number: int
    warm_tokens: int = WARM_TOKENS
    kept: OrderedDict[int, int] = field(default_factory=OrderedDict)
    """tenant -> tokens of its prompt, the least recently used first"""
    waiting: dict[int, list[Asked]] = field(default_factory=dict)
    prefills: list[Prefill] = field(default_factory=list)
    decodes: list[tuple[int, int, Asked]] = field(default_factory=list)  # by the step in which they end
    fairness: Fairness = field(default_factory=Fairness)
    active: dict[int, int] = field(default_factory=dict)  # tenant -> its requests here
    steps: int = 0
    busy_s: float = 0.0
    stepping: bool = False
    computed: int = 0  # prompt tokens

    @property
    def held(self) -> int:
        return sum(self.active.values())

    def add(self, asked: Asked) -> None:
        asked.worker = self.number
        self.active[asked.tenant] = self.active.get(asked.tenant, 0) + 1
        self.fairness.enter(name_of_tenant(asked.tenant))
        self.waiting.setdefault(asked.tenant, []).append(asked)

    def has_work(self) -> bool:
        return bool(self.active)

    def step(self) -> tuple[float, list[Asked], list[Asked]]:
        """How long it takes; whose first token it brings, and whose last."""
        self._admit()
        self.steps += 1
        decoding = len(self.decodes)
        seconds = STEP_S + DECODE_S * decoding
        started = []
        if self.prefills:
            now = min(self.prefills, key=lambda prefill: self._service(prefill.asked.tenant))
            most = CHUNK if not decoding else max(16, min(CHUNK, int((MAX_STEP_S - seconds) / PREFILL_S)))
            count = min(now.left, most)
            now.left -= count
            self.computed += count
            seconds += PREFILL_S * count
            self.fairness.charge(name_of_tenant(now.asked.tenant), PROMPT_COST * count)
            if not now.left:
                self.prefills.remove(now)
                self._keep(now.asked)
                started.append(now.asked)
        for _, _, asked in self.decodes:
            self.fairness.charge(name_of_tenant(asked.tenant), OUTPUT_COST)
        ended = []
        for asked in started:
            heapq.heappush(self.decodes, (self.steps + asked.output - asked.done - 1, asked.number, asked))
        while self.decodes and self.decodes[0][0] <= self.steps:
            asked = heapq.heappop(self.decodes)[2]
            ended.append(asked)
            self.active[asked.tenant] -= 1
            if not self.active[asked.tenant]:
                del self.active[asked.tenant]
                self.fairness.leave(name_of_tenant(asked.tenant))
        self.busy_s += seconds
        return seconds, started, ended

    def _admit(self) -> None:
        while (tenant := next(filter(self._fits, sorted(self.waiting, key=self._service)), None)) is not None:
            asked = self.waiting[tenant].pop(0)
            if not self.waiting[tenant]:
                del self.waiting[tenant]
            asked.warm = tenant in self.kept
            if asked.warm:
                self.kept.move_to_end(tenant)
            self.prefills.append(Prefill(asked, asked.own + asked.done + (0 if asked.warm else asked.prompt)))

    def _fits(self, tenant: int) -> bool:
        return len(self.prefills) + len(self.decodes) < ROWS or self._makes_room(tenant)

    def _service(self, tenant: int) -> float:
        return self.fairness.service(name_of_tenant(tenant))

    def _makes_room(self, tenant: int) -> bool:
        """Preempt the newest answer of the tenant that is ahead of all, for one that runs nothing and is not ahead."""
        running = Counter(one.tenant for one in self._running())
        if running[tenant]:
            return False
        richest = max((one for one, count in running.items() if count > 1), key=self._service, default=None)
        if richest is None or self._service(richest) < self._service(tenant):
            return False
        asked = max(
            (one for one in self._running() if one.tenant == richest), key=lambda one: (one.taken_s, one.number)
        )
        self.prefills = [prefill for prefill in self.prefills if prefill.asked is not asked]
        for end, _, one in self.decodes:
            if one is asked:
                asked.done = asked.output - 1 - (end - self.steps)
        self.decodes = [one for one in self.decodes if one[2] is not asked]
        heapq.heapify(self.decodes)
        self.waiting.setdefault(richest, []).insert(0, asked)
        return True

    def _running(self) -> list[Asked]:
        return [prefill.asked for prefill in self.prefills] + [one[2] for one in self.decodes]

    def _keep(self, asked: Asked) -> None:
        self.kept[asked.tenant] = asked.prompt
        self.kept.move_to_end(asked.tenant)
        while sum(self.kept.values()) > self.warm_tokens:
            self.kept.popitem(last=False)


def name_of_tenant(tenant: int) -> str:
    return f"t{tenant}"


def seconds_of(asked: Asked, *, warm: bool) -> float:
    """What it takes of a worker all of whose rows are busy."""
    prompt = asked.own + (0 if warm else asked.prompt)
    return PREFILL_S * prompt + asked.output * (STEP_S / ROWS + DECODE_S)
