"""A worker's block table that is made up: plausible frames of any size, without an engine.

Sequences of several teams begin on shared prompts, grow, end and leave their blocks to the cache, and cached blocks
are given up for new ones; some are pinned, a few fenced, some lie in host memory. `frame` says what has changed since
the frame before, in the words of engine.occupancy_wire. For pages and their measurements; the engine's own frames come
from the engine.
"""

from __future__ import annotations

import random
from array import array
from collections import OrderedDict, deque
from dataclasses import dataclass, field

from engine import occupancy_wire as wire

COLUMNS = range(wire.WORDS)


@dataclass
class Sequence:
    number: int
    tenant: int
    prompt: int
    cached: int
    goal: int
    regions: tuple[int, int]
    tokens: int = 0
    blocks: list[int] = field(default_factory=list)
    said: int = 0


class MadePool:
    """`blocks` in the pool, `host_blocks` behind them; `running` sequences at most, of `length` own tokens at most."""

    def __init__(
        self,
        worker: str,
        blocks: int,
        tenants: list[str],
        *,
        host_blocks: int = 0,
        seed: int = 1,
        block_size: int = 16,
        running: int = 12,
        length: int = 600,
        at_ms: int = 1_790_000_000_000,
    ) -> None:
        self.worker, self.blocks, self.host_blocks, self.tenants = worker, blocks, host_blocks, tenants
        self.block_size, self.most_running, self.length = block_size, running, length
        self.at_ms, self.number, self.serial = at_ms, 0, 0
        self.random = random.Random(seed)
        total = blocks + host_blocks
        self.columns = [array("I", bytes(4 * total)) for _ in COLUMNS]
        self.refs = [0] * total
        self.free = deque(range(blocks))
        self.cached: OrderedDict[int, None] = OrderedDict()
        self.sequences: dict[int, Sequence] = {}
        self.touched: set[int] = set()
        self.gone: list[int] = []
        self.fences: list[int] = []
        self.host_at = 0
        self.waiting = [0] * len(tenants)
        self.service = [0.0] * len(tenants)
        self.counters = dict.fromkeys(
            ("prompt_tokens", "cached_tokens", "output_tokens", "preemptions", "evictions"), 0
        )
        preamble = self._prompt(0, 3, [], wire.PLATFORM)
        self.prompts = [
            preamble + self._prompt(tenant, 5 + 4 * (tenant % 3), preamble, wire.TEAM) for tenant in range(len(tenants))
        ]

    # --- blocks -------------------------------------------------------------------------------------------------------

    def _say(self, block: int, tenant: int, kind: int, filled: int, parent: int = -1, flags: int = 0) -> None:
        state = wire.USED if self.refs[block] else wire.CACHED
        a, b, parents, used = self.columns
        a[block] = state | flags | kind << wire.KIND_SHIFT | self.refs[block] << wire.REFS_SHIFT
        b[block] = tenant + 1 | filled << wire.FILLED_SHIFT
        parents[block] = parent + 1
        used[block] = self.at_ms // 1000
        self.touched.add(block)

    def _refer(self, block: int, by: int) -> None:
        self.refs[block] += by
        a, _, _, used = self.columns
        rest = a[block] & (wire.PINNED | wire.FENCED | 3 << wire.KIND_SHIFT)
        state = wire.USED if self.refs[block] else wire.CACHED
        a[block] = state | rest | self.refs[block] << wire.REFS_SHIFT
        used[block] = self.at_ms // 1000
        self.touched.add(block)
        if self.refs[block]:
            self.cached.pop(block, None)
        elif not a[block] & wire.PINNED:
            self.cached[block] = None

    def _take(self) -> int | None:
        if self.free:
            return self.free.popleft()
        if not self.cached:
            return None
        block, _ = self.cached.popitem(last=False)
        self.counters["evictions"] += 1
        if self.host_blocks:
            slot = self.blocks + self.host_at % self.host_blocks
            self.host_at += 1
            for column in self.columns:
                column[slot] = column[block]
            self.columns[0][slot] = wire.HOST | self.columns[0][block] & 3 << wire.KIND_SHIFT
            self.columns[2][slot] = 0
            self.touched.add(slot)
        return block

    def _prompt(self, tenant: int, count: int, before: list[int], kind: int) -> list[int]:
        made: list[int] = []
        for _ in range(count):
            block = self._take()
            assert block is not None, "a pool of so few blocks has no room for prompts"
            parent = (before + made)[-1] if before + made else -1
            self._say(block, tenant, kind, self.block_size, parent, wire.PINNED)
            made.append(block)
        return made

    # --- a step -------------------------------------------------------------------------------------------------------

    def step(self, passed_ms: int = 200, tokens: int = 6) -> None:
        """Every sequence goes on by about `tokens`; ended ones leave; new ones come."""
        self.at_ms += passed_ms
        for block in self.fences:
            self.columns[0][block] &= ~wire.FENCED
            self.touched.add(block)
        self.fences = [b for b in self.random.sample(range(self.blocks), 2) if self.refs[b]]
        for block in self.fences:
            self.columns[0][block] |= wire.FENCED
            self.touched.add(block)
        for sequence in list(self.sequences.values()):
            if sequence.tokens >= sequence.goal or not self._grow(sequence, self.random.randint(1, 2 * tokens)):
                self._end(sequence)
        while len(self.sequences) < self.most_running and self.random.random() < 0.7:
            if not self._begin():
                break
        self.waiting = [max(0, n + self.random.choice((-1, 0, 0, 1))) for n in self.waiting]

    def stir(self, count: int) -> None:
        """So many blocks change at once, as no engine's do: what a reader has to bear at most."""
        a, b = self.columns[:2]
        for block in self.random.sample(range(self.blocks), count):
            tenant = self.random.randrange(len(self.tenants))
            a[block] = wire.USED | wire.OWN << wire.KIND_SHIFT | self.random.randint(1, 9) << wire.REFS_SHIFT
            b[block] = tenant + 1 | self.random.randint(1, self.block_size) << wire.FILLED_SHIFT
            self.touched.add(block)

    def _begin(self) -> bool:
        tenant = min(int(self.random.paretovariate(1.2)) - 1, len(self.tenants) - 1)
        prompt = self.prompts[tenant]
        own = self.random.randint(self.block_size, self.length)
        self.serial += 1
        shared = len(prompt) * self.block_size
        begun = Sequence(
            number=self.serial,
            tenant=tenant,
            prompt=shared + own,
            cached=shared,
            goal=shared + own + self.random.randint(self.block_size, self.length),
            regions=(3 * self.block_size, shared),
            tokens=shared,
            blocks=list(prompt),
        )
        for block in prompt:
            self._refer(block, 1)
        self.sequences[begun.number] = begun
        self.counters["prompt_tokens"] += begun.prompt
        self.counters["cached_tokens"] += shared
        if self._grow(begun, own):
            return True
        self._end(begun)
        return False

    def _grow(self, sequence: Sequence, tokens: int) -> bool:
        size = self.block_size
        at = sequence.tokens
        sequence.tokens += tokens
        self.service[sequence.tenant] += tokens
        self.counters["output_tokens"] += tokens
        while len(sequence.blocks) * size < sequence.tokens:
            block = self._take()
            if block is None:
                self.counters["preemptions"] += 1
                sequence.tokens = at
                return False
            self.refs[block] = 1
            sequence.blocks.append(block)
        for index in range(at // size, len(sequence.blocks)):
            filled = min(max(sequence.tokens - index * size, 0), size)
            parent = sequence.blocks[index - 1] if index and filled == size else -1
            self._say(sequence.blocks[index], sequence.tenant, wire.OWN, filled, parent)
        return True

    def _end(self, sequence: Sequence) -> None:
        del self.sequences[sequence.number]
        self.gone.append(sequence.number)
        for block in reversed(sequence.blocks):
            self._refer(block, -1)

    # --- what is said -------------------------------------------------------------------------------------------------

    def figures(self) -> wire.Figures:
        a, b = self.columns[:2]
        of = [[0, 0, 0, 0, self.waiting[n]] for n in range(len(self.tenants))]
        counts = [0, 0, 0, 0]
        pinned = 0
        for word, owner in zip(a, b, strict=True):
            state = word & wire.STATE
            counts[state] += 1
            if state not in (wire.USED, wire.CACHED):
                continue
            row = of[(owner & 0xFFFF) - 1]
            row[0 if state == wire.USED else 1] += 1
            if word & wire.PINNED:
                row[2] += 1
                pinned += 1
        for sequence in self.sequences.values():
            of[sequence.tenant][3] += 1
        held = sum(len(sequence.blocks) for sequence in self.sequences.values())
        distinct = len({block for sequence in self.sequences.values() for block in sequence.blocks})
        return wire.Figures(
            used=counts[wire.USED],
            cached=counts[wire.CACHED],
            free=counts[wire.FREE] - self.host_blocks + counts[wire.HOST],
            pinned=pinned,
            host=counts[wire.HOST],
            running=len(self.sequences),
            waiting=sum(self.waiting),
            wasted_slots=sum(len(s.blocks) * self.block_size - s.tokens for s in self.sequences.values()),
            saved_blocks=held - distinct,
            of={tenant: (row[0], row[1], row[2], row[3], row[4]) for tenant, row in zip(self.tenants, of, strict=True)},
            service=dict(zip(self.tenants, self.service, strict=True)),
            counters=dict(self.counters),
        )

    def frame(self, whole: bool = False, figures: wire.Figures | None = None) -> tuple[wire.Head, bytes]:
        """The next frame: of all, or of what was touched since the one before."""
        whole = whole or self.number == 0
        blocks = array("I", sorted(self.touched))
        columns = (
            self.columns if whole else [blocks, *(array("I", [column[n] for n in blocks]) for column in self.columns)]
        )
        rows = []
        for sequence in self.sequences.values():
            at = 0 if whole else sequence.said
            rows.append(
                wire.Row(
                    number=sequence.number,
                    id=f"0199c0de-{sequence.number:04x}-7000-8000-{sequence.number * 7919:012x}",
                    tenant=sequence.tenant,
                    prompt=sequence.prompt,
                    cached=sequence.cached,
                    tokens=sequence.tokens,
                    regions=sequence.regions,
                    at=at,
                    blocks=sequence.blocks[at:],
                )
            )
            sequence.said = len(sequence.blocks)
        self.number += 1
        head = wire.Head(
            worker=self.worker,
            number=self.number,
            base=0 if whole else self.number - 1,
            at_ms=self.at_ms,
            block_size=self.block_size,
            blocks=self.blocks,
            host_blocks=self.host_blocks,
            tenants=self.tenants if whole else [],
            rows=rows,
            gone=[] if whole else self.gone,
            figures=figures or self.figures(),
        )
        self.touched, self.gone = set(), []
        return head, wire.compress(columns)

    def message(self, whole: bool = False, figures: wire.Figures | None = None) -> bytes:
        head, cells = self.frame(whole, figures)
        return wire.packed(wire.encode_head(head), cells)
