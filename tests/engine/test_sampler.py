"""Draws: right distributions, extreme settings, independence of the neighbours."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine import sampler
from engine.cpu_runner import sample_by
from engine.sampler import Sample, SamplingRows, uniforms
from engine.sampling_params import SamplingParams
from kernels.cpu import sampling
from kernels.cpu.build import load

sample: Sample = sampler.sample


@pytest.fixture(params=["torch", "avx512", "portable"], autouse=True, scope="module")
def path(request: pytest.FixtureRequest) -> Iterator[None]:
    """Every test holds for every implementation."""
    global sample
    if request.param != "torch":
        library = load(request.param)
        sample = sample_by(lambda logits, **settings: sampling.sample(library, None, logits, **settings))
    yield
    sample = sampler.sample


def draw(logits: torch.Tensor, params: list[SamplingParams], positions: list[int] | None = None) -> list[int]:
    """One token per row, each row with its own settings; none of the rows may be called unusable."""
    rows = SamplingRows(len(params))
    for row, each in enumerate(params):
        rows.set(row, each, 0)
    where = np.array(positions or [0] * len(params), np.int64)
    tokens, bad = sample(logits.clone(), rows, np.arange(len(params)), where)
    assert not bad
    return tokens


def frequencies(logits: torch.Tensor, count: int = 20_000, **params: float) -> np.ndarray:
    """How often each token of one row of logits is drawn, over `count` positions."""
    tokens = draw(logits.expand(count, -1), [SamplingParams(**params)] * count, list(range(count)))
    return np.bincount(tokens, minlength=logits.shape[-1]) / count


def admitted(logits: torch.Tensor, params: SamplingParams) -> set[int]:
    """The tokens that the filters leave, in the plainest way: min_p, then top_k, then top_p."""
    p = torch.softmax(logits.double() / params.temperature, -1)
    left = {i for i in range(len(p)) if p[i] >= params.min_p * p.max() * (1 - 1e-6)}
    if params.top_k:
        order = sorted(left, key=lambda i: -p[i])
        left = {i for i in left if p[i] >= p[order[min(params.top_k, len(order)) - 1]]}
    if params.top_p < 1:
        total = sum(float(p[i]) for i in left)
        mass, least = 0.0, 0.0
        for i in sorted(left, key=lambda i: -p[i]):
            mass, least = mass + float(p[i]), float(p[i])
            if mass >= params.top_p * total * (1 - 1e-6):
                break
        left = {i for i in left if p[i] >= least}
    return left


def test_frequencies_follow_the_softmax() -> None:
    logits = torch.tensor([2.0, 1.0, 0.0, -1.0, -30.0])
    for temperature in (0.5, 1.0, 2.0):
        wanted = torch.softmax(logits / temperature, -1).numpy()
        assert np.abs(frequencies(logits, temperature=temperature) - wanted).max() < 0.015


def test_frequencies_follow_the_softmax_over_a_vocabulary_of_many_spans() -> None:
    logits = torch.full((1000,), -100.0)
    logits[[0, 255, 256, 511, 999]] = torch.tensor([0.0, 1.0, 2.0, 1.0, 0.5])
    wanted = torch.softmax(logits, -1).numpy()
    assert np.abs(frequencies(logits) - wanted).max() < 0.015


@pytest.mark.parametrize(
    "params",
    [
        {"top_k": 1},
        {"top_k": 3},
        {"top_p": 0.5},
        {"top_p": 0.9},
        {"min_p": 0.2},
        {"top_k": 5, "top_p": 0.8, "min_p": 0.01, "temperature": 1.7},
        {"top_p": 0.999999},
    ],
)
@pytest.mark.parametrize("vocabulary", [12, 700])
def test_filters_admit_exactly_what_the_plain_rule_admits(params: dict[str, float], vocabulary: int) -> None:
    generator = torch.Generator().manual_seed(vocabulary)
    logits = torch.randn(vocabulary, generator=generator) * (4 if vocabulary > 100 else 1)
    wanted = admitted(logits, SamplingParams(**params))
    drawn = np.flatnonzero(frequencies(logits, **params))
    assert set(drawn.tolist()) <= wanted
    p = torch.softmax(logits.double() / params.get("temperature", 1.0), -1)
    likely = {i for i in wanted if p[i] > 0.003 * sum(p[j] for j in wanted)}
    assert likely <= set(drawn.tolist())


def test_top_p_looks_beyond_its_first_candidates_in_a_flat_distribution() -> None:
    logits = torch.zeros(6000)
    logits[:3000] = torch.linspace(0.1, 0.0, 3000)
    seen = frequencies(logits, count=6000, top_p=0.45) > 0
    assert not seen[2900:].any()
    assert seen[2400:2700].any()


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=1e-4),
        SamplingParams(temperature=5e-324),
        SamplingParams(temperature=0.0),
        SamplingParams(top_p=0.0),
        SamplingParams(top_p=1e-9),
        SamplingParams(min_p=1.0),
        SamplingParams(top_k=1),
    ],
)
def test_extreme_settings_are_greedy_without_nan(params: SamplingParams) -> None:
    """C23."""
    logits = torch.tensor([[1.0, 5.0, 4.9, -2.0], [1e4, 9e3, -1e4, 0.0], [-1e30, -2e30, -3e30, -torch.inf]])
    assert draw(logits, [params] * 3) == [1, 0, 0]


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(top_k=10**9),
        SamplingParams(top_k=4),
        SamplingParams(top_k=5, top_p=1.0),
        SamplingParams(temperature=100.0),
        SamplingParams(top_p=0.9, top_k=2**62),
    ],
)
def test_a_top_k_larger_than_the_vocabulary_means_no_limit(params: SamplingParams) -> None:
    """C23."""
    tokens = draw(torch.zeros(500, 4), [params] * 500, list(range(500)))
    assert set(tokens) == {0, 1, 2, 3}


@given(
    st.lists(st.floats(-1e4, 1e4, width=32), min_size=1, max_size=20),
    st.floats(0, 100),
    st.floats(0, 1),
    st.floats(0, 1),
    st.integers(0, 30),
    st.integers(-(2**63), 2**63 - 1),
)
@settings(max_examples=300, deadline=None)
def test_any_settings_draw_a_possible_token(
    row: list[float], temperature: float, top_p: float, min_p: float, top_k: int, seed: int
) -> None:
    params = SamplingParams(temperature=temperature, top_p=top_p, min_p=min_p, top_k=top_k, seed=seed)
    logits = torch.tensor([row], dtype=torch.float32)
    (token,) = draw(logits, [params])
    assert 0 <= token < len(row)
    if params.greedy:
        assert row[token] == max(row)


def test_an_unusable_row_is_reported_and_disturbs_no_other() -> None:
    logits = torch.tensor([[0.0, 3.0, 1.0], [math.nan, 0.0, 1.0], [math.inf, 0.0, 1.0], [-math.inf] * 3, [2.0, 0, 0]])
    rows = SamplingRows(5)
    for params in (SamplingParams(temperature=0.0), SamplingParams(seed=3, top_p=0.9)):
        for row in range(5):
            rows.set(row, params, 0)
        alone, _ = sample(logits[[0, 4]].clone(), rows, np.array([0, 4]), np.zeros(2, np.int64))
        tokens, bad = sample(logits.clone(), rows, np.arange(5), np.zeros(5, np.int64))
        assert bad == [1, 2, 3]
        assert [tokens[0], tokens[4]] == alone


def test_a_draw_does_not_depend_on_its_neighbours() -> None:
    """C24's half that is the sampler's: same seed and position, other batch, same tokens."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(16, 3000, generator=generator) * 3
    params = [
        SamplingParams(seed=n, temperature=0.5 + n / 8, top_p=1 - n / 40, top_k=n * 7, min_p=n / 100) for n in range(16)
    ]
    params[3] = SamplingParams(temperature=0.0)
    together = draw(logits, params, list(range(16)))
    for n in range(16):
        assert draw(logits[n : n + 1], [params[n]], [n]) == together[n : n + 1]
    order = torch.randperm(16, generator=generator).tolist()
    assert draw(logits[order], [params[n] for n in order], order) == [together[n] for n in order]


def test_uniform_numbers_are_uniform_and_unrelated() -> None:
    n = 40_000
    steps, zeros = np.arange(n), np.zeros(n, np.int64)
    streams = [
        uniforms(zeros, zeros, steps),
        uniforms(steps, zeros, zeros),
        uniforms(zeros, steps, zeros),
        uniforms(zeros + 7, zeros, steps),
        uniforms(-steps - 1, zeros, zeros),
    ]
    for stream in streams:
        assert stream.min() >= 0
        assert stream.max() < 1
        counts = np.histogram(stream, 20, (0, 1))[0]
        assert ((counts - n / 20) ** 2 / (n / 20)).sum() < 45, "chi-square of 19 degrees, p below 0.001"
        assert abs(np.corrcoef(stream[:-1], stream[1:])[0, 1]) < 0.025
    for i, one in enumerate(streams):
        for other in streams[i + 1 :]:
            assert abs(np.corrcoef(one, other)[0, 1]) < 0.025


def test_seed_index_and_position_are_not_interchangeable() -> None:
    a, b, c = (np.array([value]) for value in (1, 2, 3))
    assert len({float(uniforms(*order)[0]) for order in ((a, b, c), (b, a, c), (c, b, a), (a, c, b))}) == 4
