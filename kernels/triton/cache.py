"""Writing to the KV cache: new tokens into their slots, and whole blocks from place to place."""

from __future__ import annotations

from collections.abc import Iterable

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.api import CacheLayer, KVCache
from kernels.triton.quantised import cached, encode, magnitude, scale_of
from kernels.triton.record import Variant, launches, with_e4m3
from kernels.triton.shapes import across, row_stride

COPY_WORDS = 2048
"""Words of eight bytes that one program copies."""


def write_kv(k: Tensor, v: Tensor, layer: CacheLayer, slot_mapping: Tensor) -> None:
    tokens, kv_heads, dim = k.shape
    if not tokens:
        return
    k_cache, v_cache, k_scale, v_scale, strides = cached(layer)
    _write_kv[(tokens,)](
        k,
        v,
        slot_mapping,
        k_cache,
        v_cache,
        k_scale,
        v_scale,
        row_stride(k),
        across(k, 1),
        row_stride(v),
        across(v, 1),
        *strides,
        KV_HEADS=kv_heads,
        DIM=dim,
        BLOCK_SIZE=k_cache.shape[1],
        TILE_HEADS=triton.next_power_of_2(kv_heads),
        TILE_DIM=triton.next_power_of_2(dim),
        num_warps=4,
    )


def at_once(pairs: Iterable[tuple[int, int]]) -> list[list[tuple[int, int]]]:
    """An ordered list of copies, (source, destination), cut into runs that `copy_blocks` may each make in one launch.

    The engine's list is one after the other: a destination may be a later pair's source, or be given out again. A run
    ends before a pair that reads what the run wrote, or writes what it read or wrote.
    """
    runs: list[list[tuple[int, int]]] = []
    read: set[int] = set()
    written: set[int] = set()
    for source, destination in pairs:
        if not runs or source in written or destination in written or destination in read:
            runs.append([])
            read, written = set(), set()
        runs[-1].append((source, destination))
        read.add(source)
        written.add(destination)
    return runs


def copy_blocks(cache: KVCache, src: Tensor, dst: Tensor) -> None:
    if not src.numel():
        return
    _copy(cache.data, src, dst)
    if cache.scales is not None:
        _copy(cache.scales.transpose(-1, -2), src, dst)  # as they lie in memory


def _copy(data: Tensor, src: Tensor, dst: Tensor) -> None:
    """data, contiguous, [2, num_layers, num_blocks, ...]."""
    flat = data.view(data.shape[0] * data.shape[1], data.shape[2], -1)
    size = flat.shape[2] * flat.itemsize
    # Types matter nothing to a copy, so all are one, as wide as a block's size allows.
    words = flat.view(next(kind for kind in (torch.int64, torch.int32, torch.int8) if size % kind.itemsize == 0))
    tile = min(COPY_WORDS, triton.next_power_of_2(words.shape[2]))
    grid = (src.numel(), words.shape[0], triton.cdiv(words.shape[2], tile))
    _copy_blocks[grid](
        words,
        src,
        dst,
        words.stride(0),
        words.stride(1),
        WORDS=words.shape[2],
        TILE=tile,
        num_warps=max(1, tile // 256),
    )


@triton.jit
def _write_kv(
    k_ptr: tl.tensor,
    v_ptr: tl.tensor,
    slots_ptr: tl.tensor,
    k_cache_ptr: tl.tensor,
    v_cache_ptr: tl.tensor,
    k_scale_ptr: tl.tensor,
    v_scale_ptr: tl.tensor,
    k_row: tl.tensor,
    k_head: tl.tensor,
    v_row: tl.tensor,
    v_head: tl.tensor,
    cache_block: tl.tensor,
    cache_slot: tl.tensor,
    cache_head: tl.tensor,
    scale_block: tl.tensor,
    scale_slot: tl.tensor,
    scale_head: tl.tensor,
    KV_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    TILE_HEADS: tl.constexpr,
    TILE_DIM: tl.constexpr,
) -> None:
    """One token: all heads of its K and V."""
    row = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots_ptr + row).to(tl.int64)
    if slot >= 0:
        block, offset = slot // BLOCK_SIZE, slot % BLOCK_SIZE
        heads, dims = tl.arange(0, TILE_HEADS), tl.arange(0, TILE_DIM)
        live = heads < KV_HEADS
        mask = live[:, None] & (dims < DIM)[None, :]
        k = tl.load(k_ptr + row * k_row + heads[:, None] * k_head + dims[None, :], mask=mask, other=0.0)
        v = tl.load(v_ptr + row * v_row + heads[:, None] * v_head + dims[None, :], mask=mask, other=0.0)
        k, v = k.to(tl.float32), v.to(tl.float32)
        k_scale, v_scale = 1.0, 1.0
        if k_scale_ptr is not None:
            to = block * scale_block + offset * scale_slot + heads * scale_head
            k_scale = scale_of(tl.max(magnitude(k), axis=1), k_cache_ptr)
            v_scale = scale_of(tl.max(magnitude(v), axis=1), v_cache_ptr)
            tl.store(k_scale_ptr + to, k_scale, mask=live)
            tl.store(v_scale_ptr + to, v_scale, mask=live)
            k_scale, v_scale = k_scale[:, None], v_scale[:, None]
        to = block * cache_block + offset * cache_slot + heads[:, None] * cache_head + dims[None, :]
        tl.store(k_cache_ptr + to, encode(k, k_scale, k_cache_ptr), mask=mask)
        tl.store(v_cache_ptr + to, encode(v, v_scale, v_cache_ptr), mask=mask)


@triton.jit
def _copy_blocks(
    data_ptr: tl.tensor,
    src_ptr: tl.tensor,
    dst_ptr: tl.tensor,
    plane: tl.tensor,
    block: tl.tensor,
    WORDS: tl.constexpr,
    TILE: tl.constexpr,
) -> None:
    """A part of one pair's block in one layer's K or V."""
    src = tl.load(src_ptr + tl.program_id(0)).to(tl.int64)
    dst = tl.load(dst_ptr + tl.program_id(0)).to(tl.int64)
    start = data_ptr + tl.program_id(1).to(tl.int64) * plane
    words = tl.program_id(2) * TILE + tl.arange(0, TILE)
    mask = words < WORDS
    tl.store(start + dst * block + words, tl.load(start + src * block + words, mask=mask), mask=mask)


def variants() -> list[Variant]:
    """Shapes of an 8B model (8 KV heads, blocks of 16 tokens) with each type of cache, for the builds ahead of time."""
    with launches() as noted:
        for dim in (64, 128):
            for dtype in (torch.bfloat16, torch.int8, torch.float8_e4m3fn):
                cache = KVCache(2, 4, 16, 8, dim, dtype=dtype)
                fused = torch.empty(4, 48, dim, dtype=torch.bfloat16)
                write_kv(fused[:, 32:40], fused[:, 40:], cache.layer(0), torch.zeros(4, dtype=torch.int64))
        copy_blocks(cache, torch.zeros(2, dtype=torch.int64), torch.zeros(2, dtype=torch.int64))
    return with_e4m3(launch.variant for launch in noted)
