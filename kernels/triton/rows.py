"""What a decoder layer does to its rows beside matrices and attention, each a single pass over memory.

Every program works on one row alone and in a fixed order, so a row's result does not depend on its batch.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.api import CacheLayer, KVCache
from kernels.triton.quantised import cached, encode, magnitude, scale_of
from kernels.triton.record import Variant, launches, with_e4m3
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
    x_ptr: tl.tensor,
    residual_ptr: tl.tensor,
    weight_ptr: tl.tensor,
    out_ptr: tl.tensor,
    eps: tl.tensor,
    x_row: tl.tensor,
    residual_row: tl.tensor,
    out_row: tl.tensor,
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
    qkv_ptr: tl.tensor,
    cos_ptr: tl.tensor,
    sin_ptr: tl.tensor,
    q_norm_ptr: tl.tensor,
    k_norm_ptr: tl.tensor,
    slots_ptr: tl.tensor,
    k_cache_ptr: tl.tensor,
    v_cache_ptr: tl.tensor,
    k_scale_ptr: tl.tensor,
    v_scale_ptr: tl.tensor,
    eps: tl.tensor,
    qkv_row: tl.tensor,
    qkv_head: tl.tensor,
    rotation_row: tl.tensor,
    cache_block: tl.tensor,
    cache_slot: tl.tensor,
    cache_head: tl.tensor,
    scale_block: tl.tensor,
    scale_slot: tl.tensor,
    scale_head: tl.tensor,
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
        first, second = encode(a, scale, k_cache_ptr), encode(b, scale, k_cache_ptr)
        for_k, for_v = of_k[:, None] & inside[None, :], of_v[:, None] & inside[None, :]
        tl.store(k_cache_ptr + to, first, mask=for_k)
        tl.store(k_cache_ptr + to + DIM // 2, second, mask=for_k)
        tl.store(v_cache_ptr + to, first, mask=for_v)
        tl.store(v_cache_ptr + to + DIM // 2, second, mask=for_v)


@triton.jit
def _halves(weight_ptr: tl.tensor, at: tl.tensor, inside: tl.tensor, DIM: tl.constexpr) -> tl.tensor:
    first = tl.load(weight_ptr + at, mask=inside, other=0.0).to(tl.float32)
    second = tl.load(weight_ptr + DIM // 2 + at, mask=inside, other=0.0).to(tl.float32)
    return first, second


@triton.jit
def _silu_mul(
    gate_up_ptr: tl.tensor, out_ptr: tl.tensor, gate_up_row: tl.tensor, WIDTH: tl.constexpr, TILE: tl.constexpr
) -> None:
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * TILE + tl.arange(0, TILE)
    mask = at < WIDTH
    gate = tl.load(gate_up_ptr + row * gate_up_row + at, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(gate_up_ptr + row * gate_up_row + WIDTH + at, mask=mask, other=0.0).to(tl.float32)
    out = gate / (1.0 + tl.exp(-gate)) * up
    tl.store(out_ptr + row * WIDTH + at, out.to(out_ptr.dtype.element_ty), mask=mask)


def variants() -> list[Variant]:
    """Shapes of an 8B model (hidden 4096, 32 heads, 8 KV heads), for the builds ahead of time."""
    with launches() as noted:
        x = torch.empty(4, 4096, dtype=torch.bfloat16)
        for residual in (None, x):
            add_rms_norm(x, residual, x[0], 1e-5)
        silu_mul(torch.empty(4, 28672, dtype=torch.bfloat16))
        for dim in (64, 128):
            qkv, cos = torch.empty(4, 48, dim, dtype=torch.bfloat16), torch.empty(4, dim // 2)
            for dtype in (torch.bfloat16, torch.int8, torch.float8_e4m3fn):
                layer = KVCache(2, 4, 16, 8, dim, dtype=dtype).layer(0)
                for norms in (None, (x[0, :dim], x[1, :dim])):
                    rope_write_kv(qkv, (cos, cos), layer, torch.zeros(4, dtype=torch.int64), 32, norms=norms)
    return with_e4m3(launch.variant for launch in noted)
