"""Speculation in the engine: the same answers in fewer steps, and nothing taken from anybody."""

from __future__ import annotations

import pytest

from engine.llm_engine import LLMEngine
from engine.sampling_params import SamplingParams
from tests.engine.null_model import expected, null_engine

LONG = SamplingParams(max_tokens=120, temperature=0.0)


def answer_all(engine: LLMEngine, prompts: dict[str, list[int]], params: SamplingParams = LONG) -> dict[str, list[int]]:
    answers: dict[str, list[int]] = {name: [] for name in prompts}
    for name, prompt in prompts.items():
        engine.add_request(name, prompt, params, tenant=name[0])
    while engine.has_work():
        for output in engine.step():
            answers[output.request_id] += output.new_token_ids
        engine.check_integrity()
    return answers


def test_an_answer_that_repeats_itself_takes_fewer_steps_and_is_the_same() -> None:
    prompts = {"a": [1, 2, 3], "b": [4, 5, 6, 7]}
    steps = {}
    for speculation in (False, True):
        engine = null_engine(num_blocks=128, memory=1, speculation=speculation, token_budget=32)
        answers = answer_all(engine, prompts)
        assert answers == {name: expected(prompt, 120, 1) for name, prompt in prompts.items()}
        steps[speculation] = engine.steps
    assert steps[True] < steps[False] / 2
    counters = engine.counters()
    assert counters["accepted_tokens"] > 100
    assert counters["output_tokens"] == 240


def test_an_answer_that_never_repeats_itself_is_hardly_drafted_for() -> None:
    engine = null_engine(num_blocks=128, speculation=True)
    assert answer_all(engine, {"a": [1, 2, 3]}) == {"a": expected([1, 2, 3], 120)}
    assert engine.counters()["drafted_tokens"] < 12


@pytest.mark.parametrize("num_blocks", [32, 40, 64])
def test_drafts_never_make_a_full_pool_preempt(num_blocks: int) -> None:
    preemptions = {}
    prompts = {f"{tenant}{i}": [i + 1, ord(tenant) % 90] for i in range(2) for tenant in "ab"}
    for speculation in (False, True):
        engine = null_engine(num_blocks=num_blocks, memory=1, speculation=speculation, token_budget=32)
        answers = answer_all(engine, prompts, SamplingParams(max_tokens=40))
        assert answers == {name: expected(prompt, 40, 1) for name, prompt in prompts.items()}
        preemptions[speculation] = engine.scheduler.preemptions
    assert preemptions[True] <= preemptions[False]


def test_drafts_do_not_go_beyond_max_tokens_or_the_context() -> None:
    for max_tokens in range(1, 12):
        engine = null_engine(num_blocks=64, memory=1, speculation=True, max_model_len=40)
        prompt = expected([3], 31, 1)
        answers = answer_all(engine, {"a": prompt}, SamplingParams(max_tokens=max_tokens))
        assert answers == {"a": expected(prompt, min(max_tokens, 9), 1)}


def test_penalties_are_not_drafted_for() -> None:
    engine = null_engine(num_blocks=64, memory=1, speculation=True)
    answer_all(engine, {"a": [1, 2, 3]}, SamplingParams(max_tokens=60, presence_penalty=0.5))
    assert engine.counters()["drafted_tokens"] == 0
