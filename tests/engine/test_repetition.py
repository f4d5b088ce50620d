"""Answers that go round in circles end, and no others."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.repetition import LEAST_CYCLES, RepetitionWatch
from engine.sampling_params import SamplingParams
from tests.engine.hash_model import hash_engine


def circles(tokens: list[int], window: int) -> bool:
    """The definition, in the plainest way."""
    last = tokens[-window:]
    periods = range(1, window // LEAST_CYCLES + 1)
    return len(last) == window and any(last[p:] == last[: window - p] for p in periods)


@given(st.integers(8, 40), st.integers(0, 2**32), st.integers(1, 3))
def test_a_circle_is_noticed_with_the_very_token_that_closes_it(window: int, seed: int, alphabet: int) -> None:
    chance = random.Random(seed)
    tokens: list[int] = []
    watch = RepetitionWatch(window)
    while len(tokens) < 300:
        cycle = [chance.randrange(alphabet) for _ in range(chance.randint(1, 12))]
        for token in (cycle * 12)[: chance.randint(1, 60)]:
            tokens.append(token)
            assert watch.push(token) == circles(tokens, window)


def test_a_watch_of_a_continued_answer_goes_on_as_the_first_would() -> None:
    said = [9, 1, 2, 3, 1, 2, 3, 1, 2, 3]
    watch = RepetitionWatch(12, said)
    assert [watch.push(token) for token in (1, 2, 3, 1)] == [False, False, True, True]


@pytest.mark.parametrize("min_tokens", [0, 30])
def test_an_answer_that_goes_in_circles_ends_with_stop_and_one_that_may_goes_on(min_tokens: int) -> None:
    engine = hash_engine()
    forced = {"temperature": 0.0, "logit_bias": {7: 100.0}, "max_tokens": 40, "min_tokens": min_tokens}
    (answer,) = engine.generate([[1, 2, 3]], SamplingParams(repetition_stop=16, **forced))
    assert answer.token_ids == [7] * max(16, min_tokens)
    assert answer.finish_reason == "stop"
    (other,) = engine.generate([[1, 2, 3]], SamplingParams(**forced))
    assert other.token_ids == [7] * 40
    assert other.finish_reason == "length"
