"""The sequences of a step that share leading blocks, for paths that read these once for all of them.

Owns the groups of the last step, which serve the next one while the same sequences decode over the same blocks: to find
them takes the host up to a millisecond, to see that they still hold a few microseconds. They stay right meanwhile, as
contexts only grow. Owns as well where a recorded step reads its groups. Nothing here waits for the device.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from engine.device import send
from engine.flat_batch import FlatBatch
from kernels.prefix_groups import PrefixGroups

if TYPE_CHECKING:
    from kernels.triton.grouped import DeviceGroups

MOST_GROUPS = 16
"""Of a recorded step, which has programs for so many, whether there are any: a few tenants at once are usual."""

Find = Callable[[NDArray[np.int32], NDArray[np.int32], NDArray[np.int32], int], PrefixGroups | None]
"""kernels.triton.grouped.find_groups."""


class StepGroups:
    def __init__(self, block_size: int, find: Find) -> None:
        self._block_size = block_size
        self._find = find
        self._key: tuple[tuple[int, ...], bytes] | None = None
        self._found: PrefixGroups | None = None

    def of(self, flat: FlatBatch) -> PrefixGroups | None:
        """The step's groups; the same object as the last step's where they are the same."""
        key = None if flat.lineup is None else (flat.lineup, (np.diff(flat.query_starts) == 1).tobytes())
        if key is None or key != self._key:
            self._found = self._find(flat.block_tables, flat.query_starts, flat.seq_lens, self._block_size)
            self._key = key
        return self._found


class RecordedGroups:
    """Groups of steps of one row a sequence, of up to `max_seqs` sequences: always in the same memory.

    longest: no prefix has more tokens. MOST_GROUPS groups fit, and not more than half as many as a step has rows.
    """

    def __init__(self, max_seqs: int, block_size: int, longest: int, device: torch.device) -> None:
        from kernels.triton import grouped  # triton is there where groups are looked for

        self._grouped = grouped
        self._block_size = block_size
        self._longest = longest
        self._memory = torch.zeros(len(self._packed(None, max_seqs)), dtype=torch.int32, device=device)
        self._there: tuple[PrefixGroups | None, int] | None = None

    @staticmethod
    def room(size: int) -> int:
        return min(size // 2, MOST_GROUPS)

    def put(self, groups: PrefixGroups | None, size: int) -> None:
        """To where `of(size)` reads them; nothing is done where they are there already."""
        if self._there is None or self._there[0] is not groups or self._there[1] != size:
            packed = self._packed(groups, size)
            send(packed, self._memory[: len(packed)])
            self._there = groups, size

    def of(self, size: int) -> DeviceGroups:
        """Whatever groups lie there, of a step of so many rows, 2 or more."""
        packed = self._memory[: len(self._packed(None, size))]
        return self._grouped.DeviceGroups(packed, size, self.room(size), size, self._longest)

    def _packed(self, groups: PrefixGroups | None, size: int) -> NDArray[np.int32]:
        return self._grouped.pack(groups, self._block_size, size, size, self.room(size))
