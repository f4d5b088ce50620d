"""Rotary frequencies, and how they are stretched beyond the context that a model was trained on. Loads no torch.

The scalings come out as the published models were trained with them, which is as transformers computes them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Llama3Scaling:
    """As published with Llama 3.1: long wavelengths are divided by `factor`, short ones stay, a band is blended."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position: int

    def apply(self, base: list[float], theta: float) -> list[float]:
        scaled = []
        for frequency in base:
            turns = self.original_max_position * frequency / (2.0 * math.pi)
            blend = (turns - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor)
            blend = min(1.0, max(0.0, blend))
            scaled.append(blend * frequency + (1.0 - blend) * frequency / self.factor)
        return scaled


@dataclass(frozen=True)
class YarnScaling:
    """YaRN (arXiv 2309.00071): frequencies that turn seldom within the original context are divided by `factor`.

    Those of more than `beta_fast` turns stay, those of fewer than `beta_slow` are divided, a linear ramp lies between,
    its ends rounded outwards to whole components when `truncate`. Cosine and sine are multiplied by `attention_factor`.
    """

    factor: float
    beta_fast: float
    beta_slow: float
    original_max_position: int
    truncate: bool
    attention_factor: float

    def apply(self, base: list[float], theta: float) -> list[float]:
        dim = 2 * len(base)

        def component(turns: float) -> float:
            """Which component of the embedding turns so often within the original context."""
            return dim * math.log(self.original_max_position / (turns * 2.0 * math.pi)) / (2.0 * math.log(theta))

        low, high = component(self.beta_fast), component(self.beta_slow)
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, dim - 1)
        if low == high:
            high += 0.001
        scaled = []
        for i, frequency in enumerate(base):
            stretched = min(1.0, max(0.0, (i - low) / (high - low)))
            scaled.append(stretched * frequency / self.factor + (1.0 - stretched) * frequency)
        return scaled


def yarn_attention_factor(factor: float, mscale: float | None, mscale_all_dim: float | None) -> float:
    """YaRN's factor of cosine and sine where the config gives none (section 3.4; the two mscales are DeepSeek's)."""

    def grown(weight: float) -> float:
        return 1.0 if factor <= 1.0 else 0.1 * weight * math.log(factor) + 1.0

    return grown(mscale) / grown(mscale_all_dim) if mscale and mscale_all_dim else grown(1.0)


@dataclass(frozen=True)
class Rope:
    """A model's rotary embedding. `factors` is the scaling as finished divisors, where the source has only those."""

    theta: float
    scaling: Llama3Scaling | YarnScaling | None = None
    factors: tuple[float, ...] | None = None

    def inverse_frequencies(self, head_dim: int) -> list[float]:
        """The head_dim / 2 angular steps, in radians a position."""
        base = [self.theta ** (-2.0 * i / head_dim) for i in range(head_dim // 2)]
        if self.factors is not None:
            return [frequency / factor for frequency, factor in zip(base, self.factors, strict=True)]
        return base if self.scaling is None else self.scaling.apply(base, self.theta)

    @property
    def attention_factor(self) -> float:
        """What cosine and sine are multiplied by."""
        return self.scaling.attention_factor if isinstance(self.scaling, YarnScaling) else 1.0
