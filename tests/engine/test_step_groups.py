"""Groups of shared prefixes from step to step: never wrong, never fewer than a fresh look finds, seldom looked for."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from engine import EngineConfig, LLMEngine, SamplingParams
from engine.flat_batch import FlatBatch
from engine.runner import Runner
from engine.step_groups import MOST_GROUPS, RecordedGroups, StepGroups
from kernels.prefix_groups import PrefixGroups, shared_prefixes
from tests.engine.tiny import VOCAB

SIZE = 4


class Watched(StepGroups):
    """Checks what every step is given against the step itself, and against a fresh look."""

    def __init__(self) -> None:
        self.looked = self.steps = self.grouped = 0
        super().__init__(SIZE, self.find)

    def find(self, *arguments: Any) -> PrefixGroups | None:
        self.looked += 1
        return shared_prefixes(*arguments)

    def of(self, flat: FlatBatch) -> PrefixGroups | None:
        groups = super().of(flat)
        self.steps += 1
        self.grouped += groups is not None
        fresh = shared_prefixes(flat.block_tables, flat.query_starts, flat.seq_lens, SIZE)
        assert saved(groups) >= saved(fresh) - len(flat.seq_lens), "at most what has grown together since"
        if groups is not None:
            counts = np.diff(flat.query_starts)
            for members, blocks in zip(np.split(groups.members, groups.starts[1:-1]), groups.blocks, strict=True):
                assert (counts[members] == 1).all()
                assert (flat.seq_lens[members] > blocks * SIZE).all()
                tables = flat.block_tables[members, :blocks]
                assert (tables == tables[0]).all()
        return groups


def saved(groups: PrefixGroups | None) -> int:
    return 0 if groups is None else int(((np.diff(groups.starts) - 1) * groups.blocks).sum())


@pytest.mark.parametrize("settings", [{}, {"overlap": True}, {"speculation": True}, {"num_blocks": 60}], ids=str)
def test_groups_hold_for_every_step_and_are_looked_for_when_the_sequences_are_others(
    settings: dict[str, Any], tiny_path: Path
) -> None:
    config: dict[str, Any] = {"model": str(tiny_path), "dtype": "float32", "device": "cpu", "block_size": SIZE}
    engine = LLMEngine(EngineConfig(**{**config, "num_blocks": 200, "max_num_seqs": 8, "token_budget": 24, **settings}))
    assert isinstance(engine.runner, Runner)
    engine.runner._groups = watched = Watched()
    rng = random.Random(5)
    systems = [rng.choices(range(3, VOCAB), k=25) for _ in range(2)]
    for number in range(16):
        tail = rng.choices(range(3, VOCAB), k=rng.choice([1, 1, 9]))
        params = SamplingParams(max_tokens=rng.choice([3, 30]), temperature=0.0, ignore_eos=True, n=rng.choice([1, 2]))
        engine.add_request(str(number), systems[number % 2] + tail, params)
        for _ in range(rng.choice([0, 4])):
            engine.step()
            engine.check_integrity()
    while engine.has_work():
        engine.step()
    assert watched.grouped > 30
    assert watched.looked < watched.steps
    if "num_blocks" in settings:
        assert engine.counters()["preemptions"]


def test_decodes_of_the_same_sequences_are_looked_at_once(tiny_path: Path) -> None:
    config = EngineConfig(model=str(tiny_path), dtype="float32", device="cpu", block_size=SIZE, num_blocks=100)
    engine = LLMEngine(config)
    assert isinstance(engine.runner, Runner)
    engine.runner._groups = watched = Watched()
    for number in range(4):
        params = SamplingParams(max_tokens=40, temperature=0.0, ignore_eos=True)
        engine.add_request(str(number), [*range(3, 30), 40 + number], params)
    while engine.has_work():
        engine.step()
    assert watched.grouped > 35
    assert watched.looked == 3, "the first alone, all four, and those that the first left"


def test_a_recorded_steps_groups_lie_in_one_place_and_are_sent_only_when_they_are_others() -> None:
    """K14"""
    there = RecordedGroups(40, SIZE, 256, torch.device("cpu"))
    groups = PrefixGroups(np.array([2, 0, 3, 5], np.int32), np.array([0, 2, 4], np.int32), np.array([3, 1], np.int32))
    forms = set()
    for wanted in (None, groups, groups, None, groups):
        there._memory.fill_(-7 if wanted is not (there._there or [None])[0] else 0)
        there._there = None
        there.put(wanted, 8)
        held = there.of(8)
        forms.add((held.packed.data_ptr(), held.num_members, held.num_groups, held.num_seqs, held.longest))
        members, starts, lengths, firsts, prefixes = (part.tolist() for part in held.parts)
        assert starts == ([0] * 5 if wanted is None else [0, 2, 4, 4, 4])
        assert lengths == ([0] * 4 if wanted is None else [12, 4, 0, 0])
        if wanted is not None:
            assert members[:4] == [2, 0, 3, 5]
            assert firsts[:2] == [2, 3]
            assert prefixes == [12, 0, 12, 4, 0, 4, 0, 0]
    assert len(forms) == 1
    there._memory.zero_()
    there.put(groups, 8)
    assert not there._memory.any(), "they are there already"
    there.put(groups, 6)
    assert there._memory.any()
    assert RecordedGroups.room(40) == MOST_GROUPS
