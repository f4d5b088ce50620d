"""The attention kernels as they are compiled for a model, for builds ahead of time on machines without a GPU.

Owns the list of forms that a model of a head_dim takes: which tile, plain or in segments, groups, quantised caches.
"""

from __future__ import annotations

from typing import Any

import torch

from kernels.triton.attention import attend_kernel
from kernels.triton.record import Variant
from kernels.triton.split import SEQS_AT_ONCE, SLOTS_AT_ONCE, merge_kernel, plan_kernel
from kernels.triton.tiles import MAX_SEGMENTS, MIN_SEGMENT, Device, Tile, chunk_tile, decode_tile, power_of_two

TYPES = {torch.bfloat16: "*bf16", torch.float16: "*fp16", torch.float32: "*fp32", torch.int8: "*i8"}
GPUS = {(80,): Device(8, 108, 163 << 10), (90, 100): Device(9, 132, 227 << 10)}
"""Whose tiles are built for which compute capabilities: A100; H100 and B200."""


def variants() -> list[Variant]:
    """For bfloat16 models of head_dim 64 and 128 with 8 KV heads, 4 query heads for each, and blocks of 16 tokens."""
    found = [planning()]
    for head_dim in (64, 128):
        found.append(merging(head_dim, torch.bfloat16))
        for capabilities, device in GPUS.items():
            found += [one._replace(capabilities=capabilities) for one in model(head_dim, device)]
    return found


def model(head_dim: int, device: Device, dtype: torch.dtype = torch.bfloat16, group: int = 4) -> list[Variant]:
    """attend_kernel's forms for one model on one device."""
    row_bytes = power_of_two(head_dim) * dtype.itemsize
    decode = decode_tile(group, row_bytes, device)
    mixed, prefill = (chunk_tile(group, rows, row_bytes, device) for rows in (0, 4096))
    shape: dict[str, Any] = {"head_dim": head_dim, "dtype": dtype, "group": group}
    return [
        attention(decode, **shape),
        attention(decode, SEGMENTS=True, **shape),
        attention(decode, WINDOW=True, SOFTCAP=True, **shape),
        attention(decode, QUANTISED=True, **shape),
        attention(mixed, **shape),
        attention(mixed, SEGMENTS=True, **shape),
        attention(prefill, **shape),
        attention(prefill, SEGMENTS=True, PREFIX=True, **shape),
    ]


def attention(
    tile: Tile, *, head_dim: int, dtype: torch.dtype, group: int, block_size: int = 16, **flags: bool
) -> Variant:
    constants: dict[str, Any] = {
        "KV_HEADS": 8,
        "GROUP": group,
        "DIM": head_dim,
        "DIM_PADDED": power_of_two(head_dim),
        "BLOCK_SIZE": block_size,
        "ROWS": tile.rows,
        "TOKENS": tile.tokens,
        "PEEL": tile.peel,
        "PRECISION": "ieee",
        **dict.fromkeys(("WINDOW", "SOFTCAP", "QUANTISED", "SEGMENTS", "PREFIX"), False),
        **flags,
    }
    segments, quantised = constants["SEGMENTS"], constants["QUANTISED"]
    stored = TYPES[torch.int8 if quantised else dtype]
    types = {
        "out_ptr": "*fp32" if segments else TYPES[dtype],
        "lse_ptr": "*fp32" if segments else TYPES[dtype],
        "q_ptr": TYPES[dtype],
        "k_ptr": stored,
        "v_ptr": stored,
        "k_scale_ptr": "*fp32" if quantised else stored,
        "v_scale_ptr": "*fp32" if quantised else stored,
        "scale": "fp32",
        "softcap": "fp32",
    }
    return _variant(attend_kernel, types, constants, tile.options)


def merging(head_dim: int, dtype: torch.dtype) -> Variant:
    constants = {
        "DIM": head_dim,
        "DIM_PADDED": power_of_two(head_dim),
        "MAX_SLOTS": 2 * MAX_SEGMENTS,
        "AT_ONCE": SLOTS_AT_ONCE,
    }
    types = {"out_ptr": TYPES[dtype], "partial_ptr": "*fp32", "lse_ptr": "*fp32"}
    return _variant(merge_kernel, types, constants, {"num_warps": 2})


def planning() -> Variant:
    constants = {"LEAST": MIN_SEGMENT, "WINDOW": False, "PREFIX": False, "AT_ONCE": SEQS_AT_ONCE}
    return _variant(plan_kernel, {}, constants, {})


def _variant(kernel: Any, types: dict[str, str], constants: dict[str, Any], options: dict[str, int]) -> Variant:
    """Types as the launches have them: pointers to int32 and int32 numbers where `types` says nothing else."""
    signature = {}
    for name in kernel.arg_names:
        usual = "*i32" if name.endswith("_ptr") else "i32"
        signature[name] = "constexpr" if name in constants else types.get(name, usual)
    return Variant(kernel, signature, constants, options)
