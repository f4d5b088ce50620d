"""The frames of a worker's block table: applied one after the other they are the full state, at little cost."""

from __future__ import annotations

import random
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule

from engine.llm_engine import LLMEngine
from engine.occupancy import CHANGES, EVERY_S, SHARE, WHOLE_EVERY_MS, Frame, Occupancy, Pace
from engine.occupancy_wire import PINNED, PLATFORM, TEAM, Gap, Table, compress, decode_head, encode_head
from engine.outputs import RequestRefused, StepError
from engine.regions import PUBLIC_SALT, Region
from engine.sampling_params import SamplingParams
from tests.engine import full_look
from tests.engine.null_model import null_engine
from tests.engine.test_engine_machine import PROMPTS, EngineMachine


class OccupancyMachine(EngineMachine):
    """Any history of an engine, looked at every so many steps and other events."""

    @initialize(every=st.sampled_from([1, 1, 2, 3, 8]), whole_every=st.sampled_from([3, 10, 1000]))
    def follow(self, every: int, whole_every: int) -> None:
        self.every, self.whole_every = every, whole_every
        self.events = self.looks = 0
        self.table = Table()
        self.occupancy = Occupancy(self.engine, worker="w") if hasattr(self, "engine") else None

    def take_a_step(self) -> None:
        super().take_a_step()
        self.look_now_and_then()

    @invariant()
    def look_now_and_then(self) -> None:
        if hasattr(self, "engine") and hasattr(self, "every"):
            self.events += 1
            if self.events % self.every == 0:
                self.look()

    def look(self, anew: bool = False) -> None:
        self.occupancy = self.occupancy or Occupancy(self.engine, worker="w")
        self.looks += 1
        at_ms = self.looks * 1000
        frame = self.occupancy.frame(at_ms, whole=self.looks % self.whole_every == 0, anew=anew)
        if frame is not None:
            self.table.apply(decode_head(encode_head(frame.head)), compress(frame.columns))
        full_look.check(self.engine, self.table)
        assert self.occupancy.frame(at_ms) is None, "nothing has changed, and something is said"

    @rule(tenant=st.sampled_from("abc"))
    def forget(self, tenant: str) -> None:
        for name, choices in self.engine._live.items():
            if choices[0].tenant == tenant:
                self.end(name, "abort")
        self.engine.forget_tenant(tenant)
        self.look(anew=True)
        assert tenant not in self.table.tenants

    def teardown(self) -> None:
        if hasattr(self, "engine") and hasattr(self, "every"):
            self.look()
            super().teardown()
            self.look()


OccupancyMachine.TestCase.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)
test_frames_applied_are_a_full_look_after_any_history = OccupancyMachine.TestCase


class Follower:
    """Who follows an engine by its frames and nothing else."""

    def __init__(self, engine: LLMEngine) -> None:
        self.engine = engine
        self.occupancy = Occupancy(engine, worker="w")
        self.table = Table()
        self.at_ms = 0

    def look(self, **how: bool) -> Frame | None:
        self.at_ms += 200
        frame = self.occupancy.frame(self.at_ms, **how)
        if frame is not None:
            self.table.apply(decode_head(encode_head(frame.head)), compress(frame.columns))
        full_look.check(self.engine, self.table)
        return frame


TIGHT: dict[str, dict[str, Any]] = {
    "preempting": {"num_blocks": 12, "block_size": 2, "max_num_seqs": 4, "token_budget": 12, "patience": 2},
    "to the host": {
        "num_blocks": 12,
        "block_size": 2,
        "max_num_seqs": 3,
        "token_budget": 12,
        "host_kv_memory_bytes": 20,
    },
    "sliding": {"num_blocks": 16, "block_size": 1, "max_num_seqs": 3, "token_budget": 6, "window": 3},
    "overlapping": {"num_blocks": 12, "block_size": 2, "max_num_seqs": 4, "token_budget": 12, "overlap": True},
    "uncached": {"num_blocks": 12, "block_size": 2, "max_num_seqs": 4, "token_budget": 12, "prefix_caching": False},
}


@pytest.mark.parametrize("kind", TIGHT)
def test_frames_add_up_where_memory_is_tight(kind: str) -> None:
    """Long histories of pools that are always full: all that moves, and is taken back, between two frames."""
    for seed in range(12):
        rng = random.Random(seed)
        engine = null_engine(max_model_len=40, **TIGHT[kind])
        follower = Follower(engine)
        for number in range(120):
            what = rng.random()
            tenant = rng.choice("abc")
            length = rng.randint(1, 18)
            regions = [Region(rng.randint(0, length), PUBLIC_SALT), Region(length, tenant)]
            prompt = PROMPTS[rng.randint(0, 1)][:length]
            if what < 0.4:
                with suppress(RequestRefused):
                    engine.add_request(
                        f"{number}", prompt, SamplingParams(max_tokens=9), tenant=tenant, regions=regions
                    )
            elif what < 0.45:
                engine.runner.broken.update(engine._live)
            elif what < 0.47:
                engine.runner.fails_at = rng.choice(["run", "copy"])
            elif what < 0.5 and engine._live:
                engine.abort(rng.choice(list(engine._live)))
            elif what < 0.53:
                engine.prompts.pin(rng.choice("pq"), prompt, regions, tenant=tenant)
            elif what < 0.55:
                engine.forget_tenant(tenant)
            else:
                for _ in range(rng.randint(1, 4)):
                    with suppress(StepError):
                        engine.step()
            if rng.random() < 0.6:
                follower.look(whole=rng.random() < 0.05)
        follower.look()


def test_a_whole_frame_comes_first_and_again_for_whoever_comes_late() -> None:
    engine = null_engine(num_blocks=512)
    engine.add_request("r", [1, 2, 3], SamplingParams(max_tokens=1000, ignore_eos=True))
    follower = Follower(engine)
    bases = []
    for _ in range(2 * CHANGES):
        engine.step()
        frame = follower.look()
        assert frame is not None
        bases.append(frame.head.base)
    assert [place for place, base in enumerate(bases) if base == 0] == [0, CHANGES + 1]
    follower.at_ms += WHOLE_EVERY_MS
    engine.step()
    frame = follower.look()
    assert frame is not None
    assert frame.head.base == 0, "a minute has passed"
    assert follower.look() is None, "nothing has happened, so nothing is said"


def test_a_change_without_the_frame_before_it_is_a_gap() -> None:
    engine = null_engine(num_blocks=64)
    engine.add_request("r", [1, 2, 3], SamplingParams(max_tokens=50, ignore_eos=True))
    occupancy, table = Occupancy(engine, worker="w"), Table()
    frames = []
    for number in range(4):
        engine.step()
        frame = occupancy.frame(number, whole=number == 3)
        assert frame is not None
        frames.append(frame)
    table.apply(frames[0].head, compress(frames[0].columns))
    with pytest.raises(Gap):
        table.apply(frames[2].head, compress(frames[2].columns))
    table.apply(frames[3].head, compress(frames[3].columns))
    full_look.check(engine, table)


def test_a_change_names_only_what_has_changed_however_large_the_pool() -> None:
    engine = null_engine(num_blocks=100_000, max_num_seqs=8, token_budget=64)
    for number in range(8):
        engine.add_request(f"{number}", [number + 1] * 40, SamplingParams(max_tokens=500, ignore_eos=True))
    follower = Follower(engine)
    while engine.scheduler.num_waiting or any(not sequence.num_output for sequence in engine.scheduler.running):
        engine.step()
    follower.look()
    engine.step()
    frame = follower.look()
    assert frame is not None
    assert 8 <= len(frame.columns[0]) <= 16, "one block or two of each"
    assert all(not row.id and len(row.blocks) <= 1 for row in frame.head.rows)


def test_a_cell_says_whose_part_of_a_prompt_it_holds_and_that_it_is_pinned() -> None:
    engine = null_engine(num_blocks=64, block_size=4)
    prompt = list(range(1, 30))
    regions = [Region(8, PUBLIC_SALT), Region(20, "team's secret"), Region(29, "chat's")]
    engine.add_request("r", prompt, SamplingParams(max_tokens=9, ignore_eos=True), tenant="t", regions=regions)
    for _ in range(3):
        engine.step()
    engine.prompts.pin("p", prompt, regions, tenant="t")
    follower = Follower(engine)
    follower.look()
    (row,) = follower.table.rows.values()
    assert row.regions == (8, 20)
    words = [follower.table.columns[0][block] for block in row.blocks]
    kinds = [word >> 4 & 3 for word in words]
    assert kinds[:5] == [PLATFORM, PLATFORM, TEAM, TEAM, TEAM]
    assert set(kinds[5:]) == {3}
    assert [bool(word & PINNED) for word in words[:6]] == [True] * 5 + [False]
    parents = [follower.table.columns[2][block] for block in row.blocks[:5]]
    assert parents == [0, *(block + 1 for block in row.blocks[:4])]


def test_a_block_that_the_engine_itself_holds_is_fenced() -> None:
    engine = null_engine(num_blocks=8)
    follower = Follower(engine)
    (block,) = engine.pool.allocate(1, "t")
    follower.look()
    assert full_look.cells_of(follower.table)[block][3]
    engine.pool.release([block])
    follower.look()
    assert not full_look.cells_of(follower.table)[block][3]


def test_frames_take_their_share_of_the_time_and_no_single_long_one_stops_them() -> None:
    pace = Pace()
    assert [pace.wait_s(0.0005) for _ in range(20)] == [EVERY_S] * 20
    assert pace.wait_s(0.2) < 1.0, "something else went on meanwhile"
    for _ in range(10):
        wait_s = pace.wait_s(0.02)
    assert 0.02 / wait_s < SHARE, "a large pool that changes all over is shown less often"
