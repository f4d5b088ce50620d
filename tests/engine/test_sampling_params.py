"""What a request may ask for, and how it travels."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest

from engine.sampling_params import MOST_BIASES, SamplingParams


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_tokens", 0),
        ("n", 0),
        ("n", 129),
        ("logit_bias", {5: 100.5}),
        ("logit_bias", {5: math.nan}),
        ("logit_bias", {-1: 1.0}),
        ("logit_bias", dict.fromkeys(range(MOST_BIASES + 1), 1.0)),
        ("presence_penalty", 2.1),
        ("presence_penalty", math.nan),
        ("frequency_penalty", -2.1),
        ("repetition_penalty", 0.0),
        ("repetition_penalty", math.inf),
        ("logprobs", -1),
        ("logprobs", 21),
        ("prompt_logprobs", 21),
        ("repetition_stop", 0),
        ("repetition_stop", 5000),
    ],
)
def test_a_value_out_of_range_is_refused_by_its_name(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"^{name} is out of range"):
        SamplingParams(**{name: value})


def test_settings_survive_both_ways_of_writing_them() -> None:
    params = SamplingParams(
        n=3, logit_bias={7: -100.0, 11: 2.5}, logprobs=0, prompt_logprobs=5, repetition_stop=32, presence_penalty=-2.0
    )
    for way in (msgspec.json, msgspec.msgpack):
        assert way.decode(way.encode(params), type=SamplingParams) == params
    assert msgspec.json.encode(SamplingParams()) == b"{}", "what is not asked for takes no room"


def test_only_penalties_make_logits_depend_on_what_came_before() -> None:
    assert not SamplingParams(logit_bias={1: 1.0}, min_tokens=4, logprobs=3).penalised
    for name in ("presence_penalty", "frequency_penalty", "repetition_penalty"):
        assert SamplingParams(**{name: 0.5}).penalised
