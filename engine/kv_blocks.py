"""Whole blocks of the KV pool, and those that were put aside in host memory: copied, read, and written.

Owns that host memory, whose blocks are numbered on from the pool's. Promises: what is asked for takes effect in the
order of the calls, with all work on the device's current stream in between; where KV is in eight bits its scales go
with it. On a GPU copies of one list go out together as far as none touches what another one writes, and those from and
to host memory go beside the current stream. Knows neither sequences nor what a block holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import prod

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.device import beside, upload
from kernels import api
from kernels.api import KVCache


class KVBlocks:
    def __init__(self, kv: KVCache, num_host_blocks: int) -> None:
        self._kv = kv
        self._device = kv.data.device
        # Eight-bit numbers as int8: torch has few functions for eight-bit floats. [2, layers, blocks, slots, heads, ..]
        self._parts = [kv.data.view(torch.int8) if kv.data.itemsize == 1 else kv.data]
        if kv.scales is not None:
            self._parts.append(kv.scales)
        for part in self._parts:
            # Touched now: the system would hand out a page of it at a time later, in the middle of somebody's answer.
            part.zero_()
        # Pinned memory, so that a GPU copies without the processor.
        pinned = self._device.type == "cuda"
        self._host = [
            torch.empty((num_host_blocks, *part[:, :, 0].shape), dtype=part.dtype, pin_memory=pinned)
            for part in self._parts
        ]
        self._together = api.through_triton(kv.data)
        if self._together:
            self.copy([(0, 0)])  # so that the kernel is compiled

    def copy(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Blocks, (source, destination), one after the other in this order; one of the two is in the pool."""
        if not self._together:
            self._copy_each(pairs)
            return
        from kernels.triton.cache import at_once

        for run in at_once(pairs):
            inside = [pair for pair in run if max(pair) < self._kv.num_blocks]
            outside = [pair for pair in run if max(pair) >= self._kv.num_blocks]
            if outside:
                beside(self._device, partial(self._copy_each, outside), partial(self._copy_inside, inside))
            else:
                self._copy_inside(inside)

    def _copy_inside(self, pairs: list[tuple[int, int]]) -> None:
        if pairs:
            count = len(pairs)
            ends = np.zeros((2, count + count % 2), np.int64)  # both at a multiple of 16 bytes, or they compile anew
            ends[:, :count] = np.array(pairs).T
            source, destination = upload(ends, self._device)[:, :count]
            api.copy_blocks(self._kv, source, destination)

    def _copy_each(self, pairs: Sequence[tuple[int, int]]) -> None:
        for source, destination in pairs:
            for part in range(len(self._parts)):
                self._block(part, destination).copy_(self._block(part, source), non_blocking=True)

    def _block(self, part: int, number: int) -> Tensor:
        """[2, layers, slots, heads, ..] of a block of the pool, or of one in host memory."""
        behind = number - self._kv.num_blocks
        return self._parts[part][:, :, number] if behind < 0 else self._host[part][behind]

    def read(self, blocks: Sequence[int], tokens: int) -> NDArray[np.uint8]:
        """As ModelRunner.read_blocks: each block's values, and then its scales."""
        index = torch.tensor(blocks, device=self._device)
        filled = tokens - (len(blocks) - 1) * self._kv.block_size
        found: list[NDArray[np.uint8]] = []
        for part in self._parts:
            kv = part[:, :, index].movedim(2, 0)  # [n, 2, layers, slots, heads, ..], a copy
            kv[-1, :, :, filled:] = 0
            found.append(kv.contiguous().view(len(blocks), -1).view(torch.uint8).cpu().numpy())
        return found[0] if len(found) == 1 else np.concatenate(found, axis=1)

    def write(self, blocks: Sequence[int], data: NDArray[np.uint8]) -> None:
        """Set whole blocks to what `read` gave."""
        index = torch.tensor(blocks, device=self._device)
        at = 0
        for part in self._parts:
            shape = (len(blocks), *part.shape[:2], *part.shape[3:])
            size = prod(shape[1:]) * part.itemsize
            kv = torch.from_numpy(np.ascontiguousarray(data[:, at : at + size])).to(self._device).view(part.dtype)
            part[:, :, index] = kv.view(shape).movedim(0, 2)
            at += size
