"""The plain-torch path: paged attention and cache writes with nothing but torch, made for few CPU cores.

Owns how a step is cut up. All decode rows of similar length form one batch: their blocks are gathered once, padded to
the longest, and attended to in one call, the query heads of a KV head standing as rows, so K and V are never repeated.
Sequences with more rows (prefill chunks) go one by one. The cut is planned at a step's first layer of each window and
used by all others; with a window only the blocks that it touches are gathered.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F  # noqa: N812  torch's own usual name
from torch import Tensor

from kernels.quantised import dequantise, quantise

if TYPE_CHECKING:
    from kernels.api import AttentionMetadata, CacheLayer, KVCache

# A batch of decodes is split when more than this share of what it gathers would be padding.
MAX_PADDING = 0.25
# Prefill in bfloat16 takes two matrix products with the scores between them in memory: on CPUs 2.5 times as fast as
# torch's fused attention. Below so many rows it does not pay; above so many scores memory would suffer.
MIN_PRODUCT_ROWS = 16
MAX_PRODUCT_SCORES = 2**25


@dataclass
class _Decodes:
    """Sequences of one query row each: rows int64 [D], blocks [D, width], mask [D, 1, 1, width * block_size].

    The mask is additive; `hidden` are the places in the gathered row of tokens that it hides. `whole`: the rows are
    all rows of the step, in order. `scratch` holds the gathered K and V of one layer after the other: allocated anew
    for each, megabytes would go back to the system and be faulted in again, which can take longer than the attention.
    """

    rows: Tensor
    blocks: Tensor
    mask: Tensor
    hidden: Tensor
    whole: bool
    scratch: tuple[Tensor, Tensor] | None = None


@dataclass
class _Chunk:
    """One sequence with several query rows, start .. stop; its blocks [width] and an additive mask [n, length].

    Of the tokens in the blocks `length` are attended to, behind `skip` which no row's window reaches. `tiled` is the
    mask once for each query head of a KV head, made when the product path first needs it.
    """

    start: int
    stop: int
    skip: int
    length: int
    blocks: Tensor
    mask: Tensor
    tiled: Tensor | None = None


@dataclass
class Plan:
    """How a step is cut up. `padded`: some rows belong to no sequence."""

    decodes: list[_Decodes]
    chunks: list[_Chunk]
    padded: bool


def write_kv(k: Tensor, v: Tensor, layer: CacheLayer, slot_mapping: Tensor) -> None:
    if slot_mapping.numel() == 0:
        return
    if int(slot_mapping.min()) < 0:
        used = slot_mapping >= 0
        slot_mapping, k, v = slot_mapping[used], k[used], v[used]
    for new, cache, scales in ((k, layer.k, layer.k_scale), (v, layer.v, layer.v_scale)):
        if scales is None:
            _store(new.to(cache.dtype), cache, slot_mapping)
        else:
            values, scale = quantise(new, cache.dtype)
            # As bytes: torch has no scatter of eight-bit floats.
            _store(values.view(torch.int8), cache.view(torch.int8), slot_mapping)
            _store(scale, scales, slot_mapping)


def _store(new: Tensor, cache: Tensor, slot_mapping: Tensor) -> None:
    block_size = cache.shape[1]
    if cache.stride(0) == block_size * cache.stride(1):
        cache.view(-1, *cache.shape[2:]).index_copy_(0, slot_mapping, new)
    else:
        cache[slot_mapping // block_size, slot_mapping % block_size] = new


def copy_blocks(cache: KVCache, src: Tensor, dst: Tensor) -> None:
    data = cache.data.view(torch.int8) if cache.data.itemsize == 1 else cache.data
    data[:, :, dst] = data[:, :, src]
    if cache.scales is not None:
        cache.scales[:, :, dst] = cache.scales[:, :, src]


def paged_attention(
    q: Tensor,
    layer: CacheLayer,
    meta: AttentionMetadata,
    scale: float,
    *,
    window: int | None = None,
    softcap: float | None = None,
) -> Tensor:
    if meta.plan is None:
        meta.plan = {}
    plan = meta.plan.get(window)
    if plan is None:
        dtype = layer.k.dtype if layer.k_scale is None else q.dtype
        plan = meta.plan[window] = make_plan(meta, q.shape[0], layer.k.shape[1], dtype, window)
    if len(plan.decodes) == 1 and plan.decodes[0].whole:
        return _attend_decodes(q, layer, plan.decodes[0], scale, softcap)
    out = q.new_zeros(q.shape) if plan.padded else q.new_empty(q.shape)
    for decodes in plan.decodes:
        out.index_copy_(0, decodes.rows, _attend_decodes(q[decodes.rows], layer, decodes, scale, softcap))
    for chunk in plan.chunks:
        rows = slice(chunk.start, chunk.stop)
        out[rows] = _attend_chunk(q[rows], layer, chunk, scale, softcap)
    return out


def make_plan(
    meta: AttentionMetadata, num_rows: int, block_size: int, dtype: torch.dtype, window: int | None = None
) -> Plan:
    if window is not None and window >= meta.max_seq_len:
        window = None
    starts, lengths = meta.query_starts.tolist(), meta.seq_lens.tolist()
    single: list[int] = []
    chunks: list[_Chunk] = []
    live = 0
    for s, length in enumerate(lengths):
        rows = starts[s + 1] - starts[s]
        if length == 0 or rows == 0:
            continue
        live += rows
        if rows == 1:
            single.append(s)
        else:
            chunks.append(_plan_chunk(meta, s, starts[s], starts[s + 1], length, block_size, dtype, window))
    seen = lengths if window is None else [min(length, window) for length in lengths]
    decodes = [
        _plan_decodes(
            meta, group, [starts[s] for s in group], [lengths[s] for s in group], num_rows, block_size, dtype, window
        )
        for group in _similar(single, seen)
    ]
    return Plan(decodes=decodes, chunks=chunks, padded=live < num_rows)


def _similar(sequences: list[int], lengths: list[int]) -> list[list[int]]:
    """Cut sequences into groups whose padding to the group's longest stays within MAX_PADDING, each in row order."""
    groups: list[list[int]] = []
    total = 0
    for s in sorted(sequences, key=lambda s: lengths[s]):
        if groups and total + lengths[s] >= (1.0 - MAX_PADDING) * lengths[s] * (len(groups[-1]) + 1):
            groups[-1].append(s)
            total += lengths[s]
        else:
            groups.append([s])
            total = lengths[s]
    return [sorted(group) for group in groups]


def _plan_decodes(
    meta: AttentionMetadata,
    group: list[int],
    rows: list[int],
    lengths: list[int],
    num_rows: int,
    block_size: int,
    dtype: torch.dtype,
    window: int | None,
) -> _Decodes:
    device = meta.block_tables.device
    ends = torch.tensor(lengths, device=device)[:, None]
    sequences = torch.tensor(group, device=device)
    if window is None:
        width = -(-max(lengths) // block_size)
        tables = meta.block_tables[sequences, :width]
    else:
        first = [max(0, length - window) // block_size for length in lengths]
        width = max(-(-length // block_size) - start for length, start in zip(lengths, first, strict=True))
        columns = torch.tensor(first, device=device)[:, None] + torch.arange(width, device=device)
        tables = meta.block_tables[sequences[:, None], columns.clamp(max=meta.block_tables.shape[1] - 1)]
        # From here on positions count from the first block that the window touches.
        ends = ends - columns[:, :1] * block_size
    # What a table holds behind a sequence's end is not even looked at: it may be no block at all.
    blocks = torch.where(torch.arange(width, device=device) * block_size < ends, tables, tables[:, :1])
    places = torch.arange(width * block_size, device=device)
    hidden = places >= ends
    if window is not None:
        hidden |= places < ends - window
    mask = torch.zeros(hidden.shape, dtype=dtype, device=device).masked_fill_(hidden, float("-inf"))
    return _Decodes(
        rows=torch.tensor(rows, device=device),
        blocks=blocks,
        mask=mask[:, None, None, :],
        hidden=hidden.view(-1).nonzero().view(-1),
        whole=rows == list(range(num_rows)),
    )


def _plan_chunk(
    meta: AttentionMetadata,
    s: int,
    start: int,
    stop: int,
    length: int,
    block_size: int,
    dtype: torch.dtype,
    window: int | None,
) -> _Chunk:
    device = meta.block_tables.device
    position = length - (stop - start)
    begin = 0 if window is None else max(0, position - window + 1)
    blocks = meta.block_tables[s, begin // block_size : -(-length // block_size)]
    rows = torch.arange(position, length, device=device)[:, None]
    places = torch.arange(begin, length, device=device)[None, :]
    hidden = places > rows
    if window is not None:
        hidden |= places <= rows - window
    mask = torch.zeros(hidden.shape, dtype=dtype, device=device).masked_fill_(hidden, float("-inf"))
    return _Chunk(start=start, stop=stop, skip=begin % block_size, length=length - begin, blocks=blocks, mask=mask)


def _gather(cache: Tensor, blocks: Tensor, out: Tensor) -> Tensor:
    """Copy the tokens of the given blocks in a row into `out` [number of blocks * block_size, num_kv_heads, head_dim].

    As 64-bit words where rows divide into them: index_select takes ten times as long for bfloat16.
    """
    rows, target = cache.view(cache.shape[0], -1), out.view(blocks.numel(), -1)
    size = rows.element_size()
    if size == 1:
        rows, target = rows.view(torch.int8), target.view(torch.int8)
    if not any(n * size % 8 for n in (rows.shape[1], rows.stride(0), rows.storage_offset())):
        rows, target = rows.view(torch.int64), target.view(torch.int64)
    torch.index_select(rows, 0, blocks.reshape(-1), out=target)
    return out


def _values(gathered: Tensor, scales: Tensor | None, blocks: Tensor, dtype: torch.dtype) -> Tensor:
    """The gathered tokens as numbers to compute with."""
    return gathered if scales is None else dequantise(gathered, scales[blocks.reshape(-1)].flatten(0, 1), dtype)


def _room(cache: Tensor, blocks: Tensor) -> Tensor:
    return cache.new_empty(blocks.numel() * cache.shape[1], *cache.shape[2:])


def _attend_decodes(q: Tensor, layer: CacheLayer, decodes: _Decodes, scale: float, softcap: float | None) -> Tensor:
    """One row each: q [D, num_heads, head_dim] -> the same shape."""
    count, kv_heads, dim = q.shape[0], layer.k.shape[2], layer.k.shape[3]
    blocks = decodes.blocks
    if decodes.scratch is None:
        decodes.scratch = (_room(layer.k, blocks), _room(layer.v, blocks))
    k = _values(_gather(layer.k, blocks, decodes.scratch[0]), layer.k_scale, blocks, q.dtype)
    v = _values(_gather(layer.v, blocks, decodes.scratch[1]), layer.v_scale, blocks, q.dtype)
    # Masking alone does not keep a NaN out: -inf + NaN is NaN in the scores, and 0 * NaN in the sum.
    k.index_fill_(0, decodes.hidden, 0.0)
    v.index_fill_(0, decodes.hidden, 0.0)
    queries = q.reshape(count, kv_heads, -1, dim).to(k.dtype)
    k, v = (x.view(count, -1, kv_heads, dim).transpose(1, 2) for x in (k, v))
    if softcap is None:
        attended = F.scaled_dot_product_attention(queries, k, v, attn_mask=decodes.mask, scale=scale)
    else:
        attended = _attend_capped(queries, k, v, decodes.mask, scale, softcap)
    return attended.reshape(count, -1, dim).to(q.dtype)


def _attend_chunk(q: Tensor, layer: CacheLayer, chunk: _Chunk, scale: float, softcap: float | None) -> Tensor:
    """The rows of one sequence: q [n, num_heads, head_dim] -> the same shape."""
    n, heads, dim = q.shape
    kv_heads = layer.k.shape[2]
    group = heads // kv_heads
    seen = slice(chunk.skip, chunk.skip + chunk.length)
    k, v = (
        _values(_gather(cache, chunk.blocks, _room(cache, chunk.blocks)), scales, chunk.blocks, q.dtype)[seen]
        for cache, scales in ((layer.k, layer.k_scale), (layer.v, layer.v_scale))
    )
    k, v = k.transpose(0, 1), v.transpose(0, 1)
    queries = q.to(k.dtype).reshape(n, kv_heads, group, dim).permute(1, 2, 0, 3)
    if softcap is not None:
        attended = _attend_capped(queries, k[:, None], v[:, None], chunk.mask, scale, softcap)
    elif k.dtype == torch.bfloat16 and n >= MIN_PRODUCT_ROWS and heads * n * chunk.length <= MAX_PRODUCT_SCORES:
        if chunk.tiled is None:
            chunk.tiled = chunk.mask.repeat(group, 1)
        mask = chunk.tiled.expand(kv_heads, -1, -1)
        scores = torch.baddbmm(mask, queries.reshape(kv_heads, group * n, dim), k.transpose(1, 2), alpha=scale)
        attended = torch.bmm(scores.softmax(dim=-1), v).view(kv_heads, group, n, dim)
    else:
        k, v = (x[:, None].expand(-1, group, -1, -1) for x in (k, v))
        attended = F.scaled_dot_product_attention(queries, k, v, attn_mask=chunk.mask[None, None], scale=scale)
    return attended.permute(2, 0, 1, 3).reshape(n, heads, dim).to(q.dtype)


def _attend_capped(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scale: float, softcap: float) -> Tensor:
    """Attention in two products, because torch's fused one knows no softcap; scores, cap and softmax in float32."""
    scores = torch.matmul(q, k.transpose(-2, -1)).float().mul_(scale / softcap).tanh_().mul_(softcap)
    return torch.matmul(scores.add_(mask).softmax(dim=-1).to(v.dtype), v)
