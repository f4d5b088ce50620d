"""Paged attention on a GPU: which of the kernels a step takes, decided from what the host knows, once a step.

Owns the choice and its preparation (AttentionMetadata.plan, made at a step's first layer). A model takes few variants,
none of which depends on counts or lengths: a tile for decodes and two for chunks, each plain or in segments. Nothing is
read back from the device.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.api import AttentionMetadata, CacheLayer
from kernels.triton import grouped, split
from kernels.triton.attention import Work, launch
from kernels.triton.tiles import PROGRAMS_PER_SM, Tile, chunk_tile, decode_tile, device_of, power_of_two


@dataclass(frozen=True)
class Plan:
    """Of a step's layers with one window. partials and lse: the scratch of a step in segments."""

    work: Work
    tile: Tile
    partials: Tensor | None = None
    lse: Tensor | None = None


def paged_attention(
    q: Tensor,
    layer: CacheLayer,
    meta: AttentionMetadata,
    scale: float,
    *,
    window: int | None = None,
    softcap: float | None = None,
) -> Tensor:
    """As kernels.api.paged_attention. With meta.fixed_order there is one tile, in no segments, and no groups: a row's
    sums have the same order whatever the batch."""
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    if not out.numel() or not len(meta.seq_lens):
        return out.zero_()
    if q.stride(-1) != 1:
        q = q.contiguous()
    if meta.plan is None:
        meta.plan = {}
    if meta.groups is None or window is not None or meta.fixed_order:
        _attend_plain(out, q, layer, meta, scale, window, softcap)
        return out
    step = meta.plan.get("groups")
    if step is None:
        step = meta.plan["groups"] = _group(q, layer, meta)
    grouped.attend(out, q, layer, step, scale, softcap)
    if grouped.CHECK:
        plain = torch.empty_like(out)
        _attend_plain(plain, q, layer, meta, scale, window, softcap)
        grouped.compare(out, plain)
    return out


def _attend_plain(
    out: Tensor,
    q: Tensor,
    layer: CacheLayer,
    meta: AttentionMetadata,
    scale: float,
    window: int | None,
    softcap: float | None,
) -> None:
    plan = meta.plan.get(window)
    if plan is None:
        plan = meta.plan[window] = _plan(q, layer, meta, window)
    if plan.partials is None:
        launch(out, None, q, layer, plan.work, plan.tile, scale, window, softcap)
    else:
        launch(plan.partials, plan.lse, q, layer, plan.work, plan.tile, scale, window, softcap)
        split.merge(out, plan.partials, plan.lse)


def _plan(q: Tensor, layer: CacheLayer, meta: AttentionMetadata, window: int | None) -> Plan:
    work, tile = _work(q, layer, meta)
    wanted = programs_wanted(q.device, layer.k.shape[2])
    length = meta.max_seq_len if window is None else min(meta.max_seq_len, window + meta.max_query_len)
    how = None if meta.fixed_order else split.cut(work.programs, wanted, length)
    if how is None:
        return Plan(work, tile)
    tile_tokens = tile.rows // (q.shape[1] // layer.k.shape[2])
    return Plan(split.plan(work, how, tile_tokens, window), tile, *split.scratch(q, how.slots))


def _group(q: Tensor, layer: CacheLayer, meta: AttentionMetadata) -> grouped.Step:
    groups = meta.groups
    assert groups is not None
    if not isinstance(groups, grouped.DeviceGroups):
        groups = grouped.to_device(groups, meta, layer.k.shape[1])
    kv_heads = layer.k.shape[2]
    group, row_bytes = _shape(q, layer)
    # Room for more groups than there may be says little of their size; a few tenants at once are usual.
    mean_rows = groups.num_members * group // min(4, groups.num_groups)
    prefix_tile = chunk_tile(group, mean_rows, row_bytes, device_of(q.device))
    wanted = programs_wanted(q.device, kv_heads)
    return grouped.prepare(q, groups, meta, *_work(q, layer, meta), prefix_tile, kv_heads, wanted)


def _work(q: Tensor, layer: CacheLayer, meta: AttentionMetadata) -> tuple[Work, Tile]:
    group, row_bytes = _shape(q, layer)
    num_rows, num_seqs = q.shape[0], len(meta.seq_lens)
    device = device_of(q.device)
    tile = decode_tile(group, row_bytes, device)
    if meta.max_query_len * group > tile.rows and not meta.fixed_order:
        tile = chunk_tile(group, num_rows * group // num_seqs, row_bytes, device)
    # One more, which clears the rows behind the last sequence.
    programs = num_rows // (tile.rows // group) + num_seqs + 1
    return Work(meta.block_tables, meta.query_starts, meta.seq_lens, num_seqs, programs), tile


def _shape(q: Tensor, layer: CacheLayer) -> tuple[int, int]:
    """(query heads of a KV head, bytes of a key of one head as the products take it)."""
    return q.shape[1] // layer.k.shape[2], power_of_two(q.shape[2]) * q.element_size()


def programs_wanted(device: torch.device, kv_heads: int) -> int:
    """Programs of each KV head that fill the device."""
    return -(-PROGRAMS_PER_SM * device_of(device).multiprocessors // kv_heads)


def warm_up(
    num_heads: int,
    layer: CacheLayer,
    dtype: torch.dtype,
    *,
    windows: Iterable[int | None] = (None,),
    softcap: float | None = None,
    row_stride: int | None = None,
) -> None:
    """Compile every variant that steps of this shape can take; after it, none compiles anything.

    row_stride: of q's rows, where they are slices of a wider tensor. Launches on sequences of length 0: nothing of the
    cache is read.
    """
    kv_heads, dim = layer.k.shape[2:]
    device = layer.k.device
    group = num_heads // kv_heads
    wide = torch.zeros(2, row_stride or num_heads * dim, dtype=dtype, device=device)
    q = wide[:, : num_heads * dim].view(2, num_heads, dim)
    out = torch.empty_like(q, memory_format=torch.contiguous_format)
    zeros = torch.zeros(3, dtype=torch.int32, device=device)
    works = [Work(zeros.view(1, 3), zeros, zeros, 2, 1)]
    row_bytes = _shape(q, layer)[1]
    chunks = [chunk_tile(group, rows, row_bytes, device_of(device)) for rows in (0, 1 << 20)]
    for tile in dict.fromkeys([decode_tile(group, row_bytes, device_of(device)), *chunks]):
        for window in windows:
            launch(out, None, q, layer, works[0], tile, 1.0, window, softcap)
            works_in_segments = [split.plan(works[0], split.UNCUT, tile.rows // group, window)]
            if window is None and tile.peel:
                prefixes = Work(zeros.view(1, 3), zeros, zeros, 2, 1, rows=zeros)
                works_in_segments.append(split.plan(prefixes, split.UNCUT, tile.rows // group, None))
            partials, lse = split.scratch(q, split.UNCUT.slots)
            for work in works_in_segments:
                launch(partials, lse, q, layer, work, tile, 1.0, window, softcap)
            split.merge(out, partials, lse)
