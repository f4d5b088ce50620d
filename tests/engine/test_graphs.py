"""Padded decode steps over persistent buffers, recorded and replayed: the same answers as steps that run as they are.

On a CPU "recording" gives the work itself: what is tested is all that a graph replays over, and that nothing else would
be needed. Only that CUDA records and replays this work is left to a GPU.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from structlog.testing import capture_logs

from engine import EngineConfig, LLMEngine, SamplingParams
from engine.flat_batch import FlatBatch
from engine.graphs import DecodeGraphs, Work, padded_sizes
from engine.models.loader import load
from engine.runner import Runner
from engine.step_inputs import ALIGNMENT, Inputs, StepInputs
from engine.tokenizer import Tokenizer
from tests.engine.test_llm_engine import prompts

PARAMS = [
    SamplingParams(max_tokens=9, temperature=0.0, ignore_eos=True),
    SamplingParams(max_tokens=14, seed=3, temperature=0.9, top_p=0.9, ignore_eos=True),
    SamplingParams(max_tokens=5, seed=4, frequency_penalty=0.5, logprobs=1, ignore_eos=True),
]


class Recorder:
    """Does the work once, as a recording does, and counts; a replay is the work again."""

    def __init__(self) -> None:
        self.recorded = 0

    def __call__(self, work: Work) -> Work:
        self.recorded += 1
        work()
        return work


def engine_over(path: Path, record: Callable[[Work], Work] | None, **settings: Any) -> LLMEngine:
    defaults = {"model": str(path), "dtype": "float32", "device": "cpu", "num_blocks": 96, "max_num_seqs": 6}
    config = EngineConfig(**{**defaults, **settings})
    runner = Runner(load(str(path), "float32", "cpu"), config, record=record)
    return LLMEngine(config, runner=runner, tokenizer=Tokenizer.load(str(path)))


def answers(engine: LLMEngine) -> list[Any]:
    said: dict[tuple[str, int], list[int]] = {}
    for number, prompt in enumerate(prompts()):
        engine.add_request(str(number), prompt, PARAMS[number % 3])
    while engine.has_work():
        for output in engine.step():
            said.setdefault((output.request_id, output.index), []).extend(output.new_token_ids)
        engine.check_integrity()
    return sorted(said.items())


def poison(runner: Runner) -> None:
    """What lies in the buffers when a step comes is not part of it."""
    runner._inputs.memory.fill_(0x7F)
    runner._inputs.tables.fill_(2**30)
    if runner._graphs is not None:
        runner._graphs._logits.fill_(torch.nan)


@pytest.mark.parametrize("overlap", [False, True])
def test_replayed_steps_give_the_answers_of_steps_that_run_as_they_are(tiny_path: Path, overlap: bool) -> None:
    """K8: fewer live rows than recorded, over leftovers that would show."""
    wanted = answers(engine_over(tiny_path, None))
    recorder = Recorder()
    engine = engine_over(tiny_path, recorder, overlap=overlap)
    runner = engine.runner
    assert isinstance(runner, Runner)
    assert runner._graphs is not None
    launch = runner.launch

    def launch_over_leftovers(*arguments: Any) -> Any:
        poison(runner)
        return launch(*arguments)

    runner.launch = launch_over_leftovers  # type: ignore[method-assign]
    assert answers(engine) == wanted
    assert recorder.recorded == len(padded_sizes(6))
    assert runner._graphs.replays > 15


def test_a_padded_row_writes_nothing_and_gives_no_draw(tiny_path: Path) -> None:
    engine = engine_over(tiny_path, Recorder())
    runner = engine.runner
    assert isinstance(runner, Runner)
    assert runner._graphs is not None
    engine.add_request("r", prompts()[0], PARAMS[0])
    engine.step()
    used = set(engine._live["r"][0].block_table)
    others = [block for block in range(engine.num_blocks) if block not in used]
    runner._kv.data[:, :, others] = torch.nan
    runner._graphs.sizes = [6]  # five of six rows are padding
    while engine.has_work():
        (output,) = engine.step()
        assert output.error is None
    assert runner._graphs.replays == 8
    assert runner._kv.data[:, :, others].isnan().all()


@pytest.mark.parametrize("most", [1, 2, 3, 5, 8, 12, 24, 32, 33, 100, 256])
def test_every_number_of_rows_has_a_size_that_wastes_little(most: int) -> None:
    sizes = padded_sizes(most)
    assert sizes == sorted(set(sizes))
    assert sizes[-1] == most
    for rows in range(1, most + 1):
        size = min(size for size in sizes if size >= rows)
        assert size - rows <= max(2, size / 3) or size <= 8
    assert len(padded_sizes(256)) <= 14


def step_of(rows: int, rng: random.Random, width: int) -> FlatBatch:
    """A decode step at random places; the drawing sequences are only counted."""
    lengths = np.array([rng.randrange(1, width * 16) for _ in range(rows)], np.int32)
    return FlatBatch(
        input_ids=np.array([rng.randrange(300) for _ in range(rows)]),
        positions=lengths.astype(np.int64) - 1,
        slot_mapping=np.array([rng.randrange(1000) for _ in range(rows)]),
        block_tables=np.array([[rng.randrange(60)] * (-(-int(lengths.max()) // 16))] * rows, np.int32),
        query_starts=np.arange(rows + 1, dtype=np.int32),
        seq_lens=lengths,
        max_query_len=1,
        max_seq_len=int(lengths.max()),
        drawing=[None] * rows,  # type: ignore[list-item]
        rows=np.arange(rows),
        num_draws=rows,
    )


def test_what_a_recorded_step_reads_depends_on_its_size_alone() -> None:
    """K14: over any rows and lengths as many forms of a step as there are sizes, so nothing is compiled anew."""
    inputs = StepInputs(64, 40, 16, torch.device("cpu"))
    forms: dict[int, set[Any]] = {}

    def logits_of(step: Inputs) -> torch.Tensor:
        assert step.late is not None
        arrays = [step.input_ids, step.late, step.positions, step.meta.slot_mapping, step.meta.block_tables]
        arrays += [step.meta.query_starts, step.meta.seq_lens]
        form = tuple((array.data_ptr(), tuple(array.shape), array.stride()) for array in arrays)
        assert step.meta.plan is None, "a kernel's preparation is one step's"
        forms.setdefault(len(step.input_ids), set()).add((form, step.meta.max_query_len, step.meta.max_seq_len))
        return torch.zeros(len(step.input_ids), 7)

    graphs = DecodeGraphs(logits_of, inputs, padded_sizes(40), vocab_size=7, max_seq_len=256, record=Recorder())
    rng = random.Random(0)
    for rows in range(1, 41):
        for _ in range(3):
            step = step_of(rows, rng, 16)
            assert graphs.fits(step)
            assert graphs.run(step).shape == (rows, 7)
    assert sorted(forms) == padded_sizes(40)
    assert all(len(each) == 1 for each in forms.values())


def test_a_padded_step_holds_its_rows_and_behind_them_rows_of_length_0_without_a_slot() -> None:
    inputs = StepInputs(64, 40, 16, torch.device("cpu"))
    rng = random.Random(1)
    for rows in (1, 3, 8, 9, 24, 33):
        inputs.memory.fill_(0x55)
        step = step_of(rows, rng, 16)
        step.late = np.array([rng.choice([-1, 4]) for _ in range(rows)])
        inputs.put_decodes(step, 40)
        there = inputs.decodes(40, 256)
        assert there.late is not None
        for array, values, padding in (
            (there.input_ids, step.input_ids, 0),
            (there.late, step.late, -1),
            (there.positions, step.positions, 0),
            (there.meta.slot_mapping, step.slot_mapping, -1),
            (there.meta.seq_lens, step.seq_lens, 0),
        ):
            assert array.tolist() == [*values.tolist(), *[padding] * (40 - rows)]
        assert there.meta.query_starts.tolist() == list(range(41))
        assert there.meta.block_tables[:rows, : step.block_tables.shape[1]].tolist() == step.block_tables.tolist()


def test_every_array_of_a_step_begins_where_kernels_may_read_wide() -> None:
    inputs = StepInputs(64, 40, 16, torch.device("cpu"))
    start = inputs.memory.data_ptr()
    for rows in range(1, 41):
        there = inputs.put(step_of(rows, random.Random(rows), 16))
        for array in (there.positions, there.meta.slot_mapping, there.meta.query_starts, there.meta.seq_lens):
            assert (array.data_ptr() - start) % ALIGNMENT == 0


def test_chunks_drafts_scored_prompts_and_larger_batches_run_as_they_are() -> None:
    inputs = StepInputs(64, 40, 16, torch.device("cpu"))
    graphs = DecodeGraphs(
        lambda step: torch.zeros(len(step.input_ids), 7),
        inputs,
        [1, 8],
        vocab_size=7,
        max_seq_len=256,
        record=Recorder(),
    )
    rng = random.Random(0)
    assert graphs.fits(step_of(8, rng, 4))
    assert not graphs.fits(step_of(9, rng, 4))
    half = step_of(4, rng, 4)
    half.drawing = half.drawing[:3]
    assert not graphs.fits(half)
    chunk = step_of(4, rng, 4)
    chunk.seq_lens = chunk.seq_lens[:3]
    assert not graphs.fits(chunk)
    drafts = step_of(4, rng, 4)
    drafts.draws = np.array([1, 1, 2])
    assert not graphs.fits(drafts)
    scored = step_of(4, rng, 4)
    scored.scored = [(None, 0, 1)]  # type: ignore[list-item]
    assert not graphs.fits(scored)


def test_a_model_that_cannot_be_recorded_runs_as_it_is_and_says_so(tiny_path: Path) -> None:
    def fail(work: Work) -> Work:
        raise RuntimeError("operation not permitted when stream is capturing\nmore")

    with capture_logs() as logs:
        engine = engine_over(tiny_path, fail)
    (entry,) = logs
    assert (entry["event"], entry["reason"]) == (
        "runner.no_graphs",
        "operation not permitted when stream is capturing",
    )
    assert answers(engine) == answers(engine_over(tiny_path, None))


def test_nothing_is_recorded_on_a_cpu_nor_where_rows_must_not_depend_on_their_batch(
    tiny_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: Any, **__: Any) -> Any:
        raise AssertionError("a CPU cannot record CUDA graphs")

    for name in ("graph", "CUDAGraph", "graph_pool_handle", "Stream"):
        monkeypatch.setattr(torch.cuda, name, never)
    config = EngineConfig(model=str(tiny_path), dtype="float32", device="cpu", num_blocks=16)
    assert Runner.load(config)._graphs is None
    for settings in ({"batch_invariant": True}, {"graphs": False}):
        runner = engine_over(tiny_path, Recorder(), **settings).runner
        assert isinstance(runner, Runner)
        assert runner._graphs is None
