"""What a team may see of a worker's block table: its own blocks, and nothing that others cause.

A pure function of a table and a tenant. Two tables that differ only in what other tenants hold, run, pay for or wait
for give the same view, to the byte. So

- blocks are the team's own, and those that its own build on. They have no physical numbers: they are numbered in the
  order in which they are told, which follows from the team's own sequences and prefixes alone;
- the platform's preamble is shared by everybody, and whoever came first pays for it. It is shown where something of the
  team builds on it, with what follows from that alone: neither its payer, its references, its pins nor its last use;
- references are counted among the team's own running sequences;
- there is no time of a frame, no number of one, no total of the pool, and no sequence number, which counts everybody's.

What remains is what happens to the team's own: that a block of it is let go tells that room was needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import groupby
from typing import Literal, NamedTuple

import msgspec

from engine.occupancy_wire import (
    FILLED_SHIFT,
    FREE,
    HOST,
    KIND_SHIFT,
    OWN,
    PINNED,
    PLATFORM,
    STATE,
    TEAM,
    Row,
    Table,
)  # fmt: skip

Kind = Literal["platform", "team", "own"]
NAMES: dict[int, Kind] = {PLATFORM: "platform", TEAM: "team", OWN: "own"}
KIND = 3
OWNER = 2**FILLED_SHIFT - 1
NOWHERE = (2**31, 0)


class Run(msgspec.Struct, frozen=True, omit_defaults=True):
    """Neighbouring blocks of which the same can be said.

    `held`: by how many of the team's running sequences; 0: it is kept. `room`: slots that hold no token yet. `since`:
    seconds of the Unix epoch, of what is kept: when its last sequence let go of it.
    """

    kind: Kind
    held: int = 0
    room: int = 0
    pinned: bool = False
    host: bool = False
    since: int = 0
    blocks: int = 1


class Sequence(msgspec.Struct, frozen=True, omit_defaults=True):
    """`id`: the generation's. `cached`: prompt tokens that were found and did not have to be computed, where that was
    more than the platform's. `table`: its logical blocks in order, as (first, how many) neighbouring blocks of the
    view, counted from 0; first -1: they lie behind the model's window and are gone."""

    id: str
    choice: int = 0
    prompt: int = 0
    cached: int = 0
    tokens: int = 0
    table: list[tuple[int, int]] = []


class View(msgspec.Struct, frozen=True):
    """`cells` are first the `instructions` (the platform's and the team's), then what sequences have of their own, then
    what is kept of earlier ones, the newest first. `used`, `kept` and `host` add up to them. `saved`: blocks that
    running sequences would need more without sharing; `room`: slots of theirs without a token."""

    block_size: int
    running: int
    waiting: int
    used: int
    kept: int
    host: int
    saved: int
    room: int
    instructions: int
    cells: list[Run]
    sequences: list[Sequence]


class _Sort(NamedTuple):
    """What orders siblings: of a block and all that builds on it."""

    pins: int = 0
    rank: int = 0
    blocks: int = 0
    first: tuple[int, int] = NOWHERE
    what: int = 0


class _Block:
    __slots__ = ("children", "filled", "first", "held", "host", "kind", "pinned", "since", "sort", "up")

    def __init__(self, kind: int, up: int, filled: int = 0) -> None:
        self.kind = kind
        self.up = up  # the block that it builds on, by its physical number; -1: none that is known
        self.filled = filled
        self.held = 0
        self.first = NOWHERE  # the first of the team's sequences that holds it, and where
        self.pinned = False
        self.host = False
        self.since = 0
        self.children: list[int] = []
        self.sort = _Sort()

    @property
    def look(self) -> tuple[int, int, int, bool, bool, int]:
        """What is said of it, but for its place."""
        return self.kind, self.held, self.filled, self.pinned, self.host, self.since


def view(table: Table, tenant: str) -> View | None:
    """None of a table that has not come yet."""
    head = table.head
    if head is None:
        return None
    size = head.block_size
    place = table.tenants.index(tenant) if tenant in table.tenants else -1
    rows = sorted((row for row in table.rows.values() if row.tenant == place >= 0), key=lambda row: row.number)
    blocks = _blocks(table, rows, place, size)
    shared = {number for number, block in blocks.items() if block.kind != OWN}
    cells = _in_order(blocks, shared, lambda block: 0)
    instructions = len(cells)
    running = [number for number, block in blocks.items() if block.kind == OWN and block.held]
    cells += sorted(running, key=lambda number: blocks[number].first)
    kept = {number for number, block in blocks.items() if block.kind == OWN and not block.held}
    cells += _in_order(blocks, kept, lambda block: -block.since)
    at = {number: cell for cell, number in enumerate(cells)}
    told = head.figures.of.get(tenant)
    held = [block.held for block in blocks.values() if block.held]
    host = sum(block.host for block in blocks.values())
    return View(
        block_size=size,
        running=len(rows),
        waiting=told[4] if told is not None else 0,
        used=len(held),
        kept=len(blocks) - len(held) - host,
        host=host,
        saved=sum(held) - len(held),
        room=sum(max(0, sum(block >= 0 for block in row.blocks) * size - _behind(row, size)) for row in rows),
        instructions=instructions,
        cells=[
            Run(NAMES[kind], held, size - filled, pinned, host, since, len(list(same)))
            for (kind, held, filled, pinned, host, since), same in groupby(blocks[number].look for number in cells)
        ],
        sequences=[_sequence(row, at) for row in rows],
    )


def _behind(row: Row, size: int) -> int:
    """Tokens in the blocks that a sequence still has."""
    return row.tokens - size * sum(block < 0 for block in row.blocks)


def _sequence(row: Row, at: dict[int, int]) -> Sequence:
    table: list[tuple[int, int]] = []
    for block in row.blocks:
        cell = at[block] if block >= 0 else -1
        first, count = table[-1] if table else (-2, 0)
        if table and (cell == first == -1 or (first >= 0 and cell == first + count)):
            table[-1] = first, count + 1
        else:
            table.append((cell, 1))
    public, _ = row.regions
    cached = row.cached if row.cached > public else 0
    return Sequence(row.id, row.choice, row.prompt, cached, row.tokens, table)


# --- which blocks -----------------------------------------------------------------------------------------------------


def _blocks(table: Table, rows: list[Row], place: int, size: int) -> dict[int, _Block]:
    first, second, parents, used = table.columns
    blocks: dict[int, _Block] = {}
    for order, row in enumerate(rows):
        before = -1
        for logical, number in enumerate(row.blocks):
            if number < 0:
                continue
            block = blocks.get(number)
            if block is None:
                block = blocks[number] = _Block(_kind(row, logical, size), before)
                block.first = order, logical
            block.held += 1
            block.filled = max(block.filled, min(max(row.tokens - logical * size, 0), size))
            before = number
    owner = place + 1
    for number in [number for number, word in enumerate(second) if word & OWNER == owner] if owner else ():
        kind = first[number] >> KIND_SHIFT & KIND
        # What is of no kind is on its way somewhere; and the platform's is not the team's, whoever pays.
        if number not in blocks and kind in (TEAM, OWN) and first[number] & STATE != FREE:
            block = blocks[number] = _Block(kind, parents[number] - 1, min(second[number] >> FILLED_SHIFT, size))
            block.host = first[number] & STATE == HOST
            block.since = used[number]
    for number, block in list(blocks.items()):
        up = block.up
        while up >= 0 and up not in blocks:
            # Only the platform's blocks have others of other tenants build on them: this is one, and full.
            blocks[up] = _Block(PLATFORM, parents[up] - 1, size)
            up = parents[up] - 1
        block.pinned = block.kind != PLATFORM and bool(first[number] & PINNED)
    for block in list(blocks.values()):
        above = blocks.get(block.up) if block.pinned else None
        while above is not None and not above.pinned:
            above.pinned = True
            above = blocks.get(above.up)
    return blocks


def _kind(row: Row, logical: int, size: int) -> int:
    """A block is of the most private token in it."""
    public, team = row.regions
    end = (logical + 1) * size
    return PLATFORM if end <= public else TEAM if end <= team else OWN


# --- in which order ---------------------------------------------------------------------------------------------------


def _in_order(blocks: dict[int, _Block], numbers: set[int], rank: Callable[[_Block], int]) -> list[int]:
    """The forest of these blocks, each before what builds on it; of siblings the one first that has pins, a good rank
    below it, more blocks. Where nothing of that tells them apart, what they are does: never where they lie.
    """
    roots: list[int] = []
    for number in numbers:
        blocks[number].children = []
    for number in numbers:
        up = blocks[number].up
        (blocks[up].children if up in numbers else roots).append(number)
    for number in reversed(list(_walk(blocks, roots))):
        block = blocks[number]
        pins, best, count, first = -block.pinned, rank(block), -1, block.first
        if len(block.children) > 1:
            block.children.sort(key=lambda child: blocks[child].sort)
        below = [blocks[child].sort for child in block.children]
        for sort in below:
            pins += sort.pins
            best = min(best, sort.rank)
            count += sort.blocks
            first = min(first, sort.first)
        block.sort = _Sort(pins, best, count, first, hash((block.look, block.first, *below)))
    roots.sort(key=lambda root: blocks[root].sort)
    return list(_walk(blocks, roots))


def _walk(blocks: dict[int, _Block], roots: Iterable[int]) -> Iterable[int]:
    waiting = list(roots)[::-1]
    while waiting:
        number = waiting.pop()
        yield number
        waiting += reversed(blocks[number].children)
