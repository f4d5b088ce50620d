"""What the runner asks of the device that it runs on: small arrays there and back without waiting, and its memory.

On a GPU nothing here waits for it except `Fetched.get`. Copies go through pinned memory of torch's caching allocator,
which gives a buffer out again only when the copy that used it is done. All work goes to the device's current stream,
so it takes effect in the order of the calls. On a CPU nothing is copied.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.config import free_host_memory


def upload(array: NDArray[Any], device: torch.device) -> Tensor:
    """The array on the device; on a CPU a view of it. It must not be written to before the step is done."""
    tensor = torch.from_numpy(array)
    return tensor if device.type == "cpu" else tensor.pin_memory().to(device, non_blocking=True)


def send(array: NDArray[Any], to: Tensor) -> None:
    """Copy the array to where `to` lies."""
    tensor = torch.from_numpy(array)
    to.copy_(tensor if to.device.type == "cpu" else tensor.pin_memory(), non_blocking=True)


def beside(device: torch.device, aside: Callable[[], None], meanwhile: Callable[[], None]) -> None:
    """Do two things that do not touch each other's memory: on a GPU `aside` on a stream of its own, `meanwhile` on the
    current one. Both come behind all that was on the current stream before, and before all that comes to it later.
    """
    if device.type != "cuda":
        aside()
        meanwhile()
        return
    current, other = torch.cuda.current_stream(device), _side_stream(device)
    other.wait_stream(current)
    try:
        with torch.cuda.stream(other):
            aside()
        meanwhile()
    finally:  # what was begun is waited for also where the rest fails
        current.wait_stream(other)


@cache
def _side_stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)


class Fetched:
    """A tensor on its way to the host."""

    def __init__(self, tensor: Tensor) -> None:
        self._arrived: torch.cuda.Event | None = None
        if tensor.device.type == "cpu":
            self._host = tensor
            return
        self._host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        self._host.copy_(tensor, non_blocking=True)
        self._arrived = torch.cuda.Event()
        self._arrived.record(torch.cuda.current_stream(tensor.device))

    def get(self) -> NDArray[Any]:
        """Wait for it. What the device failed at is raised here."""
        if self._arrived is not None:
            self._arrived.synchronize()
        array: NDArray[np.int64] = self._host.numpy()
        return array


class Memory(Protocol):
    """The memory that a model runs in, in bytes."""

    on_gpu: bool

    def free(self) -> int:
        """What can still be taken."""
        ...

    def peak_of(self, work: Callable[[], object]) -> int:
        """What `work` takes at most beyond what is taken now, and gives back at its end."""
        ...


class HostMemory:
    """A machine's own memory. What a step takes there is small beside it, and not measured: `work` is not run."""

    on_gpu = False

    def free(self) -> int:
        return free_host_memory()

    def peak_of(self, work: Callable[[], object]) -> int:
        return 0


class CudaMemory:
    """A GPU's memory, by what the driver says is free and what torch's allocator has handed out."""

    on_gpu = True

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def free(self) -> int:
        torch.cuda.synchronize(self._device)
        torch.cuda.empty_cache()  # what torch only holds in reserve counts as taken to the driver
        return torch.cuda.mem_get_info(self._device)[0]

    def peak_of(self, work: Callable[[], object]) -> int:
        work()  # once before: compiling kernels and making workspaces takes memory that is kept
        torch.cuda.synchronize(self._device)
        torch.cuda.reset_peak_memory_stats(self._device)
        before = torch.cuda.memory_allocated(self._device)
        work()
        torch.cuda.synchronize(self._device)
        return torch.cuda.max_memory_allocated(self._device) - before


def memory_of(device: torch.device) -> Memory:
    return CudaMemory(device) if device.type == "cuda" else HostMemory()
