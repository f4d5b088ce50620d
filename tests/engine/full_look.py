"""The whole state of an engine's memory as a block table shows it, looked up anew each time: the oracle of frames."""

from __future__ import annotations

from collections import Counter
from typing import Any

from engine.llm_engine import LLMEngine
from engine.occupancy_wire import CACHED, FENCED, FREE, HOST, PINNED, USED, Row, Table
from engine.sequence import GONE

Cell = tuple[int, int, bool, bool, int, str | None, int, int, int]
"""State, references, pinned, fenced, kind, tenant, tokens, parent + 1, used."""


def cells_of(table: Table) -> list[Cell]:
    """What a reader of frames knows of every block and slot."""
    found: list[Cell] = []
    for a, b, parent, used in zip(*table.columns, strict=True):
        place = b & 0xFFFF
        tenant = table.tenants[place - 1] if place else None
        found.append((a & 3, a >> 8, bool(a & PINNED), bool(a & FENCED), a >> 4 & 3, tenant, b >> 16, parent, used))
    return found


def cells(engine: LLMEngine) -> list[Cell]:
    pool, cache, host, size = engine.pool, engine.cache, engine.cache.host, engine.block_size
    tables = Counter(block for sequence in engine.scheduler.running for block in sequence.block_table)
    filled: dict[int, int] = {}
    kinds: dict[int, int] = {}
    for sequence in engine.scheduler.running:
        for place, block in enumerate(sequence.block_table):
            kinds.setdefault(block, sequence.kind(place, size))
            if place >= sequence.num_hashed:
                filled[block] = min(max(sequence.num_computed - place * size, 0), size)
    found: list[Cell] = []
    for block in range(pool.num_blocks):
        refs, entry, owner = pool.refs[block], cache.entry_of(block), pool.owner[block]
        state = USED if refs else CACHED if pool.kept[block] else FREE
        kind = entry.kind if entry is not None else kinds.get(block, 0)
        tokens = filled.get(block, entry.size if entry is not None else 0)
        parent = entry.parent.block + 1 if entry is not None and entry.parent is not None else 0
        at = pool.used_at[block]
        used = 0 if at < 0 else int(at + engine.epoch_s)
        found.append((state, refs, pool.is_pinned(block), refs > tables[block], kind, owner, tokens, parent, used))
    for slot in range(pool.num_blocks, pool.num_blocks + (host.size if host is not None else 0)):
        assert host is not None
        entry = cache.entry_of(slot)
        if entry is None:
            found.append((FREE, 0, False, False, 0, None, 0, 0, 0))
            continue
        parent = entry.parent.block + 1 if entry.parent is not None else 0
        used = int(host.used_at(slot) + engine.epoch_s)
        found.append((HOST, 0, False, False, entry.kind, host.owner(slot), entry.size, parent, used))
    return found


def rows_of(table: Table) -> list[tuple[Any, ...]]:
    return sorted((*_row(row), table.tenants[row.tenant]) for row in table.rows.values())


def _row(row: Row) -> tuple[Any, ...]:
    assert row.at == 0
    return row.number, row.id, row.choice, row.prompt, row.cached, row.tokens, list(row.blocks)


def rows(engine: LLMEngine) -> list[tuple[Any, ...]]:
    return sorted(
        (s.arrival, s.request_id, s.index, s.prompt_len, s.num_cached, s.num_computed, s.block_table, s.tenant)
        for s in engine.scheduler.running
    )


def check_figures(engine: LLMEngine, table: Table) -> None:
    """That the counts of the last frame are those of the blocks and of the queues."""
    assert table.head is not None
    figures, size, found = table.head.figures, engine.block_size, cells(engine)
    running, waiting = engine.scheduler.counts()
    states = Counter(cell[0] for cell in found[: engine.num_blocks])
    assert (figures.used, figures.cached, figures.free) == (states[USED], states[CACHED], states[FREE])
    assert figures.host == sum(cell[0] == HOST for cell in found)
    assert figures.pinned == sum(cell[2] for cell in found)
    assert (figures.running, figures.waiting) == (sum(running.values()), sum(waiting.values()))
    held = [block for s in engine.scheduler.running for block in s.block_table if block != GONE]
    assert figures.saved_blocks == len(held) - len(set(held))
    slots = [len(s.block_table) * size - s.num_tokens for s in engine.scheduler.running]
    assert figures.wasted_slots == sum(max(0, count) for count in slots)
    of: dict[str, tuple[int, ...]] = {}
    for tenant in {cell[5] for cell in found if cell[5] is not None and cell[0] != HOST} | set(running) | set(waiting):
        mine = [cell for cell in found if cell[5] == tenant]
        counts = [sum(cell[0] == state for cell in mine) for state in (USED, CACHED)]
        of[tenant] = *counts, sum(cell[2] for cell in mine), running.get(tenant, 0), waiting.get(tenant, 0)
    assert figures.of == of


def check(engine: LLMEngine, table: Table) -> None:
    """That a reader of the frames knows what a full look shows."""
    assert cells_of(table) == cells(engine)
    assert rows_of(table) == rows(engine)
    check_figures(engine, table)
