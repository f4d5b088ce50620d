"""Whether a series stays flat: its slope by a robust fit, with an interval, against a bound.

The slope is Theil and Sen's: the median of the slopes between all pairs of points, which outliers (a collection, a
page cache) do not move. Its interval is Sen's, from the variance of Kendall's statistic (Sen, JASA 63, 1968). Points
that follow each other closely are not independent, so a series is cut into BINS stretches first, and each counts by its
median. What is decided by is the interval: "grows" is said only where even its lower end is above the bound.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy

BINS = 40
FEWEST = 6  # points, for an interval to mean anything
SHORTEST_S = 120.0  # a slope of less than that tells of caches that fill
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Trend:
    """Per unit of time: the slope, and the ends of its interval."""

    slope: float
    low: float
    high: float


def binned(times: Sequence[float], values: Sequence[float], bins: int = BINS) -> tuple[list[float], list[float]]:
    """Medians of equal stretches; the series itself where it is short."""
    if len(times) <= bins:
        return list(times), list(values)
    cuts = numpy.array_split(numpy.arange(len(times)), bins)
    at, of = numpy.asarray(times), numpy.asarray(values)
    return [float(numpy.median(at[cut])) for cut in cuts], [float(numpy.median(of[cut])) for cut in cuts]


def trend(times: Sequence[float], values: Sequence[float]) -> Trend | None:
    """None of too few points."""
    at, of = binned(times, values)
    n = len(at)
    if n < FEWEST:
        return None
    first, second = numpy.triu_indices(n, 1)
    x, y = numpy.asarray(at), numpy.asarray(of)
    slopes = numpy.sort((y[second] - y[first]) / (x[second] - x[first]))
    reach = NormalDist().inv_cdf((1 + CONFIDENCE) / 2) * math.sqrt(n * (n - 1) * (2 * n + 5) / 18)
    low = max(0, math.floor((len(slopes) - reach) / 2))
    high = min(len(slopes) - 1, math.ceil((len(slopes) + reach) / 2))
    return Trend(float(numpy.median(slopes)), float(slopes[low]), float(slopes[high]))


@dataclass(frozen=True)
class Verdict:
    """`grows`: for certain by more than the bound. `text` says it, with the figures."""

    grows: bool
    text: str


def judge(times_s: Sequence[float], values_mb: Sequence[float], bound_mb_h: float, warm_up_s: float) -> Verdict:
    """Of a series of megabytes, from the end of the warm-up on."""
    kept = [(t, v) for t, v in zip(times_s, values_mb, strict=True) if t - times_s[0] >= warm_up_s]
    found = trend([t / 3600 for t, _ in kept], [v for _, v in kept])
    if found is None or kept[-1][0] - kept[0][0] < SHORTEST_S:
        return Verdict(False, f"too short to say ({len(kept)} looks behind the warm-up)")
    between = f"{found.low:+.1f} to {found.high:+.1f}"
    if found.low > bound_mb_h:
        return Verdict(True, f"grows by {found.slope:.1f} MB/h ({between})")
    if found.slope > bound_mb_h:
        return Verdict(False, f"not clear: {found.slope:+.1f} MB/h ({between}); run it longer")
    return Verdict(False, f"flat: {found.slope:+.1f} MB/h ({between})")
