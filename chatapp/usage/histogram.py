"""Histograms of times that can be added up: percentiles over any hours, people or models, without the single times.

Bucket 0 holds times under 100 microseconds; bucket i those from 100 us * 2**((i-1)/8) to 100 us * 2**(i/8); the last
one is open. A percentile is told as the geometric middle of its bucket, so it is at most 4.5 % off (2**(1/16) - 1)
between 100 us and 20 minutes. Kept as JSON, {"bucket": count} with the buckets that hold something: adding is exact and
does not depend on the order.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

FIRST_US = 100
PER_DOUBLING = 8
BUCKETS = 190
RELATIVE_ERROR = 2 ** (1 / (2 * PER_DOUBLING)) - 1

Histogram = dict[str, int]


def bucket(us: float) -> int:
    if us < FIRST_US:
        return 0
    return min(1 + math.floor(PER_DOUBLING * math.log2(us / FIRST_US)), BUCKETS - 1)


def add(histogram: Histogram, us: float, times: int = 1) -> None:
    if times > 0:
        name = str(bucket(us))
        histogram[name] = histogram.get(name, 0) + times


def merge(histogram: Histogram, other: Mapping[str, int]) -> None:
    for name, count in other.items():
        histogram[name] = histogram.get(name, 0) + count


def percentile_s(histogram: Mapping[str, int], share: float) -> float | None:
    """In seconds; None where nothing was measured. `share` 0.5 is the median."""
    total = sum(histogram.values())
    if not total:
        return None
    rank = max(1, math.ceil(share * total))
    seen = 0
    for index in sorted(int(name) for name in histogram):
        seen += histogram[str(index)]
        if seen >= rank:
            break
    if index == 0:
        return FIRST_US / 2 / 1e6
    return float(FIRST_US * 2 ** ((index - 0.5) / PER_DOUBLING) / 1e6)
