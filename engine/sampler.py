"""Draws the next token of every row of a step, all rows at once.

Promises: a row's token depends on its logits and on (seed, choice index, position) alone, never on its neighbours;
temperature 0 and top_p 0 are greedy; whatever the settings, no NaN and no exception. A row whose logits are unusable
(NaN, +inf, or everything forbidden) is reported as such and disturbs no other.

The order of the filters is min_p, top_k, top_p, each on what the one before left, all after temperature. They are
applied as a least logit per row, so tokens tied with the last one admitted stay in, and no order among ties is needed.
The draw inverts the cumulative distribution in the order of the vocabulary at one uniform number per row.

It knows nothing of sequences: settings lie in `SamplingRows`, one row per running sequence.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.device import upload
from engine.sampling_params import SamplingParams, TokenLogprobs
from kernels import api

LEAST_TEMPERATURE = 1e-5
"""Below this a draw is greedy for any logits that differ in float32; dividing by less could overflow."""
SPAN = 256
"""The draw sums the distribution in spans of this many tokens, picks a span, and then a token in it."""


class Drawn(msgspec.Struct, gc=False):
    """What a step drew for one sequence.

    tokens: the draft tokens that were accepted and the one drawn behind them; without a draft exactly one. logprobs:
    one per token, when asked for. prompt_logprobs: of the prompt tokens of this step's chunk, when asked for; the first
    token of a prompt has none. bad: the logits were unusable; then there are no tokens. by_settings: the request's
    own settings and grammar left no token.
    """

    tokens: list[int]
    logprobs: list[TokenLogprobs] | None = None
    prompt_logprobs: list[TokenLogprobs] | None = None
    bad: bool = False
    by_settings: bool = False


class SamplingRows:
    """The settings of the running sequences as arrays over rows, written once when a sequence gets its row."""

    def __init__(self, num_rows: int) -> None:
        self.temperature = np.zeros(num_rows, np.float32)
        self.top_p = np.ones(num_rows, np.float32)
        self.top_k = np.zeros(num_rows, np.int64)
        self.min_p = np.zeros(num_rows, np.float32)
        self.seed = np.zeros(num_rows, np.int64)
        self.index = np.zeros(num_rows, np.int64)

    def set(self, row: int, params: SamplingParams, index: int) -> None:
        """`temperature` 0 stands for greedy, whichever setting asked for it."""
        self.temperature[row] = 0.0 if params.greedy else max(params.temperature, LEAST_TEMPERATURE)
        self.top_p[row] = params.top_p
        self.top_k[row] = min(params.top_k, 2**62)
        self.min_p[row] = params.min_p
        self.seed[row] = params.seed
        self.index[row] = index

    def packed(self, rows: NDArray[np.int64], positions: NDArray[np.int64]) -> NDArray[np.float64]:
        """[R, 5]: temperature, min_p, top_k, top_p and the uniform number of each draw, as a GPU's kernel takes it."""
        uniform = uniforms(self.seed[rows], self.index[rows], positions)
        columns = (self.temperature[rows], self.min_p[rows], self.top_k[rows], self.top_p[rows], uniform)
        return np.stack(columns, axis=1, dtype=np.float64)


Sample = Callable[[Tensor, SamplingRows, NDArray[np.int64], NDArray[np.int64]], tuple[list[int], list[int]]]


def sample(
    logits: Tensor, settings: SamplingRows, rows: NDArray[np.int64], positions: NDArray[np.int64]
) -> tuple[list[int], list[int]]:
    """One token per row.

    logits float32 [R, V], changed in place where needed; rows int64 [R]: where each one's settings are; positions
    int64 [R]: the position in its sequence that the drawn token will have. Returns R token ids, and the rows among 0 ..
    R - 1 whose logits were unusable (the id means nothing there).
    """
    tokens, bad = draw(logits, settings, rows, positions)
    return tokens.tolist(), bad.nonzero()[:, 0].tolist()


def draw(
    logits: Tensor, settings: SamplingRows, rows: NDArray[np.int64], positions: NDArray[np.int64]
) -> tuple[Tensor, Tensor]:
    """As `sample`, on the logits' device and without waiting for it: token ids int64 [R], unusable or not bool [R]."""
    device = logits.device
    if api.through_triton(logits):
        return _draw_on_gpu(logits, settings, rows, positions)
    peak, tokens = logits.max(dim=-1)
    bad = ~torch.isfinite(peak)
    temperature = settings.temperature[rows]
    drawn = np.flatnonzero(temperature > 0)
    if len(drawn):
        some = rows[drawn]
        uniform = uniforms(settings.seed[some], settings.index[some], positions[drawn])
        picked = upload(drawn, device)
        part, top = (logits, peak) if len(drawn) == len(rows) else (logits[picked], peak[picked])
        scaled = _scaled(part, top, temperature[drawn])
        weights = _filtered(scaled, settings.min_p[some], settings.top_k[some], settings.top_p[some])
        tokens[picked] = _draw(weights, upload(uniform, device))
    return tokens, bad


def _draw_on_gpu(
    logits: Tensor, settings: SamplingRows, rows: NDArray[np.int64], positions: NDArray[np.int64]
) -> tuple[Tensor, Tensor]:
    """One copy there and one launch."""
    from kernels.triton import pick

    tokens = pick(logits, upload(settings.packed(rows, positions), logits.device))
    return tokens.clamp(min=0), tokens < 0


def uniforms(seed: NDArray[np.int64], index: NDArray[np.int64], position: NDArray[np.int64]) -> NDArray[np.float64]:
    """A uniform number in [0, 1) for each (seed, choice index, position), always the same one. float64, 52 bits: so
    that its product with any total stays below the total.

    A counter-based generator: the three are absorbed one after the other by the finalizer of SplitMix64 (Steele, Lea,
    Flood, "Fast Splittable Pseudorandom Number Generators", 2014), whose output passes the usual test batteries.
    """
    state = _mix(seed.astype(np.uint64))
    state = _mix(state ^ index.astype(np.uint64))
    state = _mix(state ^ position.astype(np.uint64))
    return (state >> np.uint64(12)).astype(np.float64) * 2.0**-52


def _mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def _scaled(logits: Tensor, peak: Tensor, temperature: NDArray[np.float32]) -> Tensor:
    """Logits over temperature, shifted so that a row's best is 0: nothing can overflow. Unusable rows become flat."""
    scaled = (logits - peak[:, None]) / upload(temperature, logits.device)[:, None]
    return torch.nan_to_num_(scaled, nan=0.0, posinf=0.0, neginf=-torch.inf)


def _filtered(
    scaled: Tensor, min_p: NDArray[np.float32], top_k: NDArray[np.int64], top_p: NDArray[np.float32]
) -> Tensor:
    """Unnormalised probabilities [R, V] of what the filters leave; the best token of a row always stays.

    May use `scaled` for its result.
    """
    vocabulary = scaled.shape[1]
    limited = np.flatnonzero(((top_k > 0) & (top_k < vocabulary)) | (top_p < 1))
    if not len(limited) and not min_p.any():
        return scaled.exp_()
    with np.errstate(divide="ignore"):
        least = upload(np.log(min_p), scaled.device)
    if len(limited):
        which = upload(limited, scaled.device)
        k = np.where(top_k[limited] > 0, np.minimum(top_k[limited], vocabulary), vocabulary)
        some = scaled if len(limited) == len(scaled) else scaled[which]
        least[which] = _least_by_rank(some, least[which], k, top_p[limited])
    # Rounding must never push out the best token, whose value is 0.
    kept = scaled >= least.clamp(max=0.0)[:, None]
    return scaled.exp_().mul_(kept)


def _least_by_rank(scaled: Tensor, least: Tensor, k: NDArray[np.int64], top_p: NDArray[np.float32]) -> Tensor:
    """The least value that top_k and then top_p admit in each row, not below `least`; float32 [R]."""
    ranks = upload(k, scaled.device)[:, None]
    share = upload(top_p, scaled.device)[:, None]
    best = _descending(scaled)
    mass = best.exp().cumsum(dim=-1, dtype=torch.float64)
    floor = torch.maximum(least[:, None], best.gather(1, ranks - 1))
    # searchsorted wants ascending values, so negated ones: `admitted` counts those that are not below `floor`.
    admitted = torch.searchsorted(-best, -floor, right=True)
    wanted = share * mass.gather(1, admitted - 1)
    last = torch.searchsorted(mass, wanted).clamp(max=scaled.shape[1] - 1)
    return torch.where(share < 1, torch.maximum(floor, best.gather(1, last)), floor)[:, 0]


def _descending(values: Tensor) -> Tensor:
    """Each row sorted, the greatest first. NumPy sorts floats with vector instructions, many times as fast as torch."""
    if values.device.type != "cpu":
        return values.sort(dim=-1, descending=True).values
    return torch.from_numpy(np.sort(-values.numpy(), axis=-1)).neg_()


def _draw(weights: Tensor, uniform: Tensor) -> Tensor:
    """The token at which the cumulative sum of a row of weights [R, V] passes uniform [R] of its total; int64 [R]."""
    rows, vocabulary = weights.shape
    if vocabulary % SPAN:
        weights = torch.nn.functional.pad(weights, (0, SPAN - vocabulary % SPAN))
    spans = weights.view(rows, -1, SPAN)
    upto_span = spans.sum(dim=-1, dtype=torch.float64).cumsum(dim=-1)
    target = (uniform * upto_span[:, -1])[:, None]
    span = _first_above(upto_span, target)
    inside = spans.gather(1, span[:, :, None].expand(-1, -1, SPAN))[:, 0]
    before = torch.where(span > 0, upto_span.gather(1, (span - 1).clamp(min=0)), 0.0)
    token = _first_above(inside.to(torch.float64).cumsum(dim=-1), target - before)
    # By rounding the target may lie just behind the last weight of its span: then that last weight is meant.
    last = ((inside > 0) * torch.arange(SPAN, device=inside.device)).amax(dim=-1, keepdim=True)
    return (span * SPAN + torch.minimum(token, last))[:, 0]


def _first_above(cumulative: Tensor, target: Tensor) -> Tensor:
    """For each row the first index [R, 1] with a value above the target [R, 1], the last index if there is none."""
    return (cumulative <= target).sum(dim=-1, keepdim=True).clamp(max=cumulative.shape[1] - 1)
