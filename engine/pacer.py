"""How long a step will take, and so how many prompt tokens may ride along while others decode.

Owns an estimate of a step's time, base + decodes x a + prompt tokens x b, learnt from the steps that were run.
Promises:

- with decodes in the step, `cap` keeps all but about one in twenty steps within the bound, as far as prompt tokens
  decide it; never below `least`, so that prompts make progress, nor above `most`;
- one outlier, however long, moves the estimate by a few per cent; a machine that has become slower is noticed within
  tens of steps;
- every call is a few dozen float operations.

The three coefficients follow a normalised LMS rule (Haykin, "Adaptive Filter Theory") in multiplicative form: each is
corrected in proportion to its share in the step's time, so all stay positive and none needs a rate of its own. Errors
are clipped upwards (Huber), where the outliers are. The head-room is the 95 % quantile of measured over expected,
tracked by stochastic approximation (Robbins and Monro).

It reads no clock and knows no sequences.
"""

from __future__ import annotations

RATE = 0.1
"""Part of an error that one step corrects."""
CLIP = 0.5
"""Largest excess over the expectation that counts: so a slow step raises the estimate by 5 %, three times as slow a
machine is known after some 25 steps."""
MISSES = 0.05
"""Share of the steps that may take longer than the bound."""
MARGIN_RATE = 0.05
MARGIN_START, MARGIN_MOST = 1.25, 2.0
"""Head-room under the bound. It ends somewhere because of outliers that come too often for any quantile: smaller steps
would not avoid them, so they must not shut prefill down."""
RESOLUTION_S = 1e-9
"""No step takes less; a clock that says so has measured nothing."""


class StepPacer:
    """`bound_s`: seconds that a step with decodes should not exceed. `most`, `least`: prompt tokens a step."""

    __slots__ = ("_base", "_decode", "_margin", "_prefill", "bound_s", "least", "most")

    def __init__(self, bound_s: float, most: int, least: int = 16) -> None:
        if not bound_s > 0:
            raise ValueError(f"the bound of a step must be above 0 seconds, not {bound_s}")
        if not 1 <= least <= most:
            raise ValueError(f"a step carries at least 1 prompt token and at most {most}, so least cannot be {least}")
        self.bound_s = bound_s
        self.most = most
        self.least = least
        self._base = self._decode = self._prefill = 0.0  # seconds a step and a token; 0 only before the first step
        self._margin = MARGIN_START

    def observe(self, prefill_tokens: int, decode_tokens: int, seconds: float) -> None:
        """A step with these tokens took `seconds`, from its schedule to its tokens. Draft tokens are prompt tokens."""
        tokens = prefill_tokens + decode_tokens
        if not tokens or not seconds > RESOLUTION_S:
            return
        base = self._base
        if not base:  # half of the first step's time is the step's own, the other half is its tokens': a start
            self._base = seconds / 2
            self._decode = self._prefill = seconds / 2 / tokens
            return
        decode, prefill = self._decode * decode_tokens, self._prefill * prefill_tokens
        expected = base + decode + prefill
        ratio = seconds / expected
        error = ratio - 1 if ratio < 1 + CLIP else CLIP
        gain = RATE * error * expected / (base * base + decode * decode + prefill * prefill)
        self._base = base * (1 + gain * base)
        self._decode *= 1 + gain * decode
        self._prefill *= 1 + gain * prefill
        if decode_tokens and prefill_tokens:
            if ratio > self._margin:
                self._margin = min(MARGIN_MOST, self._margin * (1 + MARGIN_RATE * (1 - MISSES)))
            else:
                self._margin = max(1.0, self._margin * (1 - MARGIN_RATE * MISSES))

    def cap(self, decode_tokens: int) -> int:
        """Prompt tokens that the next step may carry beside so many decodes."""
        if not decode_tokens:
            return self.most
        if not self._base:
            return self.least
        room = self.bound_s / self._margin - self._base - self._decode * decode_tokens
        return self.least if room <= self._prefill * self.least else min(self.most, int(room / self._prefill))

    def step_s(self, prefill_tokens: int, decode_tokens: int) -> float:
        """Seconds that a step with these tokens will probably take (the middle); 0.0 before anything was observed."""
        return self._base + self._decode * decode_tokens + self._prefill * prefill_tokens
