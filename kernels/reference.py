"""The oracle: in plain float32, attention one sequence and one query row at a time.

Written to be read, not to be fast. Every other path is tested against it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from kernels.quantised import LARGEST, LEAST

if TYPE_CHECKING:
    from kernels.api import AttentionMetadata, CacheLayer


def write_kv(k: Tensor, v: Tensor, layer: CacheLayer, slot_mapping: Tensor) -> None:
    block_size = layer.k.shape[1]
    for row, slot in enumerate(slot_mapping.tolist()):
        if slot >= 0:
            place = slot // block_size, slot % block_size
            for new, cache, scales in ((k[row], layer.k, layer.k_scale), (v[row], layer.v, layer.v_scale)):
                if scales is not None:
                    scales[place] = new.float().abs().amax(-1).clamp(min=LEAST) / LARGEST[cache.dtype]
                    new = new.float() / scales[place][:, None]
                    new = new.round() if cache.dtype == torch.int8 else new
                cache[place] = new.to(cache.dtype)


def context(cache: Tensor, scales: Tensor | None, block_table: Tensor, length: int) -> Tensor:
    """The first `length` tokens of a sequence, float32 [length, num_kv_heads, head_dim].

    A table entry that is no block stands for one that was given back: its tokens come out as NaN.
    """
    num_blocks, block_size = cache.shape[:2]
    lost = torch.full(cache.shape[2:], float("nan"), device=cache.device)
    blocks = block_table.tolist()
    tokens = []
    for i in range(length):
        block, offset = blocks[i // block_size], i % block_size
        if not 0 <= block < num_blocks:
            tokens.append(lost)
        elif scales is None:
            tokens.append(cache[block, offset].float())
        else:
            tokens.append(cache[block, offset].float() * scales[block, offset][:, None])
    return torch.stack(tokens)


def paged_attention(
    q: Tensor,
    layer: CacheLayer,
    meta: AttentionMetadata,
    scale: float,
    *,
    window: int | None = None,
    softcap: float | None = None,
) -> Tensor:
    """As kernels.api.paged_attention, but always float32."""
    out = torch.zeros(q.shape, dtype=torch.float32, device=q.device)
    group = q.shape[1] // layer.k.shape[2]
    starts = meta.query_starts.tolist()
    for s, length in enumerate(meta.seq_lens.tolist()):
        if length == 0:
            continue
        keys = context(layer.k, layer.k_scale, meta.block_tables[s], length).repeat_interleave(group, dim=1)
        values = context(layer.v, layer.v_scale, meta.block_tables[s], length).repeat_interleave(group, dim=1)
        num_rows = starts[s + 1] - starts[s]
        for i in range(num_rows):
            stop = length - num_rows + i + 1
            seen = slice(0 if window is None else max(0, stop - window), stop)
            row = starts[s] + i
            scores = torch.einsum("hd,lhd->hl", q[row].float() * scale, keys[seen])
            if softcap is not None:
                scores = softcap * torch.tanh(scores / softcap)
            out[row] = torch.einsum("hl,lhd->hd", scores.softmax(dim=-1), values[seen])
    return out


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Over the last dimension, float32."""
    x = x.float()
    return x / (x.square().mean(dim=-1, keepdim=True) + eps).sqrt() * weight.float()


def add_rms_norm(x: Tensor, residual: Tensor | None, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """As kernels.api.add_rms_norm; the norm float32, the sum in x's dtype."""
    total = x if residual is None else (x.float() + residual.float()).to(x.dtype)
    return rms_norm(total, weight, eps), total


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
    """As kernels.api.rope_write_kv, but q is float32, and k is rounded once, when it is stored."""
    q, k, v = qkv.float().split([num_heads, layer.k.shape[2], layer.k.shape[2]], dim=1)
    if norms is not None:
        q, k = rms_norm(q, norms[0], eps), rms_norm(k, norms[1], eps)
    if rotation is not None:
        q, k = rotate(q, *rotation), rotate(k, *rotation)
    write_kv(k, v, layer, slot_mapping)
    return q


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    out = x.clone()
    half = x.shape[-1] // 2
    for i in range(half):
        c, s = cos[:, i, None], sin[:, i, None]
        out[..., i] = x[..., i] * c - x[..., i + half] * s
        out[..., i + half] = x[..., i + half] * c + x[..., i] * s
    return out


def silu_mul(gate_up: Tensor) -> Tensor:
    """As kernels.api.silu_mul, float32."""
    gate, up = gate_up.float().chunk(2, dim=-1)
    return gate / (1 + (-gate).exp()) * up
