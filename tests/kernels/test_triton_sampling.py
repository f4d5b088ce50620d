"""One launch draws the token that the engine's sampler draws, for any settings, from any logits."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from engine.sampler import SamplingRows, _draw_on_gpu, sample
from engine.sampling_params import SamplingParams
from kernels.triton import pick

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning:triton")  # numpy's, of infinities


def both(logits: Tensor, params: list[SamplingParams]) -> tuple[list[int], list[int]]:
    """What the engine's sampler draws, and what the kernel does; -1 for rows that are unusable."""
    count = len(params)
    settings = SamplingRows(count)
    for row, one in enumerate(params):
        settings.set(row, one, index=row % 3)
    rows, positions = np.arange(count), np.arange(count) * 7
    ours, found = _draw_on_gpu(logits.clone(), settings, rows, positions)
    theirs, bad = sample(logits.clone(), settings, rows, positions)
    return (
        [-1 if row in bad else token for row, token in enumerate(theirs)],
        [-1 if unusable else token for token, unusable in zip(ours.tolist(), found.tolist(), strict=True)],
    )


def random_settings(rng: np.random.Generator, count: int) -> list[SamplingParams]:
    return [
        SamplingParams(
            temperature=float(rng.choice([0.0, 1e-4, 0.3, 0.7, 1.0, 2.0])),
            top_k=int(rng.choice([0, 0, 1, 2, 5, 40, 900, 10**6])),
            top_p=float(rng.choice([1.0, 1.0, 0.0, 1e-6, 0.1, 0.5, 0.9, 0.999])),
            min_p=float(rng.choice([0.0, 0.0, 0.01, 0.2, 1.0])),
            seed=int(rng.integers(2**62)),
        )
        for _ in range(count)
    ]


@pytest.mark.parametrize("vocabulary", [1, 7, 1000, 5000])
def test_the_kernel_draws_what_the_engine_s_sampler_draws(vocabulary: int) -> None:
    rng = np.random.default_rng(vocabulary)
    logits = torch.from_numpy(rng.normal(0, 3, (24, vocabulary)).astype(np.float32))
    theirs, ours = both(logits, random_settings(rng, 24))
    assert ours == theirs


@pytest.mark.long
def test_a_large_vocabulary_and_many_settings_agree_as_well() -> None:
    rng = np.random.default_rng(0)
    for scale in (0.01, 1.0, 30.0):
        logits = torch.from_numpy(rng.normal(0, scale, (100, 49_152)).astype(np.float32))
        theirs, ours = both(logits, random_settings(rng, 100))
        assert sum(a != b for a, b in zip(ours, theirs, strict=True)) <= 1, "a draw right at a token's edge may differ"


def test_tied_and_forbidden_logits_are_admitted_or_not_as_the_sampler_does() -> None:
    rng = np.random.default_rng(5)
    logits = torch.from_numpy(rng.integers(-3, 3, (32, 300)).astype(np.float32))
    logits[:, ::3] = -torch.inf
    logits[7], logits[7, 5] = -torch.inf, 1.0
    theirs, ours = both(logits, random_settings(rng, 32))
    assert ours == theirs
    drawn = logits[torch.arange(32), torch.tensor(ours)]
    assert drawn.isfinite().all()


def test_unusable_rows_are_told_and_disturb_no_other() -> None:
    """C23"""
    torch.manual_seed(0)
    logits = torch.randn(6, 5000)
    logits[0, 4999], logits[1, 17], logits[2] = float("nan"), float("inf"), -torch.inf
    params = [SamplingParams(temperature=0.8, top_p=0.9, seed=row) for row in range(6)]
    params[1] = SamplingParams(temperature=0.0)
    theirs, ours = both(logits, params)
    assert ours[:3] == [-1, -1, -1]
    assert ours == theirs


def test_logits_from_end_to_end_of_float32_are_searched_to_the_end() -> None:
    torch.manual_seed(2)
    logits = torch.cat([torch.logspace(-44, 38.5, 50), -torch.logspace(-44, 38.5, 50), torch.tensor([0.0, -0.0])])
    logits = torch.stack([logits[torch.randperm(102)] for _ in range(4)])
    params = [SamplingParams(temperature=2.0, top_k=k, top_p=0.99, seed=k) for k in (2, 49, 60, 101)]
    theirs, ours = both(logits, params)
    assert ours == theirs


def test_a_row_s_token_does_not_depend_on_its_neighbours_or_its_place() -> None:
    """C24"""
    rng = np.random.default_rng(3)
    logits = torch.from_numpy(rng.normal(0, 2, (6, 777)).astype(np.float32))
    settings = torch.rand(6, 5, dtype=torch.float64)
    settings[:, 2] = torch.randint(0, 50, (6,))
    together = pick(logits, settings)
    order = torch.randperm(6)
    assert torch.equal(pick(logits[order], settings[order]), together[order])
    apart = torch.cat([pick(logits[i : i + 1], settings[i : i + 1]) for i in range(6)])
    assert torch.equal(apart, together)


def test_draws_follow_the_distribution() -> None:
    count = 50
    logits = torch.tensor([0.1, 0.2, 0.3, 0.4]).log().expand(count, 4)
    settings = torch.tensor([1.0, 0.0, 0.0, 1.0, 0.0], dtype=torch.float64).repeat(count, 1)
    settings[:, 4] = (torch.arange(count) + 0.5) / count
    share = pick(logits.contiguous(), settings).bincount(minlength=4) / count
    torch.testing.assert_close(share, torch.tensor([0.1, 0.2, 0.3, 0.4]), atol=1 / count, rtol=0.0)
