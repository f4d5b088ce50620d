"""Attention whose every sum has one order: a row's result is the same to the bit whatever lies beside it.

For the batch-invariant mode. Rows go in tiles of TILE, padded, and keys in splits of a fixed number of tokens, so all
products have one shape; each row gathers its own context, nothing is grouped; the splits of a row are merged from the
first to the last by running maximum and sum (Milakov, Gimelshein, arXiv 1805.02867). A split that a row does not see
changes no bit of it. So a result depends on the row's own query and context alone, not on how its sequence was chunked.
It is written for that and not for speed: the same keys are gathered once for each row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from kernels.quantised import dequantise

if TYPE_CHECKING:
    from kernels.api import AttentionMetadata, CacheLayer

TILE = 16
"""Rows of every product, here and in the model: few enough that a lone sequence does not pay for many."""
SPLIT_TOKENS = 128


@dataclass
class _Tile:
    """Rows start .. stop of the step, padded to TILE.

    blocks int64 [TILE, width]: a whole number of splits of each row's context from its token `first` on, 0 for what is
    not looked at. begin, end int64 [TILE]: each row sees the tokens begin .. end of its context, none if it is padding.
    """

    start: int
    stop: int
    first: int
    blocks: Tensor
    begin: Tensor
    end: Tensor


def paged_attention(
    q: Tensor,
    layer: CacheLayer,
    meta: AttentionMetadata,
    scale: float,
    *,
    window: int | None = None,
    softcap: float | None = None,
) -> Tensor:
    if not meta.seq_lens.numel():
        return torch.zeros_like(q, memory_format=torch.contiguous_format)
    if meta.plan is None:
        meta.plan = {}
    tiles = meta.plan.get(window)
    if tiles is None:
        tiles = meta.plan[window] = make_plan(meta, q.shape[0], layer.k.shape[1], window)
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    for tile in tiles:
        size = tile.stop - tile.start
        rows = q.new_zeros(TILE, *q.shape[1:])
        rows[:size] = q[tile.start : tile.stop]
        out[tile.start : tile.stop] = _attend(rows, layer, tile, scale, softcap)[:size]
    return out


def make_plan(meta: AttentionMetadata, num_rows: int, block_size: int, window: int | None) -> list[_Tile]:
    device = meta.block_tables.device
    starts, seq_lens = meta.query_starts.long(), meta.seq_lens.long()
    sequence = torch.repeat_interleave(torch.arange(len(seq_lens), device=device), starts.diff())
    lengths = seq_lens[sequence]
    ends = lengths - (starts[1:][sequence] - 1 - torch.arange(len(sequence), device=device))
    padding = (0, -(-num_rows // TILE) * TILE - len(sequence))
    sequence, lengths, ends = (torch.nn.functional.pad(x, padding) for x in (sequence, lengths, ends.clamp(min=0)))
    begins = torch.zeros_like(ends) if window is None else (ends - window).clamp(min=0)
    split = _split_blocks(block_size)
    tiles = []
    for start in range(0, num_rows, TILE):
        rows = slice(start, start + TILE)
        splits = -(-int(ends[rows].max()) // (split * block_size))
        # Where a padded row sees nothing the others' windows say where to begin; a split too many changes nothing.
        skipped = int(begins[rows].masked_fill(ends[rows] == 0, 2**62).min()) // (split * block_size)
        skipped = min(skipped, max(splits - 1, 0))
        column = torch.arange(skipped * split, max(splits, 1) * split, device=device)
        blocks = meta.block_tables[sequence[rows, None], column.clamp(max=meta.block_tables.shape[1] - 1)]
        # What a table holds elsewhere is not even looked at: it may be no block at all.
        seen = (column * block_size < ends[rows, None]) & ((column + 1) * block_size > begins[rows, None])
        tiles.append(
            _Tile(
                start=start,
                stop=min(start + TILE, num_rows),
                first=skipped * split * block_size,
                blocks=torch.where(seen, blocks, 0).long(),
                begin=begins[rows],
                end=ends[rows],
            )
        )
    return tiles


def _split_blocks(block_size: int) -> int:
    return max(1, SPLIT_TOKENS // block_size)


def _attend(q: Tensor, layer: CacheLayer, tile: _Tile, scale: float, softcap: float | None) -> Tensor:
    """q [TILE, num_heads, head_dim] -> the same shape, float32."""
    block_size, kv_heads, dim = layer.k.shape[1:]
    split = _split_blocks(block_size)
    tokens = split * block_size
    queries = (q.float() * scale).reshape(TILE * kv_heads, -1, dim)
    out = torch.zeros_like(queries)
    # Not -inf: a split of which a row sees nothing would make NaN of it.
    top = queries.new_full(queries.shape[:2], torch.finfo(torch.float32).min)
    total = torch.zeros_like(top)
    for number in range(tile.blocks.shape[1] // split):
        at = torch.arange(number * tokens, (number + 1) * tokens, device=q.device) + tile.first
        unseen = (at < tile.begin[:, None]) | (at >= tile.end[:, None])
        blocks = tile.blocks[:, number * split : (number + 1) * split]
        k, v = _gather(layer.k, layer.k_scale, blocks, unseen), _gather(layer.v, layer.v_scale, blocks, unseen)
        scores = torch.bmm(queries, k.transpose(1, 2))
        if softcap is not None:
            scores = scores.div_(softcap).tanh_().mul_(softcap)
        scores.masked_fill_(unseen.repeat_interleave(kv_heads, 0)[:, None], -torch.inf)
        new_top = torch.maximum(top, scores.amax(-1))
        weights = (scores - new_top[..., None]).exp_()
        by = (top - new_top).exp_()
        total = total * by + weights.sum(-1)
        out = out * by[..., None] + torch.bmm(weights, v)
        top = new_top
    # A padded row has seen nothing and is all zeros.
    return (out / total.clamp(min=torch.finfo(torch.float32).tiny)[..., None]).view(q.shape)


def _gather(cache: Tensor, scales: Tensor | None, blocks: Tensor, unseen: Tensor) -> Tensor:
    """The tokens of each row's blocks, float32 [TILE * kv_heads, tokens, head_dim]; 0 where the row does not look."""
    kv_heads, dim = cache.shape[2:]
    found = cache[blocks]
    if scales is not None:
        found = dequantise(found, scales[blocks], torch.float32)
    found = found.view(TILE, -1, kv_heads, dim).masked_fill(unseen[:, :, None, None], 0.0)
    return found.float().transpose(1, 2).reshape(TILE * kv_heads, -1, dim)
