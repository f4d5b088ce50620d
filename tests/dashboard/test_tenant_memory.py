"""What a team sees of a worker's blocks, and that nothing in it comes from anybody else."""

from __future__ import annotations

import random
from array import array
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from chatapp.streaming.tenant_memory import Run, Sequence, View, view
from engine import occupancy_wire as wire
from engine.occupancy import Occupancy
from engine.occupancy_wire import Figures, Head, Row, Table
from engine.regions import PUBLIC_SALT, Region
from engine.sampling_params import SamplingParams
from tests.dashboard.frames import FREE, cell
from tests.engine.null_model import null_engine

US, THEM, THIRD = "0191-us", "0191-them", "0191-third"
SIZE = 16


def table_of(cells: list[tuple[int, int, int, int]], rows: list[Row], tenants: list[str], **head: Any) -> Table:
    table = Table()
    figures = head.pop("figures", Figures())
    said = Head(
        worker="w", number=head.pop("number", 1), at_ms=head.pop("at_ms", 5), block_size=SIZE, blocks=len(cells),
        tenants=tenants, rows=rows, figures=figures, **head,
    )  # fmt: skip
    columns = [array("I", column) for column in zip(*cells, strict=True)]
    table.apply(said, wire.compress(columns))
    return table


def seen(table: Table) -> View:
    found = view(table, US)
    assert found is not None
    return found


def test_the_blocks_of_a_team_are_its_prompts_its_sequences_and_what_is_kept_in_this_order() -> None:
    """A preamble of one block that somebody else paid for, our prompt of two behind it, two answers, an old chat."""
    cells = [
        cell(tenant=0, refs=1, kind=wire.OWN, filled=9),  # 0: of our first answer
        cell(tenant=1, refs=9, kind=wire.PLATFORM),  # 1: the preamble
        cell(tenant=0, refs=2, kind=wire.TEAM, parent=1, pinned=True),  # 2
        cell(tenant=1, refs=3),  # 3: theirs
        cell(tenant=0, refs=2, kind=wire.TEAM, parent=2, pinned=True),  # 4
        cell(wire.CACHED, tenant=0, parent=4, used=700, filled=16),  # 5: the old chat
        cell(wire.CACHED, tenant=0, parent=5, used=700, filled=3),  # 6
        cell(tenant=0, refs=1, filled=4),  # 7: of our second answer
        FREE,
        cell(wire.HOST, tenant=0, parent=4, used=600),  # 9: an older chat, in host memory
        cell(tenant=0, refs=1, kind=wire.UNKNOWN),  # 10: on its way
    ]
    rows = [
        Row(number=92, id="second", tenant=0, prompt=50, cached=48, tokens=52, regions=(16, 48), blocks=[1, 2, 4, 7]),
        Row(number=17, id="first", tenant=0, prompt=50, cached=9, tokens=57, regions=(16, 48), blocks=[1, 2, 4, 0]),
        Row(number=5, id="theirs", tenant=1, prompt=20, tokens=30, regions=(16, 16), blocks=[1, 3]),
    ]
    figures = Figures(used=99, waiting=7, of={US: (8, 3, 2, 2, 4), THEM: (2, 0, 0, 1, 3)})
    found = seen(table_of(cells, rows, [US, THEM], figures=figures))
    assert found.cells == [
        Run("platform", held=2, pinned=True),
        Run("team", held=2, pinned=True, blocks=2),
        Run("own", held=1, room=7),
        Run("own", held=1, room=12),
        Run("own", since=700),
        Run("own", room=13, since=700),
        Run("own", host=True, since=600),
    ]
    assert found.sequences == [
        Sequence("first", prompt=50, tokens=57, table=[(0, 4)]),
        Sequence("second", prompt=50, cached=48, tokens=52, table=[(0, 3), (4, 1)]),
    ]
    assert (found.running, found.waiting, found.used, found.kept, found.host) == (2, 4, 5, 2, 1)
    assert (found.saved, found.room, found.instructions) == (3, 7 + 12, 3)


def test_of_a_team_that_has_nothing_there_nothing_is_told() -> None:
    cells = [cell(tenant=0, refs=1, kind=wire.PLATFORM), cell(tenant=0, refs=1), FREE]
    rows = [Row(number=1, id="theirs", tenant=0, tokens=20, regions=(16, 16), blocks=[0, 1])]
    found = seen(table_of(cells, rows, [THEM], figures=Figures(of={THEM: (2, 0, 0, 1, 0)})))
    assert found == View(SIZE, 0, 0, 0, 0, 0, 0, 0, 0, [], [])
    assert view(Table(), US) is None


def test_blocks_behind_a_models_window_are_gone_and_not_in_the_count() -> None:
    cells = [FREE, cell(tenant=0, refs=1), cell(tenant=0, refs=1, filled=2)]
    row = Row(number=1, id="long", tenant=0, prompt=40, tokens=66, blocks=[-1, -1, -1, 1, 2])
    found = seen(table_of(cells, [row], [US]))
    assert found.sequences == [Sequence("long", prompt=40, tokens=66, table=[(-1, 3), (0, 2)])]
    assert (found.used, found.room) == (2, 14)


# --- nothing of others ------------------------------------------------------------------------------------------------


class Ours:
    """What we hold, in words of our own: chains of blocks that build on each other, and sequences over them.

    A block is named; the platform's preamble is the chain "p". Nothing here says where it lies.
    """

    def __init__(self, chance: random.Random) -> None:
        self.up: dict[str, str] = {}
        self.kind: dict[str, int] = {}
        self.state: dict[str, int] = {}
        self.filled: dict[str, int] = {}
        self.used: dict[str, int] = {}
        self.pinned: set[str] = set()
        self.rows: list[dict[str, Any]] = []
        preamble = self.chain(chance, "p", "", wire.PLATFORM, chance.randrange(3))
        for prompt in range(chance.randrange(3)):
            pinned = chance.random() < 0.7
            team = self.chain(chance, f"t{prompt}", preamble, wire.TEAM, chance.randrange(1, 4))
            if pinned:
                self.pinned |= {name for name in self.kind if name.startswith(f"t{prompt}.")}
            for chat in range(chance.randrange(4)):
                end = self.chain(chance, f"c{prompt}{chat}", team, wire.OWN, chance.randrange(1, 4))
                if chance.random() < 0.5:
                    self.run(chance, f"g{prompt}{chat}", end)
                elif chance.random() < 0.3:
                    for name in [name for name in self.kind if name.startswith(f"c{prompt}{chat}.")]:
                        self.state[name] = wire.HOST
        chance.shuffle(self.rows)

    def chain(self, chance: random.Random, name: str, up: str, kind: int, blocks: int) -> str:
        used = chance.randrange(1, 4)
        for place in range(blocks):
            self.up[f"{name}.{place}"], up = up, f"{name}.{place}"
            self.kind[up], self.state[up], self.filled[up], self.used[up] = kind, wire.CACHED, SIZE, used
        return up

    def path(self, end: str) -> list[str]:
        return [*self.path(self.up[end]), end] if end else []

    def run(self, chance: random.Random, name: str, end: str) -> None:
        path = self.path(end)
        kinds = [self.kind[block] for block in path]
        regions = (SIZE * kinds.count(wire.PLATFORM), SIZE * (len(kinds) - kinds.count(wire.OWN)))
        tokens = SIZE * (len(path) - 1) + chance.randrange(1, SIZE + 1)
        self.filled[end] = tokens - SIZE * (len(path) - 1)
        for choice in range(chance.choice([1, 1, 2])):
            row = {"id": name, "choice": choice, "prompt": tokens // 2, "cached": 0, "tokens": tokens}
            self.rows.append({**row, "regions": regions, "path": path})
        for block in path:
            self.state[block] = wire.USED

    def drawn(self, chance: random.Random, waiting: int) -> Table:
        """A pool with all of this in it, and everything that is not ours at random."""
        others = chance.randrange(30)
        places = chance.sample(range(len(self.kind) + others + 5), len(self.kind))
        at = dict(zip(self.kind, places, strict=True))
        tenants = [THEM, THIRD, US]
        chance.shuffle(tenants)
        if chance.random() < 0.3 and not self.kind and not waiting:
            tenants.remove(US)
        us = tenants.index(US) if US in tenants else -1
        rest = [place for place, tenant in enumerate(tenants) if tenant != US]
        cells = [FREE] * (len(self.kind) + others + 5)
        free = [place for place in range(len(cells)) if place not in at.values()]
        chance.shuffle(free)
        public = [at[name] for name in self.kind if self.kind[name] == wire.PLATFORM]
        theirs: list[Row] = []
        for number in free[:others]:
            parent = chance.choice([-1, *public, *free[:others]])
            kind = chance.choice([wire.UNKNOWN, wire.PLATFORM, wire.TEAM, wire.OWN])
            tenant = us if kind == wire.PLATFORM and chance.random() < 0.5 else chance.choice(rest)
            cells[number] = cell(
                chance.choice([wire.CACHED, wire.USED, wire.HOST]), tenant=tenant, refs=chance.randrange(9), kind=kind,
                filled=chance.randrange(1, SIZE + 1), pinned=chance.random() < 0.2, parent=parent,
                used=chance.randrange(99),
            )  # fmt: skip
            if chance.random() < 0.4:
                theirs.append(Row(number=0, id=f"x{number}", tenant=chance.choice(rest), tokens=30, blocks=[number]))
        for name, number in at.items():
            up = self.up[name]
            if self.kind[name] != wire.PLATFORM:
                refs = sum(name in row["path"] for row in self.rows)
                cells[number] = cell(
                    self.state[name], tenant=us, refs=refs, kind=self.kind[name], filled=self.filled[name],
                    pinned=name in self.pinned, parent=at[up] if up else -1, used=self.used[name],
                )  # fmt: skip
            else:
                cells[number] = cell(
                    wire.USED if self.state[name] == wire.USED else chance.choice([wire.USED, wire.CACHED, wire.HOST]),
                    tenant=chance.randrange(len(tenants)), refs=chance.randrange(1, 99), kind=wire.PLATFORM,
                    pinned=chance.random() < 0.5, parent=at[up] if up else -1, used=chance.randrange(99),
                )  # fmt: skip
        ours = [
            Row(
                number=0, id=row["id"], tenant=us, choice=row["choice"], prompt=row["prompt"], tokens=row["tokens"],
                cached=chance.randrange(row["regions"][0] + 1),  # of the platform's only: others may have computed it
                regions=row["regions"], blocks=[at[name] for name in row["path"]],
            )
            for row in self.rows
        ]  # fmt: skip
        # Sequences are numbered as they come, everybody's together.
        order = sorted(chance.sample(range(1000), len(ours) + len(theirs)))
        turns = [True] * len(ours) + [False] * len(theirs)
        chance.shuffle(turns)
        rows, mine, other = [], iter(ours), iter(theirs)
        for number, turn in zip(order, turns, strict=True):
            rows.append(msgspec.structs.replace(next(mine if turn else other), number=number))
        chance.shuffle(rows)
        of = {tenant: (chance.randrange(9),) * 5 for tenant in tenants if tenant != US}
        if waiting or chance.random() < 0.5:
            of[US] = (chance.randrange(9), chance.randrange(9), 0, 0, waiting)  # blocks that we pay for, or not
        figures = Figures(
            used=chance.randrange(999), free=chance.randrange(999), waiting=chance.randrange(99), of=of,
            service={THEM: chance.random()}, counters={"evictions": chance.randrange(99)},
        )  # fmt: skip
        return table_of(
            cells, rows, tenants, figures=figures, number=chance.randrange(1, 99), at_ms=chance.randrange(10**12)
        )


@pytest.mark.parametrize("seed", range(150))
def test_the_view_is_the_same_whatever_others_do(seed: int) -> None:
    """P11: pools that differ in all that is not ours, and in where ours lies, give the same frame to the byte."""
    chance = random.Random(seed)
    ours, waiting = Ours(chance), chance.randrange(3)
    frames = {msgspec.json.encode(view(ours.drawn(random.Random(seed * 1000 + n), waiting), US)) for n in range(6)}
    assert len(frames) == 1
    (frame,) = frames
    assert THEM.encode() not in frame
    assert b'"x' not in frame


@pytest.mark.parametrize("seed", range(20))
def test_the_view_has_all_that_is_ours(seed: int) -> None:
    """And so does not pass the test above by telling nothing."""
    chance = random.Random(seed)
    ours = Ours(chance)
    found = seen(ours.drawn(chance, 1))
    behind = {name for end in ours.kind if ours.kind[end] != wire.PLATFORM for name in ours.path(end)}
    assert sum(run.blocks for run in found.cells) == len(behind)
    for kind, name in ((wire.PLATFORM, "platform"), (wire.TEAM, "team"), (wire.OWN, "own")):
        assert sum(r.blocks for r in found.cells if r.kind == name) == sum(ours.kind[b] == kind for b in behind)
    flat = [run for run in found.cells for _ in range(run.blocks)]
    assert len(found.sequences) == len(ours.rows)
    for told in found.sequences:
        row = next(row for row in ours.rows if (row["id"], row["choice"]) == (told.id, told.choice))
        held = [flat[first + n] for first, count in told.table for n in range(count)]
        assert [run.kind for run in held] == [
            {wire.PLATFORM: "platform", wire.TEAM: "team", wire.OWN: "own"}[ours.kind[name]] for name in row["path"]
        ]
        assert [run.held for run in held] == [sum(name in r["path"] for r in ours.rows) for name in row["path"]]
        assert held[-1].room == SIZE - ours.filled[row["path"][-1]]


# --- with a real engine -----------------------------------------------------------------------------------------------

PREAMBLE = list(range(1, 12))


def lives(ours: random.Random, theirs: random.Random | None) -> list[bytes]:
    """What we see whenever all of ours has ended, in an engine whose pool is large enough for everybody."""
    engine = null_engine(num_blocks=1500, block_size=4, max_num_seqs=64, token_budget=2000, max_model_len=200)
    occupancy, table, seen_so_far, number = Occupancy(engine, worker="w"), Table(), [], 0
    engine.epoch_s = 0.0

    def ask(chance: random.Random, tenant: str) -> Callable[[], object]:
        """Returns what pins its instructions."""
        nonlocal number
        number += 1
        prompt = chance.randrange(2)
        team = PREAMBLE + [20 + prompt] * (9 + 4 * prompt)
        chat = chance.randrange(3)
        tokens = team + [40 + chat] * chance.randrange(1, 20)
        regions = [
            Region(len(PREAMBLE), PUBLIC_SALT), Region(len(team), tenant), Region(len(tokens), f"{tenant} {chat}"),
        ]  # fmt: skip
        params = SamplingParams(max_tokens=chance.randrange(1, 9), n=chance.choice([1, 1, 2]))
        engine.add_request(f"{tenant}-{number}", tokens, params, tenant=tenant, regions=regions)
        return lambda: engine.prompts.pin(f"{tenant} {prompt}", tokens, regions, tenant=tenant)

    def look() -> View:
        nonlocal number
        number += 1
        frame = occupancy.frame(1000 * number)
        if frame is not None:
            table.apply(wire.decode_head(wire.encode_head(frame.head)), wire.compress(frame.columns))
        return seen(table)

    for phase in range(1, 9):
        engine._clock = lambda now=float(phase): now  # type: ignore[misc]
        pin = ask(ours, US)
        while any(US in counts for counts in engine.scheduler.counts()):
            for _ in range(theirs.randrange(3) if theirs else 0):
                pin_theirs = ask(theirs, theirs.choice([THEM, THIRD]))  # type: ignore[union-attr,arg-type]
                if theirs is not None and theirs.random() < 0.3:
                    pin_theirs()
            engine.step()
            if theirs is None or theirs.random() < 0.5:
                told = look()
                assert all(one.id.startswith(US) for one in told.sequences)
        if ours.random() < 0.3:
            pin()
        seen_so_far.append(msgspec.json.encode(look()))
    return seen_so_far


@pytest.mark.parametrize("seed", range(8))
def test_in_a_real_engine_we_see_the_same_beside_others_as_alone(seed: int) -> None:
    """Others compute the preamble before us, pay for it, pin it, hold it: none of that is seen."""
    alone = lives(random.Random(seed), None)
    assert any(b'"platform"' in frame for frame in alone)
    for others in range(2):
        assert lives(random.Random(seed), random.Random(100 + 10 * seed + others)) == alone
