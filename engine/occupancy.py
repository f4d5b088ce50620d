"""What a worker says of its block table: whole frames, and what has changed since the one before.

Owns the columns as they were said last and the tables of the sequences that ran then; a frame is made between two steps
in the engine's own thread. Promises:

- frames applied to an `occupancy_wire.Table`, one after the other, give what a full look at the pool, the prefix cache,
  the host pool and the scheduler would give at the moment of the last one;
- a change costs what has changed and what runs, whatever the pool's size: the pool says which blocks were touched, a
  sequence how much of its table has been told. A whole frame costs a copy of the columns;
- nothing is changed in the engine but these two marks.

Encoding and compressing are somebody else's, in another thread. Knows no Redis and no clock.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from engine import snapshot
from engine.occupancy_wire import (
    CACHED,
    FENCED,
    FILLED_SHIFT,
    FREE,
    HOST,
    KIND_SHIFT,
    MOST_TENANTS,
    PINNED,
    REFS_SHIFT,
    UNKNOWN,
    USED,
    WORDS,
    Figures,
    Head,
    Row,
)
from engine.sequence import GONE, Sequence, SequenceState

if TYPE_CHECKING:
    from engine.llm_engine import LLMEngine

EVERY_S = 0.2
SHARE = 0.01  # of the engine loop's time, at most
CHANGES = 255
"""Frames between two whole ones at most: who comes later has to read all since the last."""
WHOLE_EVERY_MS = 60_000
TENANT_MASK = 2**FILLED_SHIFT - 1
MOST_REFS = 2 ** (32 - REFS_SHIFT) - 1
NOT_TOTALS = ("wasted_slots", "host_blocks")
"""Counters that say how it is now: figures of their own."""


@dataclass(slots=True)
class Frame:
    """`anew`: nothing said before may be kept."""

    head: Head
    columns: list[array[int]]
    anew: bool = False


@dataclass(slots=True)
class _Said:
    """Of a sequence that runs: its computed tokens and its table in the last frame."""

    tokens: int
    blocks: list[int]


class Pace:
    """How long after a frame the next one may be made: five a second, and so that all take a small share of the time.

    One that took unusually long counts for little: the interpreter looked for garbage meanwhile, or a team was
    forgotten. Several of them do count.
    """

    def __init__(self) -> None:
        self._usual_s = 0.0

    def wait_s(self, took_s: float) -> float:
        self._usual_s += (min(took_s, 8 * self._usual_s + 0.001) - self._usual_s) / 2
        # Those who encode and compress it spend up to as long again.
        return max(EVERY_S, 2 * self._usual_s / SHARE)


class Occupancy:
    """`name` makes a generation's id of a request's."""

    def __init__(self, engine: LLMEngine, *, worker: str, name: Callable[[str], str] = str) -> None:
        self._engine = engine
        self._worker = worker
        self._name = name
        host = engine.cache.host
        self._host_blocks = host.size if host is not None else 0
        self._total = engine.num_blocks + self._host_blocks
        zeros = bytes(4 * self._total)
        self._columns = [array("I", zeros) for _ in range(WORDS)]
        self._tables = array("I", bytes(4 * engine.num_blocks))
        """How many tables hold a block."""
        self._held = 0  # by all tables, counted in each
        self._distinct = 0
        self._places: dict[str, int] = {}  # of tenants
        self._pinned: list[int] = []  # blocks, by the tenant's place
        self._rows: dict[Sequence, _Said] = {}
        self._number = 0
        self._changes = 0
        self._whole_at = 0
        self._said: tuple[object, ...] = ()

    def frame(self, at_ms: int, *, whole: bool = False, anew: bool = False) -> Frame | None:
        """What is to be said now; None when nothing has changed. `anew`: what was said before may name who is gone."""
        engine, known = self._engine, len(self._places)
        rows, gone, loose = self._follow_sequences()
        changed = self._follow_blocks(loose)
        figures = self._figures()
        said = figures.running, figures.waiting, figures.of
        due = not self._number or self._changes >= CHANGES or at_ms - self._whole_at >= WHOLE_EVERY_MS
        if not (rows or gone or changed or whole or anew or not self._number or said != self._said):
            return None
        self._said = said
        whole = whole or anew or due or len(self._places) >= MOST_TENANTS
        if whole:
            self._drop_tenants()
            rows = [self._row(sequence) for sequence in self._rows]
            gone, known = [], 0
            columns = [column[:] for column in self._columns]
            self._changes, self._whole_at = 0, at_ms
        else:
            columns = [
                array("I", changed),
                *(array("I", [column[block] for block in changed]) for column in self._columns),
            ]
            self._changes += 1
        self._number += 1
        head = Head(
            worker=self._worker,
            number=self._number,
            base=0 if whole else self._number - 1,
            at_ms=at_ms,
            block_size=engine.block_size,
            blocks=engine.num_blocks,
            host_blocks=self._host_blocks,
            tenants=list(self._places)[known:],
            rows=rows,
            gone=gone,
            figures=figures,
        )
        return Frame(head, columns, anew)

    # --- sequences ------------------------------------------------------------------------------------------------

    def _follow_sequences(self) -> tuple[list[Row], list[int], dict[int, tuple[int, int]]]:
        """Rows that have changed, and numbers of those that are gone. Then what only a table says of its blocks:
        block -> (tokens that it holds, kind), where that may have changed.
        """
        rows: list[Row] = []
        gone: list[int] = []
        loose: dict[int, tuple[int, int]] = {}
        for sequence in [s for s in self._rows if s.state is not SequenceState.RUNNING]:
            self._leave(sequence, gone)
        for sequence in self._engine.scheduler.running:
            said = self._rows.get(sequence)
            told, tokens, table = sequence.num_told, sequence.num_computed, sequence.block_table
            if said is not None and not told:  # it has left and come back, or may have
                self._leave(sequence, gone)
                said = None
            if said is None:
                self._rows[sequence] = _Said(tokens, table[:])
                self._count(table, 1)
                sequence.num_told = len(table)
                rows.append(self._row(sequence))
                self._look_at_places(sequence, 0, 0, loose)
            elif tokens != said.tokens or told != len(table) or told != len(said.blocks):
                if told != len(table) or told != len(said.blocks):
                    self._count(said.blocks[told:], -1)
                    said.blocks[told:] = fresh = table[told:]
                    self._count(fresh, 1)
                    sequence.num_told = len(table)
                else:
                    fresh = []
                rows.append(Row(number=sequence.arrival, tokens=tokens, at=told, blocks=fresh))
                self._look_at_places(sequence, told, said.tokens, loose)
                said.tokens = tokens
        self._engine.pool.touched.update(loose)
        return rows, gone, loose

    def _leave(self, sequence: Sequence, gone: list[int]) -> None:
        self._count(self._rows.pop(sequence).blocks, -1)
        gone.append(sequence.arrival)

    def _row(self, sequence: Sequence) -> Row:
        public = min(sequence.public_until, sequence.prompt_len)
        return Row(
            number=sequence.arrival,
            id=self._name(sequence.request_id),
            tenant=self._place(sequence.tenant),
            choice=sequence.index,
            prompt=sequence.prompt_len,
            cached=sequence.num_cached,
            tokens=sequence.num_computed,
            regions=(public, max(public, min(sequence.private_from, sequence.prompt_len))),
            blocks=sequence.block_table[:],
        )

    def _count(self, blocks: list[int], change: int) -> None:
        """These are in one table more, or in one less."""
        tables, alone = self._tables, max(change, 0)
        for block in blocks:
            if block != GONE:
                tables[block] += change
                self._held += change
                if tables[block] == alone:
                    self._distinct += change

    def _look_at_places(self, sequence: Sequence, told: int, tokens: int, loose: dict[int, tuple[int, int]]) -> None:
        """Of those behind its findable blocks: the ones that have come since `told`, or filled since `tokens`."""
        size, table = self._engine.block_size, sequence.block_table
        computed, hashed = sequence.num_computed, sequence.num_hashed
        filling = range(max(hashed, tokens // size), min(-(-computed // size), told))
        for places in (filling, range(max(hashed, told), len(table))):
            for place in places:
                if (block := table[place]) != GONE:
                    loose[block] = min(max(computed - place * size, 0), size), sequence.kind(place, size)

    def _all_loose(self) -> dict[int, tuple[int, int]]:
        """The same of all that run: for the few blocks that changed and whose sequences did not."""
        loose: dict[int, tuple[int, int]] = {}
        size = self._engine.block_size
        for sequence in self._engine.scheduler.running:
            for place in range(sequence.num_hashed, len(sequence.block_table)):
                if (block := sequence.block_table[place]) != GONE:
                    filled = min(max(sequence.num_computed - place * size, 0), size)
                    loose[block] = filled, sequence.kind(place, size)
        return loose

    # --- blocks ---------------------------------------------------------------------------------------------------

    def _follow_blocks(self, loose: dict[int, tuple[int, int]]) -> list[int]:
        """Bring the columns up to date where the pool was touched; the blocks of which something has changed."""
        engine = self._engine
        pool, cache, size, epoch = engine.pool, engine.cache, engine.block_size, engine.epoch_s
        first, second, third, fourth = self._columns
        pinned, changed, complete = self._pinned, list[int](), False
        for block in sorted(pool.touched):
            entry = cache.entry_of(block)
            a = b = parent = used = 0
            if block >= pool.num_blocks:
                if entry is not None:
                    assert cache.host is not None
                    owner: str | None = cache.host.owner(block)
                    used_at = cache.host.used_at(block)
                    a = HOST
                    filled, kind = entry.size, entry.kind
                else:
                    owner, used_at, filled, kind = None, -1.0, 0, UNKNOWN
            else:
                owner, used_at, refs = pool.owner[block], pool.used_at[block], pool.refs[block]
                filled, kind = (entry.size, entry.kind) if entry is not None else (0, UNKNOWN)
                if refs:
                    a = USED | min(refs, MOST_REFS) << REFS_SHIFT
                    if refs > self._tables[block]:
                        a |= FENCED
                    if entry is None or entry.size < size:
                        if block not in loose and not complete:
                            loose, complete = self._all_loose(), True
                        told = loose.get(block)
                        if told is not None:
                            filled = told[0]
                            kind = kind if entry is not None else told[1]
                else:
                    a = CACHED if entry is not None else FREE
                if pool.is_pinned(block):
                    a |= PINNED
            if owner is not None:
                a |= kind << KIND_SHIFT
                b = filled << FILLED_SHIFT | self._place(owner) + 1
            if entry is not None and entry.parent is not None:
                parent = entry.parent.block + 1
            if used_at >= 0:
                used = int(used_at + epoch)
            if (a, b, parent, used) == (first[block], second[block], third[block], fourth[block]):
                continue
            if first[block] & PINNED:
                pinned[(second[block] & TENANT_MASK) - 1] -= 1
            if a & PINNED:
                pinned[(b & TENANT_MASK) - 1] += 1
            first[block], second[block], third[block], fourth[block] = a, b, parent, used
            changed.append(block)
        pool.touched.clear()
        return changed

    def _place(self, tenant: str) -> int:
        place = self._places.get(tenant)
        if place is None:
            place = self._places[tenant] = len(self._places)
            self._pinned.append(0)
        return place

    def _drop_tenants(self) -> None:
        """Forget those that nothing is said of any more; the others move up."""
        seconds = np.frombuffer(self._columns[1], np.uint32)
        seen = np.bincount(seconds & TENANT_MASK, minlength=len(self._places) + 1)[1:] > 0
        for sequence in self._rows:
            seen[self._place(sequence.tenant)] = True
        if seen.all():
            return
        moved = np.zeros(len(seen) + 1, np.uint32)
        moved[1:][seen] = np.arange(1, seen.sum() + 1)
        seconds[:] = moved[seconds & TENANT_MASK] | (seconds & ~np.uint32(TENANT_MASK))
        kept = [(tenant, self._pinned[place]) for tenant, place in self._places.items() if seen[place]]
        self._places = {tenant: place for place, (tenant, _) in enumerate(kept)}
        self._pinned = [count for _, count in kept]

    # --- figures --------------------------------------------------------------------------------------------------

    def _figures(self) -> Figures:
        engine = self._engine
        pool, host = engine.pool, engine.cache.host
        running, waiting = engine.scheduler.counts()
        of = {}
        for tenant in sorted(pool.blocks_of.keys() | running.keys() | waiting.keys()):
            used = pool.used_of.get(tenant, 0)
            place = self._places.get(tenant)
            pinned = self._pinned[place] if place is not None else 0
            of[tenant] = (
                used,
                pool.blocks_of.get(tenant, 0) - used,
                pinned,
                running.get(tenant, 0),
                waiting.get(tenant, 0),
            )
        counters = snapshot.counters(engine)
        return Figures(
            used=pool.num_used,
            cached=pool.num_cached,
            free=pool.num_free,
            pinned=pool.num_pinned,
            host=len(host) if host is not None else 0,
            running=sum(running.values()),
            waiting=sum(waiting.values()),
            wasted_slots=int(counters["wasted_slots"]),
            saved_blocks=self._held - self._distinct,
            of=of,
            service={tenant: round(service, 1) for tenant, service in engine.scheduler.fairness.of_active().items()},
            counters={name: value for name, value in counters.items() if name not in NOT_TOTALS},
        )
