"""max_itl_ms in the engine: a long prompt is cut so that those who decode beside it are not held up (C18)."""

from __future__ import annotations

import statistics

from engine.config import EngineConfig
from engine.flat_batch import NOTHING
from engine.llm_engine import LLMEngine
from engine.sampling_params import SamplingParams
from tests.engine.null_model import NullRunner

BASE_S, DECODE_S, PREFILL_S = 0.005, 0.001, 0.0005


class TimedRunner(NullRunner):
    """The null model on a machine whose steps take a known time, on a clock of its own."""

    def __init__(self, config: EngineConfig) -> None:
        super().__init__(config)
        self.time = 0.0
        self.steps: list[tuple[int, int, float]] = []

    def launch(self, batch, behind=NOTHING):  # type: ignore[no-untyped-def]
        decodes = sum(not sequence.prefilling for sequence in batch)
        prefill = sum(batch.values()) - decodes
        seconds = BASE_S + decodes * DECODE_S + prefill * PREFILL_S
        self.time += seconds
        self.steps.append((decodes, prefill, seconds))
        return super().launch(batch, behind)


def timed_engine(max_itl_ms: float | None) -> LLMEngine:
    config = EngineConfig(num_blocks=4096, block_size=4, max_num_seqs=32, token_budget=512, max_itl_ms=max_itl_ms)
    runner = TimedRunner(config)
    return LLMEngine(config, runner=runner, clock=lambda: runner.time)


def with_long_prompts_among_chats(engine: LLMEngine) -> list[tuple[int, int, float]]:
    """The steps (decodes, prompt tokens, seconds) that sixteen chats spend beside prompts of 3,000 tokens."""
    for number in range(16):
        params = SamplingParams(max_tokens=400)
        engine.add_request(f"chat {number}", [number + 1] * 20, params, tenant=f"chats {number % 4}")
    for _ in range(60):
        engine.step()
    before = len(engine.runner.steps)
    for number in range(3):
        prompt = [1 + (number + i * i) % 96 for i in range(3000)]
        engine.add_request(f"long {number}", prompt, SamplingParams(max_tokens=1), tenant="long")
    while "long 2" in engine._live:
        engine.step()
    return engine.runner.steps[before:]


def test_a_long_prompt_does_not_raise_the_others_time_between_tokens_above_the_bound() -> None:
    steps = with_long_prompts_among_chats(timed_engine(60.0))
    beside = [seconds for decodes, prefill, seconds in steps if decodes and prefill]
    assert len(beside) > 50
    assert sum(seconds > 0.060 for seconds in beside) <= 0.05 * len(beside)
    assert statistics.median(beside) > 0.035, "what the bound allows is used"


def test_without_a_bound_only_the_token_budget_cuts_a_prompt() -> None:
    steps = with_long_prompts_among_chats(timed_engine(None))
    assert max(prefill for _, prefill, _ in steps) == 512 - 16


def test_a_bound_that_cannot_be_met_still_lets_prompts_be_computed() -> None:
    steps = with_long_prompts_among_chats(timed_engine(1.0))
    assert {prefill for decodes, prefill, _ in steps if decodes and prefill} <= set(range(1, 17))
    assert sum(prefill for _, prefill, _ in steps) >= 9000


def test_a_prompt_alone_is_not_cut() -> None:
    engine = timed_engine(20.0)
    engine.add_request("long", [1 + i * i % 96 for i in range(3000)], SamplingParams(max_tokens=1), tenant="long")
    engine.step()
    assert engine.runner.steps[0][:2] == (0, 512)
