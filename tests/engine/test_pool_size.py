"""How large a GPU's KV pool becomes: what is free, less what a step was measured to take. The memory is made up."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from engine import EngineConfig
from engine.config import EngineConfigError
from engine.models.loader import load
from engine.runner import Runner
from engine.trial_step import trial_step

MIB = 1 << 20


class Gpu:
    """So much is free, and a step takes so much; it is really run."""

    on_gpu = True

    def __init__(self, free: int, step: int) -> None:
        self._free, self._step = free, step
        self.measured = 0

    def free(self) -> int:
        assert self.measured, "what is free is looked at when everything else has its place"
        return self._free

    def peak_of(self, work: Callable[[], object]) -> int:
        work()
        self.measured += 1
        return self._step


def runner(path: Path, memory: Gpu, record: Any = None, **settings: Any) -> Runner:
    config = EngineConfig(**{"model": str(path), "dtype": "float32", "device": "cpu", "max_num_seqs": 8, **settings})
    return Runner(load(str(path), "float32", "cpu"), config, memory, record)


def test_the_pool_takes_nine_tenths_of_what_a_step_leaves(tiny_path: Path) -> None:
    free, step = 20 * MIB, 5 * MIB
    made = runner(tiny_path, Gpu(free, step), max_num_seqs=256)
    assert made.num_blocks == int((free - step) * 0.9) // made.block_bytes
    assert made._kv.num_blocks == made.num_blocks


def test_recorded_steps_have_memory_of_their_own(tiny_path: Path) -> None:
    free, step = 20 * MIB, 5 * MIB
    made = runner(tiny_path, memory := Gpu(free, step), record=lambda work: work, max_num_seqs=256)
    assert memory.measured == 2
    assert made.num_blocks == int((free - 2 * step) * 0.9) // made.block_bytes


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"num_blocks": 2000},
            r"pool of 2000 blocks needs 15.6 MiB, but 20.0 MiB are free, of which a step of 256 tokens takes 5.0 MiB; "
            r"set num_blocks to 1920 or less, or lower token_budget or use a smaller model",
        ),
        ({"kv_memory_bytes": 16 * MIB}, r"set kv_memory_bytes to 15728640 or less, or lower token_budget"),
    ],
)
def test_a_pool_that_does_not_fit_beside_a_step_is_refused_with_the_numbers(
    tiny_path: Path, settings: dict[str, Any], message: str
) -> None:
    """C13."""
    with pytest.raises(EngineConfigError, match=message) as error:
        runner(tiny_path, Gpu(20 * MIB, 5 * MIB), **settings)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("step", [5 * MIB, 30 * MIB])
def test_a_step_that_leaves_no_room_for_a_block_is_told_with_what_to_lower(tiny_path: Path, step: int) -> None:
    """C13: also where the step alone is too large."""
    with pytest.raises(
        EngineConfigError, match=r"hold no block.*5.0 MiB are free, of which a step.*lower token_budget"
    ):
        runner(tiny_path, Gpu(5 * MIB, step))


def test_a_step_that_does_not_fit_beside_the_weights_is_told_in_one_line(tiny_path: Path) -> None:
    """C13."""

    class Full(Gpu):
        def peak_of(self, work: Callable[[], object]) -> int:
            self.measured += 1
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate\nmuch")

    message = r"A step of 256 tokens does not fit beside the weights, where 7.0 MiB are free; lower token_budget"
    with pytest.raises(EngineConfigError, match=message) as error:
        runner(tiny_path, Full(7 * MIB, 0))
    assert "\n" not in str(error.value)


def test_the_measured_step_is_the_largest_that_the_settings_allow(tiny_path: Path) -> None:
    made = runner(tiny_path, Gpu(20 * MIB, 0), token_budget=100)
    seen: list[tuple[int, int, int]] = []
    model = made._model

    def watch(ids: torch.Tensor, *rest: Any) -> torch.Tensor:
        seen.append((len(ids), len(rest[-1].seq_lens), int(rest[-1].seq_lens.sum())))
        return model(ids, *rest)  # type: ignore[no-any-return]

    watch.logits = model.logits  # type: ignore[attr-defined]
    made._model = watch  # type: ignore[assignment]
    kv = made._kv
    made._measure(Gpu(0, 0), lambda blocks: kv, 100)
    assert seen == [(100, 8, 100)]


@pytest.mark.parametrize(("tokens", "seqs", "longest"), [(100, 8, 512), (8, 8, 512), (64, 1, 512), (2048, 3, 200)])
def test_a_trial_step_is_a_step_as_kernels_expect_it(tokens: int, seqs: int, longest: int) -> None:
    flat, blocks = trial_step(tokens, seqs, 16, longest)
    assert len(flat.input_ids) == min(tokens, seqs * longest)
    assert len(set(flat.slot_mapping.tolist())) == len(flat.slot_mapping)
    assert 0 <= flat.slot_mapping.min() <= flat.slot_mapping.max() < blocks * 16
    assert flat.block_tables.max() < blocks
    assert (np.diff(flat.query_starts) == flat.seq_lens).all()
    assert flat.positions.max() + 1 == flat.max_seq_len == flat.seq_lens.max()
    for sequence, (start, end) in enumerate(zip(flat.query_starts[:-1], flat.query_starts[1:], strict=True)):
        at = flat.positions[start:end]
        slots = flat.block_tables[sequence][at // 16] * 16 + at % 16
        assert (slots == flat.slot_mapping[start:end]).all()
    assert (flat.rows == flat.query_starts[1:] - 1).all()
