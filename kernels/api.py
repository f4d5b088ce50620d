"""What the engine asks of its kernels: a few functions over a paged KV cache, and the two things they work on.

Owns the layout of the cache and of a step's metadata, and the choice of the path that does the work. A path is a
module with functions of these names. Promises of every path: a slot of -1 is padding and is not written; a row of
length 0 comes out as zeros; what lies in a block behind a sequence's end, in unused entries of a block table, in
blocks that no table names, or in blocks wholly outside a window is never used, NaN included; q and the new k and v may
be strided views. It knows nothing of sequences, schedules or tenants.

All tokens of a step lie in one flat row: sequence s has the rows query_starts[s] .. query_starts[s + 1], and they are
the last tokens of its context of seq_lens[s] tokens. Decode is the case of one row.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from kernels import fixed_order, torch_ops
from kernels.cpu import ops as cpu_ops
from kernels.prefix_groups import PrefixGroups
from kernels.quantised import LARGEST


def through_triton(x: Tensor) -> bool:
    """Whether Triton's kernels work on rows like x."""
    return x.is_cuda


def _path(x: Tensor, cache: Tensor | None = None) -> ModuleType:
    """The module that works on rows like x, and over a cache like this one."""
    if through_triton(x):
        return _triton()
    served = cpu_ops.serves(x) if cache is None else cache.dtype == x.dtype and cpu_ops.serves_cache(cache)
    return cpu_ops if served else torch_ops


@cache
def _triton() -> ModuleType:
    # Imported when the first tensor on a GPU comes: triton takes a second, and a machine without one may not have it.
    return import_module("kernels.triton")


@dataclass
class AttentionMetadata:
    """One step's tokens T of S sequences, and where their KV lies.

    slot_mapping int64 [T]: block id * block_size + offset for each row's own K and V, -1 for a padded row.
    block_tables int32 [S, max_blocks]: physical blocks in the order of the context; entries behind it are ignored.
    query_starts int32 [S + 1], seq_lens int32 [S]: context including this step's tokens; 0 for a padded sequence.
    All four on the cache's device; max_query_len and max_seq_len are their maxima, known without a device read.
    fixed_order: every sum in one order, so that a row's result does not depend on its batch (slower).
    groups: sequences that share leading blocks, for paths that read these once for all of them; None: not looked for.
    """

    slot_mapping: Tensor
    block_tables: Tensor
    query_starts: Tensor
    seq_lens: Tensor
    max_query_len: int
    max_seq_len: int
    fixed_order: bool = False
    groups: PrefixGroups | Any = None
    # A path's own preparation for this step, made at its first layer and used by the others.
    plan: Any = field(default=None, repr=False, compare=False)


@dataclass(frozen=True)
class CacheLayer:
    """K and V of one layer, each [num_blocks, block_size, num_kv_heads, head_dim].

    Where they are int8 or float8_e4m3fn, k_scale and v_scale, float32 [num_blocks, block_size, num_kv_heads], say what
    a token's head is to be multiplied with; elsewhere these are None.
    """

    k: Tensor
    v: Tensor
    k_scale: Tensor | None = None
    v_scale: Tensor | None = None


class KVCache:
    """The pool of all layers: one tensor [2, num_layers, num_blocks, block_size, num_kv_heads, head_dim], zeroed.

    dtype: float32, bfloat16 or float16; or int8 or float8_e4m3fn, with `scales` float32 [2, num_layers, num_blocks,
    block_size, num_kv_heads] beside it, in memory a head's tokens of a block next to each other, as attention reads
    them. ValueError for any other.
    """

    def __init__(
        self,
        num_layers: int,
        num_blocks: int,
        block_size: int,
        num_kv_heads: int,
        head_dim: int,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        if dtype not in (torch.float32, torch.bfloat16, torch.float16, *LARGEST):
            raise ValueError(f"a KV cache cannot be {dtype}; choose float32, bfloat16, float16, int8 or float8_e4m3fn.")
        shape = (2, num_layers, num_blocks, block_size, num_kv_heads, head_dim)
        self.data = torch.zeros(shape, dtype=dtype, device=device)
        self.scales: Tensor | None = None
        if dtype in LARGEST:
            by_head = torch.zeros(2, num_layers, num_blocks, num_kv_heads, block_size, device=device)
            self.scales = by_head.transpose(-1, -2)
        self.num_layers = num_layers
        self.num_blocks = num_blocks
        self.block_size = block_size
        pairs = [(self.data[0, i], self.data[1, i]) for i in range(num_layers)]
        scales = self.scales
        self._layers = [
            CacheLayer(k, v) if scales is None else CacheLayer(k, v, scales[0, i], scales[1, i])
            for i, (k, v) in enumerate(pairs)
        ]

    def layer(self, index: int) -> CacheLayer:
        return self._layers[index]


def write_kv(k: Tensor, v: Tensor, layer: CacheLayer, slot_mapping: Tensor) -> None:
    """Store k and v, each [T, num_kv_heads, head_dim], in their slots; rows of slot -1 are dropped."""
    _path(k, layer.k).write_kv(k, v, layer, slot_mapping)


def paged_attention(
    q: Tensor,
    layer: CacheLayer,
    meta: AttentionMetadata,
    scale: float,
    *,
    window: int | None = None,
    softcap: float | None = None,
) -> Tensor:
    """Causal attention of q [T, num_heads, head_dim] over the cached context; the same shape and dtype, contiguous.

    num_heads is a multiple of num_kv_heads: query head h reads KV head h // (num_heads // num_kv_heads). The step's own
    K and V must have been written. Rows that belong to no sequence come out as zeros.

    window: a token sees itself and the window - 1 tokens before it (None: all). Table entries whose blocks lie wholly
    outside the windows of a sequence's rows are not looked at. softcap: scaled scores s become softcap * tanh(s /
    softcap) before the softmax (Gemma 2, arXiv 2408.00118, section 2).
    """
    # A GPU's own path knows a fixed order too.
    path = fixed_order if meta.fixed_order and not through_triton(q) else _path(q, layer.k)
    out: Tensor = path.paged_attention(q, layer, meta, scale, window=window, softcap=softcap)
    return out


def warm_up(
    num_heads: int,
    layer: CacheLayer,
    dtype: torch.dtype,
    *,
    windows: Iterable[int | None] = (None,),
    softcap: float | None = None,
    row_stride: int | None = None,
) -> None:
    """Have all of attention compiled that steps of this shape can take, so that no later one waits for a compiler.

    dtype: of q. row_stride: of its rows, where they are slices of a wider tensor. Nothing is read or written.
    """
    if through_triton(layer.k):
        paged = import_module("kernels.triton.paged")
        paged.warm_up(num_heads, layer, dtype, windows=windows, softcap=softcap, row_stride=row_stride)


def add_rms_norm(x: Tensor, residual: Tensor | None, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """(norm(sum) * weight, sum), where sum = x + residual rounded to x's dtype, or x itself without a residual.

    x, residual: [T, hidden], contiguous; both may be overwritten with the results. weight [hidden]. The norm is x over
    its root mean square (arXiv 1910.07467), computed in float32 and rounded once.
    """
    out: tuple[Tensor, Tensor] = _path(x).add_rms_norm(x, residual, weight, eps)
    return out


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
    """Rotate the heads of q and k, store k and v in their slots, and return q [T, num_heads, head_dim].

    qkv [T, num_heads + 2 * num_kv_heads, head_dim]: a row's heads of q, then of k, then of v; it may be overwritten,
    and q may be a view of it. rotation: cosine and sine, float32 [T, head_dim / 2] each; component i turns with
    component i + head_dim / 2; None: nothing is rotated. norms: weights [head_dim] of a norm over each head of q and of
    k, before they are rotated.
    Rows of slot -1 are not stored.
    """
    out: Tensor = _path(qkv, layer.k).rope_write_kv(qkv, rotation, layer, slot_mapping, num_heads, norms=norms, eps=eps)
    return out


def silu_mul(gate_up: Tensor) -> Tensor:
    """silu(gate) * up, [T, n], for [T, 2 * n] whose rows are gate, then up."""
    out: Tensor = _path(gate_up).silu_mul(gate_up)
    return out


def copy_blocks(cache: KVCache, src: Tensor, dst: Tensor) -> None:
    """Copy whole blocks src[i] -> dst[i] (int64 [N] each) in every layer; no dst may also be a src or occur twice."""
    _path(cache.data).copy_blocks(cache, src, dst)
