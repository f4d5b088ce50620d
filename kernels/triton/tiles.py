"""How large the tiles of the attention kernels are on which device, and when a step is cut along its context.

Owns every number that only a device can justify. They follow from sizes (shared memory, what a matrix unit wants);
none of them has been measured on a GPU yet, and none of them depends on a step's lengths beyond a choice between two or
three variants, so a model is compiled for a handful of tiles once and never again.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch

PROGRAMS_PER_SM = 4
"""A step with fewer programs than this per multiprocessor is cut along its context until it has about so many."""
MIN_SEGMENT = 128
"""Tokens: shorter segments cost more in the reduction than their reading takes."""
MAX_SEGMENTS = 128
"""Of one sequence: enough for one sequence with a single KV head to fill a large GPU."""


@dataclass(frozen=True)
class Device:
    """major: of its compute capability; shared: bytes of shared memory that a program may have."""

    major: int
    multiprocessors: int
    shared: int

    @property
    def roomy(self) -> bool:
        """Data centre GPUs have 163 KiB (A100) to 227 (H100, B200), the others about 99."""
        return self.shared >= 160 << 10

    @property
    def reads_shared(self) -> bool:
        """Its matrix units take operands from shared memory (wgmma, tcgen05): registers are left for larger tiles."""
        return self.major in (9, 10)


@lru_cache
def device_of(device: torch.device) -> Device:
    """On a CPU, what the interpreter pretends: few multiprocessors, so that a small test cuts some steps, not all."""
    if device.type != "cuda":
        return Device(9, 2, 227 << 10)
    found = torch.cuda.get_device_properties(device)
    shared: int = found.shared_memory_per_block_optin  # type: ignore[attr-defined]
    return Device(found.major, found.multi_processor_count, shared)


@dataclass(frozen=True)
class Tile:
    """A program's share: `rows` (query tokens x heads of one KV head) by `tokens` of the context at a time.

    peel: tiles that every row sees whole go through a loop of their own, without masks. Where a program waits for
    memory masks are free and a second loop is not.
    """

    rows: int
    tokens: int
    warps: int
    peel: bool

    @property
    def options(self) -> dict[str, int]:
        """Five stages: blocks' numbers are read two tiles before their keys, and keys two tiles before their use."""
        return {"num_warps": self.warps, "num_stages": 5}


def decode_tile(group: int, row_bytes: int, device: Device) -> Tile:
    """For steps of which every sequence's rows fit into one tile. row_bytes: a key of one head, padded, as computed.

    16 rows are the least that a matrix unit takes. Two pairs of 64 keys and values of 256 bytes are 64 KiB: three
    programs share a multiprocessor of an H100 and keep 96 KiB and more in flight; its memory's latency wants about 40.
    """
    tokens = _within(_tile_bytes(device) // row_bytes, 16, 128)
    return Tile(rows=max(16, power_of_two(group)), tokens=tokens, warps=4, peel=False)


def chunk_tile(group: int, mean_rows: int, row_bytes: int, device: Device) -> Tile:
    """For steps with prompt chunks, and for groups. mean_rows: tile rows that a sequence has on the average.

    64 rows read every key from the second-level cache twice as often as 128 do, but waste less on the decodes beside a
    chunk.
    """
    rows = 128 if mean_rows >= 256 and row_bytes <= 256 else 64
    tokens = _within(_tile_bytes(device) // row_bytes, 16, 64 if device.reads_shared else 32)
    return Tile(rows=max(rows, power_of_two(group)), tokens=tokens, warps=rows // 16, peel=True)


def _tile_bytes(device: Device) -> int:
    return 16 << 10 if device.roomy else 8 << 10


def power_of_two(n: int) -> int:
    """The least one that is not below n."""
    return 1 << (n - 1).bit_length()


def _within(n: int, low: int, high: int) -> int:
    return max(low, min(high, n))
