"""What a worker counts and times as it serves, in plain numbers: nobody has to look at them, and nothing is loaded.

Owns histograms and counts. Meanings are vLLM's, so that its users read ours: a request's time in the queue ends with
the step that first computes some of it, prefill with its first token, decode with its last one; a gap between tokens is
that of one request between two steps that gave it some. The three parts are of requests that ended by themselves.

Written by the engine loop and by the bus's thread, each its own; read by whoever asks, a step apart at worst. Once a
step goes out, all gaps that began together are one entry, so that a step costs the same for 1 and for 256 sequences
but for an addition each.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TypeAlias

LATENCY_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0)
"""Of waiting, of parts of a request, and of the whole: from a cached prompt to a batch's answer that waits its turn."""
GAP_S = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.04, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.5, 10.0)
TRIP_S = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0)
TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000)
STEP_TOKENS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16_384)


class Histogram:
    """Counts of values by upper bound; the last place is for those above all bounds."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float, count: int = 1) -> None:
        self.counts[bisect_left(self.bounds, value)] += count
        self.total += value * count

    def cumulated(self) -> list[tuple[str, int]]:
        """(upper bound, values up to it), as Prometheus has them."""
        found, sum_so_far = [], 0
        for bound, count in zip((*self.bounds, float("inf")), list(self.counts), strict=True):
            sum_so_far += count
            found.append(("+Inf" if bound == float("inf") else repr(float(bound)), sum_so_far))
        return found


Clock: TypeAlias = Callable[[], float]


class Measures:
    def __init__(self, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        self.first_token_s = Histogram(LATENCY_S)
        self.gap_s = Histogram(GAP_S)
        self.whole_s = Histogram(LATENCY_S)
        self.queue_s = Histogram(LATENCY_S)
        self.prefill_s = Histogram(LATENCY_S)
        self.decode_s = Histogram(LATENCY_S)
        self.prompt_tokens = Histogram(TOKENS)
        self.output_tokens = Histogram(TOKENS)
        self.step_tokens = Histogram(STEP_TOKENS)
        self.step_s = Histogram(GAP_S)
        self.finished: Counter[str] = Counter()
        """Ended requests by reason: stop, length, tool_calls, abort, timeout, refused, error."""
        self.round_trip_s = Histogram(TRIP_S)
        self.told_s = Histogram(TRIP_S)
        self._gaps: dict[float, int] = {}

    # --- the engine loop ------------------------------------------------------------------------------------------

    def said(self, last_at: float) -> None:
        """A request got tokens in this step, and the last ones before at `last_at`."""
        self._gaps[last_at] = self._gaps.get(last_at, 0) + 1

    def stepped(self, began: float, now: float, tokens: int) -> None:
        """A step that began then and has just been told took so many tokens through the model."""
        self.step_s.observe(now - began)
        if tokens:
            self.step_tokens.observe(tokens)
        for last_at, count in self._gaps.items():
            self.gap_s.observe(now - last_at, count)
        self._gaps.clear()

    def ended(
        self, reason: str, parts: tuple[float, float, float] | None = None, prompt_tokens: int = 0, tokens: int = 0
    ) -> None:
        """`parts`: seconds of queue, prefill and decode, of a request that ended by itself."""
        self.finished[reason] += 1
        if parts is None:
            return
        queue_s, prefill_s, decode_s = parts
        self.queue_s.observe(queue_s)
        self.prefill_s.observe(prefill_s)
        self.decode_s.observe(decode_s)
        self.whole_s.observe(queue_s + prefill_s + decode_s)
        self.prompt_tokens.observe(prompt_tokens)
        self.output_tokens.observe(tokens)

    # --- the bus --------------------------------------------------------------------------------------------------

    def flushed(self, began: float, oldest: float | None) -> None:
        """A pipeline that was sent at `began` has been answered; the oldest step in it was told at `oldest`."""
        now = self._clock()
        self.round_trip_s.observe(now - began)
        if oldest is not None:
            self.told_s.observe(now - oldest)
