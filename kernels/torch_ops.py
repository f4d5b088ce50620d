"""The plain-torch path: what a decoder layer does beside its matrices; the cache and attention are torch_paged's."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F  # noqa: N812  torch's own usual name
from torch import Tensor

from kernels.torch_paged import copy_blocks, paged_attention, write_kv

if TYPE_CHECKING:
    from kernels.api import CacheLayer

__all__ = ["add_rms_norm", "copy_blocks", "paged_attention", "rope_write_kv", "silu_mul", "write_kv"]


def add_rms_norm(x: Tensor, residual: Tensor | None, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    if residual is not None:
        x = x + residual
    return F.rms_norm(x, (x.shape[-1],), weight, eps), x


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
    turned = num_heads + layer.k.shape[2]
    heads = qkv[:, :turned]
    if norms is not None:
        size = (qkv.shape[-1],)
        q, k = (
            F.rms_norm(heads[:, :num_heads], size, norms[0], eps),
            F.rms_norm(heads[:, num_heads:], size, norms[1], eps),
        )
        heads = torch.cat((q, k), dim=1)
    if rotation is not None:
        cos, sin = (part.to(qkv.dtype).unsqueeze(1) for part in rotation)
        heads = rotate(heads, cos, sin)
    write_kv(heads[:, num_heads:], qkv[:, turned:], layer, slot_mapping)
    return heads[:, :num_heads]


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn x [T, heads, head_dim]: component i pairs with component i + head_dim / 2 (Hugging Face's layout)."""
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


def silu_mul(gate_up: Tensor) -> Tensor:
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate) * up
