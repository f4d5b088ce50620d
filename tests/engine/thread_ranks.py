"""Ranks that are threads of this process: the split of a model without processes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch
from torch import Tensor

from engine.models.ranks import Share
from engine.models.split import Ranks

T = TypeVar("T")


class ThreadRanks:
    """One of them. `given`: what each has brought to the sum that all are at."""

    def __init__(self, share: Share, barrier: threading.Barrier, given: list[Tensor]) -> None:
        self.share = share
        self._barrier = barrier
        self._given = given

    def all_reduce(self, x: Tensor) -> Tensor:
        return self._meet(x, lambda: torch.stack(self._given).sum(0))

    def gather(self, x: Tensor) -> Tensor:
        return self._meet(x, lambda: torch.cat(self._given, dim=-1) if self.share.rank == 0 else x)

    def _meet(self, x: Tensor, result: Callable[[], Tensor]) -> Tensor:
        self._given[self.share.rank] = x
        self._barrier.wait(30)
        found = result()
        self._barrier.wait(30)
        return found


def on_ranks(size: int, work: Callable[[Ranks], T]) -> list[T]:
    """What `work` gives on each of so many ranks, all at once."""
    barrier, given = threading.Barrier(size), [torch.empty(0)] * size
    with ThreadPoolExecutor(size) as threads:
        return list(threads.map(lambda rank: work(ThreadRanks(Share(rank, size), barrier, given)), range(size)))
