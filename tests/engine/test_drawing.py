"""What sequences get from a step: the same whatever their neighbours ask for, with drafts and without, in parts or not.

Over a model whose logits are exact (`hash_model`), so that equal means equal; real runners: `test_batch_invariance`.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine import LLMEngine
from engine.outputs import RequestRefused
from engine.sampling_params import SamplingParams, TokenLogprobs
from engine.scheduler import Batch
from tests.engine.hash_model import EOS, VOCAB, hash_engine, knowing, logits_after, speculate
from tests.engine.test_logits import plain

PROMPTS = {f"r{n}": [(n * 7 + i * i) % (VOCAB - 1) + 1 for i in range(3 + n * 5)] for n in range(6)}
EVERYTHING = [
    SamplingParams(max_tokens=30, temperature=0.0),
    SamplingParams(max_tokens=30, seed=1, temperature=0.9, top_p=0.8, logprobs=3),
    SamplingParams(max_tokens=30, seed=2, presence_penalty=1.0, frequency_penalty=0.4, repetition_penalty=1.2),
    SamplingParams(max_tokens=30, seed=3, min_tokens=12, logit_bias={0: 8.0, 5: -100.0}, logprobs=0),
    SamplingParams(max_tokens=30, seed=4, top_k=8, min_p=0.05, prompt_logprobs=2, stop_token_ids=(4, 9)),
    SamplingParams(max_tokens=30, seed=5, temperature=0.3, repetition_stop=8, frequency_penalty=-2.0, logprobs=20),
]
Told = tuple[list[int], str, list[TokenLogprobs], list[TokenLogprobs]]


def ask(engine: LLMEngine, asked: dict[str, SamplingParams]) -> dict[str, Told]:
    """Run requests together, all from the start; what each was told in the end."""
    told: dict[str, Told] = {name: ([], "", [], []) for name in asked}
    for name, params in asked.items():
        engine.add_request(name, PROMPTS[name], params)
    while engine.has_work():
        for output in engine.step():
            tokens, reason, about, about_prompt = told[output.request_id]
            tokens += output.new_token_ids
            about += output.logprobs or []
            about_prompt += output.prompt_logprobs or []
            assert output.logprobs is None or len(output.logprobs) == len(output.new_token_ids)
            told[output.request_id] = (tokens, output.finish_reason or reason, about, about_prompt)
        engine.check_integrity()
    return told


@cache
def alone(name: str, which: int) -> Told:
    """A prompt with settings, in an engine of its own."""
    return ask(hash_engine(token_budget=256), {name: EVERYTHING[which]})[name]


@given(
    st.permutations(sorted(PROMPTS)),
    st.lists(st.integers(0, len(EVERYTHING) - 1), min_size=1, max_size=len(PROMPTS)),
    st.sampled_from([{}, {"num_blocks": 20}, {"token_budget": 5, "prefix_caching": False}, {"most_rows": 7}]),
    st.sampled_from([None, 0.5, 0.95]),
)
@settings(max_examples=60, deadline=None)
def test_what_a_request_is_told_does_not_depend_on_its_neighbours(
    names: list[str],
    which: list[int],
    config: dict[str, Any],
    right: float | None,
) -> None:
    """C24's half that is ours: other batch, other chunks, preempted, cached, with drafts and without."""
    engine = hash_engine(**config)
    asked = dict(zip(names, which, strict=False))
    if right is not None:
        speculate(engine, knowing({name: alone(name, number)[0] for name, number in asked.items()}, right))
    for _ in range(2):  # the second time much is cached
        told = ask(engine, {name: EVERYTHING[number] for name, number in asked.items()})
        assert told == {name: alone(name, number) for name, number in asked.items()}


def test_a_preempted_answer_goes_on_as_if_nothing_had_been() -> None:
    engine, roomy = hash_engine(num_blocks=24, token_budget=24), hash_engine(num_blocks=256)
    asked = dict(zip(PROMPTS, EVERYTHING, strict=True))
    assert ask(engine, asked) == ask(roomy, asked)
    assert engine.scheduler.preemptions > 0
    assert roomy.scheduler.preemptions == 0


def test_answers_come_in_fewer_steps_when_drafts_are_right_and_never_differ() -> None:
    params = SamplingParams(max_tokens=60, seed=3, temperature=0.8, ignore_eos=True, logprobs=1)
    asked = dict.fromkeys(["r0", "r3"], params)
    plain = hash_engine(token_budget=64)
    expected = ask(plain, asked)
    answers = {name: told[0] for name, told in expected.items()}
    steps = {}
    for right in (0.0, 0.7, 1.0):
        engine = hash_engine(token_budget=64)
        speculate(engine, knowing(answers, right))
        assert ask(engine, asked) == expected
        assert engine.counters()["output_tokens"] == 120
        steps[right] = engine.steps
    assert steps[1.0] < plain.steps / 2.5
    assert steps[1.0] < steps[0.7] < steps[0.0] <= plain.steps


def test_a_stop_among_accepted_drafts_ends_the_answer_there() -> None:
    for params in (
        SamplingParams(max_tokens=40, seed=3, stop_token_ids=tuple(range(1, 12)), min_tokens=5, logprobs=1),
        SamplingParams(max_tokens=7, seed=3, ignore_eos=True),
    ):
        expected = ask(hash_engine(), {"r1": params})
        longer = SamplingParams(max_tokens=60, seed=3, ignore_eos=True)
        beyond = ask(hash_engine(), {"r1": longer})["r1"][0]
        answer = expected["r1"][0]
        engine = hash_engine(token_budget=32)
        known = answer + beyond[len(answer) :]
        speculate(engine, lambda s, known=known: known[s.num_output :][:9])  # type: ignore[misc]
        assert ask(engine, {"r1": params}) == expected
        assert engine.counters()["output_tokens"] == len(answer)
        assert engine.steps < len(answer)


def test_an_unusable_row_of_a_draft_counts_only_where_the_draft_was_right() -> None:
    """Behind a wrong guess the model may say anything."""
    params = SamplingParams(max_tokens=6, temperature=0.0, ignore_eos=True)
    answer = ask(hash_engine(), {"r0": params})["r0"][0]

    def broken_after(context: list[int]) -> LLMEngine:
        engine = hash_engine(token_budget=32)
        plain = engine.runner.run

        def run(batch: Batch, behind: Batch) -> Any:
            with pytest.MonkeyPatch.context() as patch:
                original = logits_after

                def logits(tokens: list[int], spread: float = 3.0) -> np.ndarray:
                    broken = tokens == PROMPTS["r0"] + context
                    return np.full(VOCAB, np.nan, np.float32) if broken else original(tokens, spread)

                patch.setattr("tests.engine.hash_model.logits_after", logits)
                return plain(batch, behind)

        engine.runner.run = run  # type: ignore[method-assign]
        return engine

    wrong = [answer[0] + 1, 5, 5]
    engine = broken_after(wrong[:2])
    speculate(engine, lambda sequence: wrong if not sequence.num_output else [])
    assert ask(engine, {"r0": params})["r0"][0] == answer
    for behind in (answer[2], 0):  # 0 is what an unusable row gives
        engine = broken_after(answer[:2])
        speculate(engine, lambda sequence, draft=[*answer[:2], behind]: draft[sequence.num_output :])  # type: ignore[misc]
        assert ask(engine, {"r0": params})["r0"][1] == "error"


def test_a_batch_that_asks_for_nothing_is_neither_edited_nor_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*arguments: object) -> None:
        raise AssertionError("nobody asked for this")

    engine = hash_engine()
    ask(engine, {"r0": EVERYTHING[3], "r1": EVERYTHING[2]})
    monkeypatch.setattr("engine.drawing.edit", never)
    monkeypatch.setattr("engine.drawing.logprobs", never)
    ask(engine, {f"r{n}": SamplingParams(max_tokens=5, seed=n, ignore_eos=True) for n in range(4)})
    runner: Any = engine.runner
    assert not runner._drawing._wishes, "those that have left are forgotten"


def test_penalties_bias_and_min_tokens_make_the_answer_that_the_plain_rule_makes() -> None:
    prompt = [5, 9, 9, 30, 5]
    for params in (
        SamplingParams(max_tokens=40, temperature=0.0, presence_penalty=1.5, frequency_penalty=0.7),
        SamplingParams(max_tokens=40, temperature=0.0, repetition_penalty=1.4, logit_bias={5: 4.0, 9: 3.0}),
        SamplingParams(max_tokens=40, temperature=0.0, frequency_penalty=-0.5, logit_bias={EOS: 9.0}, min_tokens=7),
    ):
        tokens: list[int] = []
        while len(tokens) < 40 and EOS not in tokens:
            row = plain(logits_after(prompt + tokens).tolist(), params, prompt, tokens, {EOS})
            tokens.append(row.index(max(row)))
        (answer,) = hash_engine(token_budget=4).generate([prompt], params)
        assert answer.token_ids == tokens


def test_logprobs_are_the_models_own_whatever_the_settings() -> None:
    params = SamplingParams(
        max_tokens=20, seed=1, temperature=0.3, top_k=5, logit_bias={7: 6.0}, presence_penalty=2.0, logprobs=4
    )
    (answer,) = hash_engine().generate([[1, 2, 3]], params)
    assert answer.logprobs is not None
    for position, one in enumerate(answer.logprobs):
        row = torch.from_numpy(logits_after([1, 2, 3, *answer.token_ids[:position]])).log_softmax(-1)
        assert one.token_id == answer.token_ids[position]
        assert one.logprob == pytest.approx(float(row[one.token_id]), abs=1e-5)
        assert [token for token, _ in one.top] == row.argsort(descending=True)[:4].tolist()


def prompt_logprobs(prompt: list[int], most: int) -> list[tuple[int, float, list[int]]]:
    """The plain definition."""
    wanted = []
    for position in range(1, len(prompt)):
        row = torch.from_numpy(logits_after(prompt[:position])).log_softmax(-1)
        order = sorted(range(VOCAB), key=lambda token: -float(row[token]))[:most]
        wanted.append((prompt[position], float(row[prompt[position]]), order))
    return wanted


@pytest.mark.parametrize("config", [{}, {"token_budget": 5}, {"most_rows": 4}, {"token_budget": 256, "num_blocks": 14}])
def test_prompt_logprobs_are_of_the_right_tokens_with_a_warm_cache_and_in_chunks(config: dict[str, int]) -> None:
    """C7."""
    engine = hash_engine(**config)
    ask(engine, {"r5": SamplingParams(max_tokens=3)})  # the prompt is cached from now on
    params = SamplingParams(max_tokens=9, seed=1, prompt_logprobs=3, ignore_eos=True)
    told = ask(engine, {"r5": params, "r4": params, "r0": SamplingParams(max_tokens=20, ignore_eos=True)})
    for name in ("r5", "r4"):
        got = [(one.token_id, one.logprob, [token for token, _ in one.top]) for one in told[name][3]]
        wanted = prompt_logprobs(PROMPTS[name], 3)
        assert [one[::2] for one in got] == [one[::2] for one in wanted]
        assert [one[1] for one in got] == pytest.approx([one[1] for one in wanted], abs=1e-5)
    assert told["r0"][3] == []


def test_a_prompt_preempted_while_it_is_scored_is_told_of_each_token_once() -> None:
    engine = hash_engine(token_budget=6)
    engine.add_request("r5", PROMPTS["r5"], SamplingParams(max_tokens=2, prompt_logprobs=0))
    about = []
    for _ in range(3):
        for output in engine.step():
            about += output.prompt_logprobs or []
    assert 0 < len(about) < len(PROMPTS["r5"]) - 1
    (sequence,) = engine.scheduler.running
    engine.scheduler._preempt(sequence, {})
    while engine.has_work():
        for output in engine.step():
            about += output.prompt_logprobs or []
    assert [one.token_id for one in about] == PROMPTS["r5"][1:]


def test_a_prompt_that_has_been_scored_is_found_in_the_cache_when_it_comes_back() -> None:
    engine = hash_engine(token_budget=64)
    engine.add_request("r5", PROMPTS["r5"], SamplingParams(max_tokens=20, prompt_logprobs=0, ignore_eos=True))
    for _ in range(4):
        engine.step()
    (sequence,) = engine.scheduler.running
    assert sequence.num_output > 0
    engine.scheduler._preempt(sequence, {})
    engine.step()
    assert sequence.num_computed > len(PROMPTS["r5"])
    assert engine.cache.match(sequence).tokens > 0


def test_a_bias_of_a_token_that_the_model_does_not_have_is_refused() -> None:
    with pytest.raises(RequestRefused, match=f"token {VOCAB}, not one of 0") as refused:
        hash_engine().add_request("r", [1, 2], SamplingParams(logit_bias={3: 1.0, VOCAB: 1.0}))
    assert refused.value.param == "logit_bias"
