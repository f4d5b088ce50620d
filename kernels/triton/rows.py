"""What a decoder layer does to its rows beside matrices and attention, each a single pass over memory.

Every program works on one row alone and in a fixed order, so a row's result does not depend on its batch.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.api import CacheLayer
from kernels.triton.quantised import cached, encode, magnitude, scale_of
from kernels.triton.shapes import across, row_stride

SILU_TILE = 1024
ROPE_TILE = 1024
"""Values that one program works on, eight for each of its threads: a load of 16 bytes."""


def add_rms_norm(x: Tensor, residual: Tensor | None, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    rows, hidden = x.shape
    # The sum takes the place of the residual, the norm that of x, unless x is the sum.
    out, total = (torch.empty_like(x), x) if residual is None else (x, residual)
    if rows:
        tile = triton.next_power_of_2(hidden)
        _add_rms_norm[(rows,)](
            x,
            residual,
            weight,
            out,
            eps,
            _contiguous_row(x),
            row_stride(x) if residual is None else _contiguous_row(residual),
            _contiguous_row(out),
            HIDDEN=hidden,
            TILE=tile,
            num_warps=min(max(tile // 512, 1), 16),
        )
    return out, total


def rope_write_kv(
    qkv: Tensor,
    rotation: tuple[Tensor, Tensor] | None,
    layer: CacheLayer,
    slot_mapping: Tensor,
    num_heads: int,
    *,
    norms: tuple[Tensor, Tensor] | None = None,
    eps: float = 0.0,
) -> Tensor:
    tokens, all_heads, dim = qkv.shape
    q = qkv[:, :num_heads]
    if not tokens:
        return q
    if dim % 2:
        raise ValueError(f"head_dim is {dim}; heads are rotated by halves, so it has to be even.")
    k_cache, v_cache, k_scale, v_scale, strides = cached(layer)
    cos, sin = (None, None) if rotation is None else rotation
    q_norm, k_norm = (None, None) if norms is None else norms
    if cos is not None and sin is not None and cos.stride() != sin.stride():
        raise ValueError(f"cosine and sine lie alike: {cos.stride()} and {sin.stride()} do not.")
    half = triton.next_power_of_2(dim // 2)
    tile = min(max(ROPE_TILE // (2 * half), 1), triton.next_power_of_2(all_heads))
    _rope_write_kv[(tokens, triton.cdiv(all_heads, tile))](
        qkv,
        cos,
        sin,
        q_norm,
        k_norm,
        slot_mapping,
        k_cache,
        v_cache,
        k_scale,
        v_scale,
        eps,
        row_stride(qkv),
        across(qkv, 1),
        0 if cos is None else _contiguous_row(cos),
        *strides,
        HEADS=num_heads,
        KV_HEADS=k_cache.shape[2],
        DIM=dim,
        BLOCK_SIZE=k_cache.shape[1],
        TILE_HEADS=tile,
        TILE_HALF=half,
        num_warps=max(tile * half * 2 // 256, 1),
    )
    return q


def silu_mul(gate_up: Tensor) -> Tensor:
    rows, width = gate_up.shape[0], gate_up.shape[1] // 2
    out = torch.empty((rows, width), dtype=gate_up.dtype, device=gate_up.device)
    if rows:
        grid = (rows, triton.cdiv(width, SILU_TILE))
        _silu_mul[grid](gate_up, out, _contiguous_row(gate_up), WIDTH=width, TILE=SILU_TILE, num_warps=4)
    return out


def _contiguous_row(x: Tensor) -> int:
    """The stride between rows which are each in one piece."""
    across(x, 0)
    return row_stride(x)


@triton.jit
def _add_rms_norm(
    x_ptr: Any,
    residual_ptr: Any,
    weight_ptr: Any,
    out_ptr: Any,
    eps: Any,
    x_row: Any,
    residual_row: Any,
    out_row: Any,
    HIDDEN: tl.constexpr,
    TILE: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, TILE)
    mask = at < HIDDEN
    x = tl.load(x_ptr + row * x_row + at, mask=mask, other=0.0)
    if residual_ptr is not None:
        before = tl.load(residual_ptr + row * residual_row + at, mask=mask, other=0.0)
        # Rounded as it is stored: the norm is of what the next layer adds to.
        x = (x.to(tl.float32) + before.to(tl.float32)).to(x_ptr.dtype.element_ty)
        tl.store(residual_ptr + row * residual_row + at, x, mask=mask)
    x = x.to(tl.float32)
    weight = tl.load(weight_ptr + at, mask=mask, other=0.0).to(tl.float32)
    out = x * tl.rsqrt(tl.sum(x * x, axis=0) / HIDDEN + eps) * weight
    tl.store(out_ptr + row * out_row + at, out.to(out_ptr.dtype.element_ty), mask=mask)


@triton.jit
def _rope_write_kv(
    qkv_ptr: Any,
    cos_ptr: Any,
    sin_ptr: Any,
    q_norm_ptr: Any,
    k_norm_ptr: Any,
    slots_ptr: Any,
    k_cache_ptr: Any,
    v_cache_ptr: Any,
    k_scale_ptr: Any,
    v_scale_ptr: Any,
    eps: Any,
    qkv_row: Any,
    qkv_head: Any,
    rotation_row: Any,
    cache_block: Any,
    cache_slot: Any,
    cache_head: Any,
    scale_block: Any,
    scale_slot: Any,
    scale_head: Any,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    TILE_HEADS: tl.constexpr,
    TILE_HALF: tl.constexpr,
) -> None:
    """Some heads of one token, of q, k or v: in two halves, a and b, that turn with each other."""
    row = tl.program_id(0).to(tl.int64)
    heads = tl.program_id(1) * TILE_HEADS + tl.arange(0, TILE_HEADS)
    at = tl.arange(0, TILE_HALF)
    inside = at < DIM // 2
    live = (heads < HEADS + 2 * KV_HEADS)[:, None] & inside[None, :]
    turns = (heads < HEADS + KV_HEADS)[:, None]
    source = qkv_ptr + row * qkv_row + heads[:, None] * qkv_head + at[None, :]
    a = tl.load(source, mask=live, other=0.0).to(tl.float32)
    b = tl.load(source + DIM // 2, mask=live, other=0.0).to(tl.float32)
    if q_norm_ptr is not None:
        by = tl.rsqrt(tl.sum(a * a + b * b, axis=1) / DIM + eps)[:, None]
        of_q = (heads < HEADS)[:, None]
        q_a, q_b = _halves(q_norm_ptr, at, inside, DIM)
        k_a, k_b = _halves(k_norm_ptr, at, inside, DIM)
        a = tl.where(turns, a * by * tl.where(of_q, q_a[None, :], k_a[None, :]), a)
        b = tl.where(turns, b * by * tl.where(of_q, q_b[None, :], k_b[None, :]), b)
    if cos_ptr is not None:
        cos = tl.load(cos_ptr + row * rotation_row + at, mask=inside, other=0.0)[None, :]
        sin = tl.load(sin_ptr + row * rotation_row + at, mask=inside, other=0.0)[None, :]
        turned_a, turned_b = a * cos - b * sin, b * cos + a * sin
        a, b = tl.where(turns, turned_a, a), tl.where(turns, turned_b, b)
    if q_norm_ptr is not None or cos_ptr is not None:
        of_q = live & (heads < HEADS)[:, None]
        tl.store(source, a.to(qkv_ptr.dtype.element_ty), mask=of_q)
        tl.store(source + DIM // 2, b.to(qkv_ptr.dtype.element_ty), mask=of_q)
    slot = tl.load(slots_ptr + row).to(tl.int64)
    if slot >= 0:
        block, offset = slot // BLOCK_SIZE, slot % BLOCK_SIZE
        of_k = (heads >= HEADS) & (heads < HEADS + KV_HEADS)
        of_v = (heads >= HEADS + KV_HEADS) & (heads < HEADS + 2 * KV_HEADS)
        head = tl.where(of_k, heads - HEADS, heads - HEADS - KV_HEADS)
        scale = 1.0
        if k_scale_ptr is not None:
            scale = scale_of(tl.max(tl.maximum(magnitude(a), magnitude(b)), axis=1), k_cache_ptr)
            to = block * scale_block + offset * scale_slot + head * scale_head
            tl.store(k_scale_ptr + to, scale, mask=of_k)
            tl.store(v_scale_ptr + to, scale, mask=of_v)
            scale = scale[:, None]
        to = block * cache_block + offset * cache_slot + head[:, None] * cache_head + at[None, :]
        a, b = encode(a, scale, k_cache_ptr), encode(b, scale, k_cache_ptr)
        of_k, of_v = of_k[:, None] & inside[None, :], of_v[:, None] & inside[None, :]
        tl.store(k_cache_ptr + to, a, mask=of_k)
        tl.store(k_cache_ptr + to + DIM // 2, b, mask=of_k)
        tl.store(v_cache_ptr + to, a, mask=of_v)
        tl.store(v_cache_ptr + to + DIM // 2, b, mask=of_v)


@triton.jit
def _halves(weight_ptr: Any, at: Any, inside: Any, DIM: tl.constexpr) -> Any:
    first = tl.load(weight_ptr + at, mask=inside, other=0.0).to(tl.float32)
    second = tl.load(weight_ptr + DIM // 2 + at, mask=inside, other=0.0).to(tl.float32)
    return first, second


@triton.jit
def _silu_mul(gate_up_ptr: Any, out_ptr: Any, row_stride: Any, WIDTH: tl.constexpr, TILE: tl.constexpr) -> None:
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * TILE + tl.arange(0, TILE)
    mask = at < WIDTH
    gate = tl.load(gate_up_ptr + row * row_stride + at, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(gate_up_ptr + row * row_stride + WIDTH + at, mask=mask, other=0.0).to(tl.float32)
    out = gate / (1.0 + tl.exp(-gate)) * up
    tl.store(out_ptr + row * WIDTH + at, out.to(out_ptr.dtype.element_ty), mask=mask)
