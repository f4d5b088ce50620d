"""How long work takes on a device: medians, after a warm-up, with nothing of the inputs in its caches.

On a GPU work is recorded as a CUDA graph and timed by events, so what the host does is not in it, and before each time
memory larger than the second-level cache is read (not written: what is dirty would be written back meanwhile).
On a CPU the same calls are timed by a clock; the figures only show that all of it runs.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor

from bench.gpu.report import one_line

LEAST_TIMES, MOST_TIMES = 5, 30
FLUSH_BYTES = 512 << 20
"""Several times what any GPU has as second-level cache, and long enough for the host to give it the work meanwhile."""

Work = Callable[[], object]


class Clock:
    """remarks: what there is to say of the last time that was taken."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.remark = ""
        self._flush: Tensor | None = None
        if device.type == "cuda":
            self._flush = torch.ones(FLUSH_BYTES // 4, device=device)

    def seconds(self, work: Work, budget_s: float = 0.25) -> float:
        """The median of as many times as fit into the budget, within LEAST_TIMES and MOST_TIMES."""
        self.remark = ""
        if self._flush is None:
            return self._on_host(work, budget_s)
        run = self._recorded(work)
        first = self._once(run)
        times = max(LEAST_TIMES, min(MOST_TIMES, int(budget_s / max(first, 1e-6))))
        return statistics.median(self._once(run) for _ in range(times))

    def _on_host(self, work: Work, budget_s: float) -> float:
        work()
        times: list[float] = []
        while not times or (len(times) < LEAST_TIMES and sum(times) < budget_s):
            start = time.perf_counter()
            work()
            times.append(time.perf_counter() - start)
        return statistics.median(times)

    def _once(self, run: Work) -> float:
        assert self._flush is not None
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        self._flush.sum()
        begin.record()
        run()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) / 1e3

    def _recorded(self, work: Work) -> Work:
        """The work as a graph; as it is where that fails (some peers read from the device), and then the remark says
        so."""
        stream = torch.cuda.Stream(self.device)
        stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(stream):
            for _ in range(2):
                work()
        torch.cuda.current_stream(self.device).wait_stream(stream)
        torch.cuda.synchronize(self.device)
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, stream=stream):
                work()
        except RuntimeError as error:
            torch.cuda.synchronize(self.device)
            self.remark = f"with the host's part, as it cannot be recorded ({one_line(error, 80)})"
            return work
        return graph.replay


def copy_bytes_s(clock: Clock, size: int) -> float:
    """Bytes read and written a second by a copy of `size` bytes from one place of the device to another."""
    source = torch.ones(size // 4, device=clock.device)
    target = torch.empty_like(source)
    return 2 * source.numel() * 4 / clock.seconds(lambda: target.copy_(source), 0.5)
