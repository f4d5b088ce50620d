"""Where every layer has a sliding window, blocks behind it are used again, and nothing that is read goes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from engine import EngineConfig, LLMEngine, SamplingParams
from engine.outputs import RequestRefused
from engine.regions import Region
from engine.sequence import GONE
from tests.engine.null_model import expected, null_engine
from tests.engine.test_models import their_logits, theirs
from tests.engine.tiny import make_foreign, make_tiny

PROMPT = [1 + i * i % 96 for i in range(60)]
WINDOWED = {"window": 12, "block_size": 4, "token_budget": 8, "max_num_seqs": 4, "max_model_len": 400}


def answers(engine: LLMEngine, prompts: dict[str, list[int]], params: SamplingParams) -> dict[str, list[int]]:
    tokens: dict[str, list[int]] = {name: [] for name in prompts}
    for name, prompt in prompts.items():
        engine.add_request(name, prompt, params)
    while engine.has_work():
        for output in engine.step():
            tokens[output.request_id] += output.new_token_ids
        engine.check_integrity()
    return tokens


def test_a_text_goes_on_beyond_the_pool_in_the_blocks_that_it_leaves_behind() -> None:
    """Prompt of 60 and answer of 200 tokens in a pool for 40."""
    engine = null_engine(num_blocks=10, **WINDOWED)
    assert engine.context == 400
    assert answers(engine, {"a": PROMPT}, SamplingParams(max_tokens=200)) == {"a": expected(PROMPT, 200)}
    assert engine.counters()["preemptions"] == 0


def test_a_pool_too_small_for_a_window_and_a_step_bounds_the_text_as_without_windows() -> None:
    engine = null_engine(num_blocks=6, **WINDOWED)
    assert engine.scheduler.windows is None
    assert engine.context == 24
    with pytest.raises(RequestRefused, match="60 tokens, but at most 24 fit"):
        engine.add_request("a", PROMPT, SamplingParams(max_tokens=1))


def test_nothing_is_given_back_while_there_is_room_so_the_next_turn_finds_it_all() -> None:
    engine = null_engine(num_blocks=100, **WINDOWED)
    (said,) = answers(engine, {"a": PROMPT}, SamplingParams(max_tokens=60)).values()
    engine.add_request("b", PROMPT + said, SamplingParams(max_tokens=1))
    (output,) = [output for output in engine.step() if output.started]
    assert output.started == (120, 119)


def test_room_behind_windows_is_used_before_anybody_is_preempted() -> None:
    """Three texts of 120 tokens at once, each of whose windows fits: 3 x 30 blocks in a pool of 40."""
    engine = null_engine(num_blocks=40, **WINDOWED)
    prompts = {name: [base + token % 50 for token in PROMPT] for base, name in enumerate("abc")}
    got = answers(engine, prompts, SamplingParams(max_tokens=60))
    assert got == {name: expected(prompt, 60) for name, prompt in prompts.items()}
    assert engine.counters()["preemptions"] == 0


def test_a_newcomer_gets_the_room_behind_the_windows_of_those_that_run() -> None:
    engine = null_engine(num_blocks=24, **WINDOWED)
    engine.add_request("a", PROMPT, SamplingParams(max_tokens=100))
    for _ in range(35):
        engine.step()
    (running,) = engine.scheduler.running
    assert len(running.blocks) > 20
    engine.add_request("b", PROMPT[::-1], SamplingParams(max_tokens=1))
    engine.step()
    assert len(engine.scheduler.running) == 2
    assert GONE in running.block_table
    assert running.num_hashed == 0, "what builds on a block that is gone cannot be found"
    engine.check_integrity()


def test_blocks_that_others_hold_stay_with_what_can_be_found_by_them() -> None:
    engine = null_engine(num_blocks=24, **WINDOWED)
    engine.add_request("a", PROMPT, SamplingParams(max_tokens=100))
    said: dict[str, list[int]] = {"a": [], "b": []}
    for _ in range(35):
        for output in engine.step():
            said["a"] += output.new_token_ids
    (running,) = engine.scheduler.running
    other = PROMPT[:48] + PROMPT[11::-1]
    engine.add_request("b", other, SamplingParams(max_tokens=30))
    cached = 0
    while engine.has_work():
        for output in engine.step():
            said[output.request_id] += output.new_token_ids
            cached = max(cached, output.cached_tokens)
        engine.check_integrity()
        if len(said["b"]) == 1:
            assert GONE not in running.block_table[:12]
            assert GONE in running.block_table[12:]
            assert running.num_hashed == 12
    assert cached == 48
    assert said == {"a": expected(PROMPT, 100), "b": expected(other, 30)}


def test_pinned_blocks_stay() -> None:
    regions = [Region(16, "shop"), Region(60, "mine")]
    engine = null_engine(num_blocks=16, **WINDOWED)
    engine.prompts.warm("shop", PROMPT[:17], [Region(16, "shop"), Region(17, "other")])
    while engine.has_work():
        engine.step()
    assert engine.pool.num_pinned == 4
    engine.add_request("a", PROMPT, SamplingParams(max_tokens=80), regions=regions)
    said: list[int] = []
    while engine.has_work():
        for output in engine.step():
            said += output.new_token_ids
        engine.check_integrity()
    assert said == expected(PROMPT, 80)
    assert engine.pool.num_pinned == 4
    engine.add_request("b", PROMPT, SamplingParams(max_tokens=1), regions=regions)
    (output,) = [output for output in engine.step() if output.started]
    assert output.started is not None
    assert output.started[1] >= 16


@pytest.mark.parametrize("family", ["mistral", "phi3"])
def test_a_windowed_model_answers_as_transformers_does_in_a_pool_too_small_for_the_text(
    family: str, tmp_path: Path
) -> None:
    """Window 32; prompts of 100 and 60 tokens and answers of 150, in 144 slots together."""
    make = make_tiny if family == "mistral" else make_foreign
    folder = make(tmp_path / "m", family, sliding_window=32, tie_word_embeddings=False)
    config = EngineConfig(
        model=str(folder), dtype="float32", device="cpu", num_blocks=18, block_size=8, token_budget=32, max_num_seqs=8
    )
    engine = LLMEngine(config)
    generator = torch.Generator().manual_seed(0)
    prompts = {name: torch.randint(3, 384, (n,), generator=generator).tolist() for name, n in (("a", 100), ("b", 60))}
    got = answers(engine, prompts, SamplingParams(temperature=0, max_tokens=150, ignore_eos=True))
    reference = theirs(folder)
    for name, prompt in prompts.items():
        assert len(set(got[name])) > 10
        logits = their_logits(reference, prompt + got[name][:-1])
        assert logits[len(prompt) - 1 :].argmax(-1).tolist() == got[name]
