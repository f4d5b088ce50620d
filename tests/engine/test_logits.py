"""Edits of logits against the plainest way of making them, token by token and row by row."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.logits import LogitEdits, edit, logprobs
from engine.sampling_params import SamplingParams

VOCAB = 40
STOPS = frozenset({3, 17, 10**6})

params_strategy = st.builds(
    SamplingParams,
    logit_bias=st.dictionaries(st.integers(0, VOCAB + 3), st.floats(-100, 100), max_size=5),
    presence_penalty=st.sampled_from([0.0, 0.7, -2.0]),
    frequency_penalty=st.sampled_from([0.0, 0.3, -1.5]),
    repetition_penalty=st.sampled_from([1.0, 1.3, 0.5, 10.0]),
    min_tokens=st.sampled_from([0, 0, 5]),
)
tokens_strategy = st.lists(st.integers(0, VOCAB - 1), max_size=150)


def plain(
    logits: list[float], params: SamplingParams, prompt: list[int], output: list[int], stops: Iterable[int] = STOPS
) -> list[float]:
    """What the documentation of the settings says, for one row."""
    row = [x + params.logit_bias.get(token, 0.0) for token, x in enumerate(logits)]
    for token in {*prompt, *output}:
        by = params.repetition_penalty
        row[token] = row[token] / by if row[token] > 0 else row[token] * by
    for token in set(output):
        row[token] -= params.frequency_penalty * output.count(token) + params.presence_penalty
    if len(output) < params.min_tokens:
        for token in stops:
            if token < len(row):
                row[token] = -math.inf
    return row


@given(
    st.lists(st.tuples(params_strategy, tokens_strategy, tokens_strategy), min_size=1, max_size=5), st.integers(0, 999)
)
@settings(max_examples=150, deadline=None)
def test_edits_are_those_of_the_plain_rule_however_the_tokens_came(
    asked: list[tuple[SamplingParams, list[int], list[int]]], seed: int
) -> None:
    chance = random.Random(seed)
    logits = torch.randn(len(asked) + 2, VOCAB, generator=torch.Generator().manual_seed(seed)) * 5
    untouched = logits.clone()
    rows = []
    for row, (params, prompt, output) in enumerate(asked, 1):
        edits = LogitEdits(params, len(prompt), STOPS, VOCAB)
        known = len(prompt)
        while known < len(prompt + output):  # some at a time, as steps do
            edits.follow((prompt + output)[:known])
            known += chance.randint(1, 40)
        edits.follow(prompt + output)
        rows.append((row, edits, len(output)))
    edit(logits, rows)
    for row, (params, prompt, output) in enumerate(asked, 1):
        wanted = plain(untouched[row].tolist(), params, prompt, output)
        assert logits[row].tolist() == pytest.approx(wanted, rel=1e-5, abs=1e-4)
    assert torch.equal(logits[[0, -1]], untouched[[0, -1]]), "rows that ask for nothing stay as they were"


def test_any_number_of_different_tokens_is_counted() -> None:
    for repetition in (1.0, 1.2):
        params = SamplingParams(frequency_penalty=0.5, repetition_penalty=repetition)
        prompt, output = list(range(100, 400)), [*range(300), 7, 7]
        edits = LogitEdits(params, len(prompt), STOPS, 500)
        for length in range(len(prompt), len(prompt + output) + 1):
            edits.follow((prompt + output)[:length])
        logits = torch.ones(1, 500)
        edit(logits, [(0, edits, len(output))])
        wanted = plain([1.0] * 500, params, prompt, output)
        assert logits[0].tolist() == pytest.approx(wanted, rel=1e-5)


@given(tokens_strategy, tokens_strategy)
@settings(max_examples=50, deadline=None)
def test_edits_made_anew_after_a_preemption_are_the_same_to_the_bit(prompt: list[int], output: list[int]) -> None:
    params = SamplingParams(presence_penalty=0.3, frequency_penalty=0.1, repetition_penalty=1.7)
    followed, anew = (LogitEdits(params, len(prompt), STOPS, VOCAB) for _ in range(2))
    for length in range(len(prompt), len(prompt + output) + 1):
        followed.follow((prompt + output)[:length])
    anew.follow(prompt + output)
    logits = torch.randn(2, VOCAB, generator=torch.Generator().manual_seed(len(output)))
    logits[1] = logits[0]
    edit(logits, [(0, followed, len(output)), (1, anew, len(output))])
    assert torch.equal(logits[0], logits[1])


def test_a_bias_of_minus_100_forbids_in_effect_and_one_of_100_decides() -> None:
    logits = torch.tensor([[30.0, 29.0, -30.0]])
    forbidding = LogitEdits(SamplingParams(logit_bias={0: -100.0}), 0, STOPS, 3)
    deciding = LogitEdits(SamplingParams(logit_bias={2: 100.0}), 0, STOPS, 3)
    edited = logits.repeat(2, 1)
    edit(edited, [(0, forbidding, 0), (1, deciding, 0)])
    assert edited.argmax(-1).tolist() == [1, 2]
    assert edited.softmax(-1)[0, 0] < 1e-30


def test_logprobs_are_those_of_the_log_softmax_best_first() -> None:
    logits = torch.randn(4, VOCAB, generator=torch.Generator().manual_seed(0)) * 3
    told = logprobs(logits, [5, 0, 39, 7], [0, 3, 20, 1])
    wanted = np.log(torch.softmax(logits.double(), -1).numpy())
    for row, (one, most) in enumerate(zip(told, [0, 3, 20, 1], strict=True)):
        assert one.logprob == pytest.approx(wanted[row, one.token_id], abs=1e-5)
        order = np.argsort(-wanted[row])[:most]
        assert [token for token, _ in one.top] == order.tolist()
        assert [value for _, value in one.top] == pytest.approx(wanted[row, order].tolist(), abs=1e-5)
    assert [one.token_id for one in told] == [5, 0, 39, 7]
