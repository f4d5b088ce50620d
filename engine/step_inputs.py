"""A step's arrays on the device: always in the same memory, padded where a recorded step wants more rows.

Owns that memory. All arrays but the block tables go there in one copy, so a step costs the host two copies however many
sequences it has. A graph reads them where they lay when it was recorded: for one number of rows every array has one
place, and each begins on a boundary that kernels may be specialised for.

A padded row has slot -1 and is the only row of a sequence of length 0. What lies in the memory from earlier steps, in
block tables behind a sequence's blocks and in those of padded sequences, is not read by any kernel (`kernels.api`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.device import send
from engine.flat_batch import FlatBatch
from kernels.api import AttentionMetadata
from kernels.prefix_groups import PrefixGroups

if TYPE_CHECKING:
    from kernels.triton.grouped import DeviceGroups

ALIGNMENT = 64
"""Bytes. Triton compiles a kernel twice where a pointer is now a multiple of 16 and now not."""
TOKEN_ARRAYS = 4


@dataclass(slots=True)
class Inputs:
    """What the model is given. late int64 [T] as in FlatBatch, None where every token is in `input_ids`."""

    input_ids: Tensor
    late: Tensor | None
    positions: Tensor
    meta: AttentionMetadata


class StepInputs:
    """Memory for steps of up to `max_tokens` tokens and `max_seqs` sequences of up to `max_blocks` blocks."""

    def __init__(self, max_tokens: int, max_seqs: int, max_blocks: int, device: torch.device) -> None:
        self.tables = torch.zeros((max_seqs, max_blocks), dtype=torch.int32, device=device)
        self.memory = torch.zeros(_size(max_tokens, max_seqs), dtype=torch.uint8, device=device)

    def put(self, flat: FlatBatch, *, fixed_order: bool = False, groups: PrefixGroups | None = None) -> Inputs:
        """The arrays of a step, as many rows as it has. groups: as in AttentionMetadata."""
        tokens, seqs = len(flat.input_ids), len(flat.seq_lens)
        arrays = _arrays(np.empty(_size(tokens, seqs), np.uint8), tokens, seqs)
        ids, late, positions, slots, starts, lengths = arrays.parts
        ids[:], positions[:], slots[:] = flat.input_ids, flat.positions, flat.slot_mapping
        starts[:], lengths[:] = flat.query_starts, flat.seq_lens
        if flat.late is not None:
            late[:] = flat.late
        self._send(arrays, flat.block_tables)
        return self._inputs(
            tokens,
            seqs,
            late=flat.late is not None,
            max_query_len=flat.max_query_len,
            max_seq_len=flat.max_seq_len,
            fixed_order=fixed_order,
            groups=groups,
        )

    def put_decodes(self, flat: FlatBatch, size: int) -> None:
        """A step of one row a sequence, padded to `size` of them, to where `decodes(size)` reads it."""
        live = len(flat.input_ids)
        arrays = _arrays(np.empty(_size(size, size), np.uint8), size, size)
        ids, late, positions, slots, starts, lengths = arrays.parts
        for array, values, padding in (
            (ids, flat.input_ids, 0),
            (late, -1 if flat.late is None else flat.late, -1),
            (positions, flat.positions, 0),
            (slots, flat.slot_mapping, -1),
            (lengths, flat.seq_lens, 0),
        ):
            array[:live], array[live:] = values, padding
        starts[:] = np.arange(size + 1)
        self._send(arrays, flat.block_tables)

    def decodes(self, size: int, max_seq_len: int, groups: DeviceGroups | None = None) -> Inputs:
        """`size` rows of one sequence each, whatever lies there: with the bounds that hold for every such step."""
        return self._inputs(
            size, size, late=True, max_query_len=1, max_seq_len=max_seq_len, fixed_order=False, groups=groups
        )

    def put_nothing(self, size: int) -> None:
        """Padded rows only."""
        none, starts = np.zeros(0, np.int64), np.zeros(1, np.int32)
        tables = np.zeros((0, 1), np.int32)
        lengths = np.zeros(0, np.int32)
        self.put_decodes(FlatBatch(none, none, none, tables, starts, lengths, 1, 0, [], none, 0), size)

    def _send(self, arrays: _Arrays, tables: NDArray[np.int32]) -> None:
        send(arrays.memory, self.memory[: len(arrays.memory)])
        send(tables, self.tables[: len(tables), : tables.shape[1]])

    def _inputs(
        self,
        tokens: int,
        seqs: int,
        *,
        late: bool,
        max_query_len: int,
        max_seq_len: int,
        fixed_order: bool,
        groups: PrefixGroups | DeviceGroups | None,
    ) -> Inputs:
        parts: list[Tensor] = []
        for first, count, width in _places(tokens, seqs):
            part = self.memory[first : first + count * width]
            parts.append(part.view(torch.int64 if width == 8 else torch.int32))
        ids, sources, positions, slots, starts, lengths = parts
        meta = AttentionMetadata(
            slot_mapping=slots,
            block_tables=self.tables[:seqs],
            query_starts=starts,
            seq_lens=lengths,
            max_query_len=max_query_len,
            max_seq_len=max_seq_len,
            fixed_order=fixed_order,
            groups=groups,
        )
        return Inputs(ids, sources if late else None, positions, meta)


@dataclass(slots=True)
class _Arrays:
    memory: NDArray[np.uint8]
    parts: list[NDArray[Any]]


def _arrays(memory: NDArray[np.uint8], tokens: int, seqs: int) -> _Arrays:
    parts: list[NDArray[Any]] = [
        memory[first : first + count * width].view(np.int64 if width == 8 else np.int32)
        for first, count, width in _places(tokens, seqs)
    ]
    return _Arrays(memory, parts)


def _places(tokens: int, seqs: int) -> list[tuple[int, int, int]]:
    """(first byte, length, bytes of an entry) of input ids, late ones, positions, slots; query starts, lengths."""
    places, at = [], 0
    for count, width in [(tokens, 8)] * TOKEN_ARRAYS + [(seqs + 1, 4), (seqs, 4)]:
        places.append((at, count, width))
        at += -(-count * width // ALIGNMENT) * ALIGNMENT
    return places


def _size(tokens: int, seqs: int) -> int:
    first, count, width = _places(tokens, seqs)[-1]
    return first + count * width
