# mypy: allow-untyped-defs
"""One attention kernel for every step: prompt chunks, decodes and shared prefixes, over a paged cache.

Owns the kernel and its launch. A program takes one KV head and one tile: some query rows of one sequence, each with all
the heads that read this KV head, so that a key is read once for all of them (GQA, arXiv 2305.13245). It walks over the
context with an online softmax (arXiv 1805.02867) in base 2 and looks every token's block up, so its tile does not
depend on the block size. Loads behind a sequence's end, behind a causal limit of all rows or before their windows are
masked or never reached, and values not seen are zeros: what lies there, NaN included, is not used.

A step's grid is bounded by what the host knows. Program i finds its sequence by binary search: the last one whose first
program is not above i. Without segments, sequence s of S has query_starts[s] // Q + s as its first program, where Q is
a tile's query tokens; since floor(b / Q) - floor(a / Q) + 1 >= ceil((b - a) / Q), its programs are enough for its rows,
and tokens // Q + S + 1 are enough for all. With segments (kernels.triton.split) the first programs are listed. It does
not know how partial results are put together, nor which sequences share a prefix.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from kernels.api import CacheLayer
from kernels.triton.quantised import cached, decode
from kernels.triton.tiles import Tile, power_of_two

INTERPRETED = tl.constexpr(bool(triton.knobs.runtime.interpret))
LOG2_E = 1.4426950408889634


@triton.jit
def product(a, b, PRECISION: tl.constexpr):
    """a @ b in float32."""
    if INTERPRETED:  # whose products of bfloat16 multiply bit patterns
        a = a.to(tl.float32)
        b = b.to(tl.float32)
    return tl.dot(a, b, input_precision=PRECISION)


@triton.jit
def find_sequence(firsts_ptr, program, num_seqs, TILE_TOKENS: tl.constexpr, SEGMENTS: tl.constexpr):
    """(the last sequence whose first program is not above `program`, that first program); num_seqs: behind them all."""
    low = tl.full([], 0, tl.int32)
    high = low + num_seqs
    while low < high:
        middle = (low + high + 1) // 2
        first = tl.load(firsts_ptr + middle)
        if not SEGMENTS:
            first = first // TILE_TOKENS + middle
        low = tl.where(first <= program, middle, low)
        high = tl.where(first <= program, high, middle - 1)
    first = tl.load(firsts_ptr + low)
    if not SEGMENTS:
        first = first // TILE_TOKENS + low
    return low, first


@triton.jit
def load_cached(
    ptr, scale_ptr, places, scale_places, dims, seen, dtype: tl.constexpr,
    DIM: tl.constexpr, DIM_PADDED: tl.constexpr, MASKED: tl.constexpr, QUANTISED: tl.constexpr,
):  # fmt: skip
    """(keys or values [tokens, dims] in dtype, their scales [tokens]); MASKED: zeros where a token is not seen.

    A scale belongs to a token and head, so it multiplies a column of scores, or a weight, instead of the values; eight
    bits are exact in any dtype.
    """
    pointers = ptr + places[:, None] + dims[None, :]
    if MASKED:
        mask = seen[:, None]
        if DIM != DIM_PADDED:
            mask = mask & (dims < DIM)[None, :]
        values = tl.load(pointers, mask=mask, other=0)
    elif DIM != DIM_PADDED:
        values = tl.load(pointers, mask=(dims < DIM)[None, :], other=0)
    else:
        values = tl.load(pointers)
    scales = seen
    if QUANTISED:
        values = decode(values)
        scales = tl.load(scale_ptr + scale_places, mask=seen, other=0.0)
    return values.to(dtype), scales


@triton.jit
def walk(
    acc, best, total, q, low, high, first, limit, positions,
    table_ptr, k_ptr, v_ptr, k_scale_ptr, v_scale_ptr,
    block_stride, token_stride, scale_block, scale_token,
    scale, softcap, window,
    MASKED: tl.constexpr, CAUSAL: tl.constexpr, WINDOW: tl.constexpr, SOFTCAP: tl.constexpr, QUANTISED: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, DIM: tl.constexpr, DIM_PADDED: tl.constexpr, TOKENS: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Attend to the tokens low .. high of the context that lie in first .. limit, in steps of TOKENS.

    acc, best, total: sum of weighted values, largest score and sum of weights of each row so far, relative to `best`.
    """
    dims = tl.arange(0, DIM_PADDED)
    for start in range(low, high, TOKENS):
        tokens = start + tl.arange(0, TOKENS)
        seen = (tokens >= first) & (tokens < limit)
        if MASKED:
            block = tl.load(table_ptr + tokens // BLOCK_SIZE, mask=seen, other=0).to(tl.int64)
        else:
            block = tl.load(table_ptr + tokens // BLOCK_SIZE).to(tl.int64)
        offset = tokens % BLOCK_SIZE
        scale_places = block * scale_block + offset * scale_token
        places = block * block_stride + offset * token_stride
        k, k_scales = load_cached(
            k_ptr, k_scale_ptr, places, scale_places, dims, seen, q.dtype, DIM, DIM_PADDED, MASKED, QUANTISED
        )
        scores = product(q, tl.trans(k), PRECISION)
        if QUANTISED:
            scores *= k_scales[None, :]
        scores *= scale
        if SOFTCAP:
            # tanh by an exponential that may overflow to infinity or vanish: both give the right limit.
            scores = softcap - 2.0 * softcap / (tl.exp2(scores) + 1.0)
        if MASKED:
            visible = seen[None, :]
            if CAUSAL:
                visible = visible & (tokens[None, :] <= positions[:, None])
            if WINDOW:
                visible = visible & (tokens[None, :] > positions[:, None] - window)
            scores = tl.where(visible, scores, float("-inf"))
        better = tl.maximum(best, tl.max(scores, axis=1))
        # A row that has seen nothing yet: -inf minus -inf would be NaN.
        base = tl.where(better == float("-inf"), 0.0, better)
        weights = tl.exp2(scores - base[:, None])
        fade = tl.exp2(best - base)
        total = total * fade + tl.sum(weights, axis=1)
        best = better
        v, v_scales = load_cached(
            v_ptr, v_scale_ptr, places, scale_places, dims, seen, q.dtype, DIM, DIM_PADDED, MASKED, QUANTISED
        )
        if QUANTISED:
            weights *= v_scales[None, :]
        acc = acc * fade[:, None] + product(weights.to(q.dtype), v, PRECISION)
    return acc, best, total


STEP_ARGUMENTS = ["firsts_ptr", "tables_ptr", "query_starts_ptr", "seq_lens_ptr", "begins_ptr", "rows_ptr"]
COUNTS = ["num_seqs", "num_rows", "table_row", "window", "lse_row", "lse_head", "lse_slot"]


# What changes from step to step is not specialised on: neither counts nor where a step's arrays begin in their buffers.
@triton.jit(do_not_specialize=COUNTS + STEP_ARGUMENTS)
def attend_kernel(
    out_ptr, lse_ptr, q_ptr, k_ptr, v_ptr, k_scale_ptr, v_scale_ptr,
    firsts_ptr, tables_ptr, query_starts_ptr, seq_lens_ptr, begins_ptr, rows_ptr,
    num_seqs, num_rows, table_row, window, scale, softcap,
    q_row, q_head, out_row, out_head, out_slot, lse_row, lse_head, lse_slot,
    block_stride, token_stride, head_stride, scale_block, scale_token, scale_head,
    KV_HEADS: tl.constexpr, GROUP: tl.constexpr, DIM: tl.constexpr, DIM_PADDED: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, ROWS: tl.constexpr, TOKENS: tl.constexpr, PEEL: tl.constexpr,
    WINDOW: tl.constexpr, SOFTCAP: tl.constexpr, QUANTISED: tl.constexpr,
    SEGMENTS: tl.constexpr, PREFIX: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """See `launch`. SEGMENTS: programs are listed and write partial results; else they write the step's output.

    PREFIX (with segments): a "sequence" is a group, its rows are those that rows_ptr names, and each of them sees all
    of its seq_lens tokens. begins_ptr: tokens at each sequence's beginning that are left out (with segments only).
    """
    tile_tokens: tl.constexpr = ROWS // GROUP
    program = tl.program_id(0) // KV_HEADS
    head = tl.program_id(0) % KV_HEADS
    # The last rows of a chunk have most to do: first things first, and the short programs fill the gaps at the end.
    program = tl.num_programs(0) // KV_HEADS - 1 - program
    seq, first_program = find_sequence(firsts_ptr, program, num_seqs, tile_tokens, SEGMENTS)
    item = program - first_program
    begin_row = tl.load(query_starts_ptr + seq)

    lanes = tl.arange(0, ROWS)
    dims = tl.arange(0, DIM_PADDED)
    heads = head * GROUP + lanes % GROUP
    if seq == num_seqs:  # behind the last sequence: rows of padding, which the first such program clears
        if item == 0 and not SEGMENTS:
            for start in range(begin_row, num_rows, tile_tokens):
                rows = start + lanes // GROUP
                mask = (lanes < tile_tokens * GROUP) & (rows < num_rows)
                places = rows.to(tl.int64) * out_row + heads * out_head
                nothing = tl.zeros([ROWS, DIM_PADDED], out_ptr.dtype.element_ty)
                tl.store(out_ptr + places[:, None] + dims[None, :], nothing, mask=mask[:, None] & (dims < DIM)[None, :])
        return

    count = tl.load(query_starts_ptr + seq + 1) - begin_row
    length = tl.load(seq_lens_ptr + seq)
    tiles = (count + tile_tokens - 1) // tile_tokens
    tile = item
    segment = 0
    begin = 0
    end = length
    if SEGMENTS:
        # A tile's segments are neighbours; each sequence is cut into equal ones.
        segments = (tl.load(firsts_ptr + seq + 1) - first_program) // tiles
        tile = item // segments
        segment = item % segments
        if not PREFIX:
            begin = tl.load(begins_ptr + seq)
            if WINDOW:
                begin = tl.maximum(begin, length - count - window + 1)
        size = ((length - begin + segments - 1) // segments + TOKENS - 1) // TOKENS * TOKENS
        begin += segment * size
        end = tl.minimum(begin + size, length)
    if tile >= tiles:
        return

    index = tile * tile_tokens + lanes // GROUP
    live = (lanes < tile_tokens * GROUP) & (index < count)
    rows = begin_row + index
    if PREFIX:
        rows = tl.load(rows_ptr + rows, mask=live, other=0)
    live_dims = live[:, None] & (dims < DIM)[None, :]
    q_places = rows.to(tl.int64) * q_row + heads * q_head
    q = tl.load(q_ptr + q_places[:, None] + dims[None, :], mask=live_dims, other=0.0)
    if not QUANTISED:
        q = q.to(k_ptr.dtype.element_ty)

    positions = length - count + index
    first = begin
    limit = end
    full = end
    if not PREFIX:
        lowest = length - count + tile * tile_tokens
        limit = tl.minimum(end, tl.minimum(lowest + tile_tokens, length))
        full = tl.minimum(end, lowest + 1)
        if WINDOW:
            first = tl.maximum(begin, lowest - window + 1)
    # Tiles lie at multiples of TOKENS from `begin`, whatever the other rows of this program see.
    low = begin + (first - begin) // TOKENS * TOKENS

    acc = tl.zeros([ROWS, DIM_PADDED], tl.float32)
    best = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    table_ptr = tables_ptr + seq.to(tl.int64) * table_row
    k_ptr += head * head_stride
    v_ptr += head * head_stride
    k_scale_ptr += head * scale_head
    v_scale_ptr += head * scale_head
    if PEEL and not WINDOW:
        full = low + tl.maximum(full - low, 0) // TOKENS * TOKENS
        acc, best, total = walk(
            acc, best, total, q, low, full, first, limit, positions,
            table_ptr, k_ptr, v_ptr, k_scale_ptr, v_scale_ptr,
            block_stride, token_stride, scale_block, scale_token, scale, softcap, window,
            False, not PREFIX, False, SOFTCAP, QUANTISED, BLOCK_SIZE, DIM, DIM_PADDED, TOKENS, PRECISION,
        )  # fmt: skip
        low = full
    acc, best, total = walk(
        acc, best, total, q, low, limit, first, limit, positions,
        table_ptr, k_ptr, v_ptr, k_scale_ptr, v_scale_ptr,
        block_stride, token_stride, scale_block, scale_token, scale, softcap, window,
        True, not PREFIX, WINDOW, SOFTCAP, QUANTISED, BLOCK_SIZE, DIM, DIM_PADDED, TOKENS, PRECISION,
    )  # fmt: skip

    total = tl.where(total == 0.0, 1.0, total)
    acc = acc / total[:, None]
    places = rows.to(tl.int64) * out_row + heads * out_head
    if SEGMENTS:
        places += segment * out_slot
        lse_places = rows.to(tl.int64) * lse_row + heads * lse_head + segment * lse_slot
        tl.store(lse_ptr + lse_places, best + tl.log2(total), mask=live)
    tl.store(out_ptr + places[:, None] + dims[None, :], acc.to(out_ptr.dtype.element_ty), mask=live_dims)


@dataclass(frozen=True)
class Work:
    """What a launch goes over: sequences, or groups, as `attend_kernel` has them. programs: a bound, for each KV head.

    firsts, with segments: the first program of each sequence, and one behind the last; int32 [num_seqs + 1].
    """

    tables: Tensor
    query_starts: Tensor
    seq_lens: Tensor
    num_seqs: int
    programs: int
    firsts: Tensor | None = None
    begins: Tensor | None = None
    rows: Tensor | None = None


def launch(
    out: Tensor,
    lse: Tensor | None,
    q: Tensor,
    layer: CacheLayer,
    work: Work,
    tile: Tile,
    scale: float,
    window: int | None,
    softcap: float | None,
) -> None:
    """Without work.firsts: write every row of out [T, num_heads, head_dim]. With it: partial results of the rows that
    the sequences or groups have, into out float32 [T, num_heads, slots, head_dim] and lse [T, num_heads, slots], the
    base-2 logarithm of the sum of the weights; segment i of a row goes into slot i.
    """
    constants = step_constants(q, layer, tile, work, window, softcap)
    strides = (*out.stride()[:2], 0) if lse is None else out.stride()[:3]
    # Bytes where the device has no instructions for the values' type.
    k, v, k_scale, v_scale, cache_strides = cached(layer)
    scale *= LOG2_E
    if softcap is not None:
        scale, softcap = 2.0 * scale / softcap, softcap * LOG2_E
    starts = work.query_starts
    attend_kernel[(work.programs * layer.k.shape[2],)](
        out,
        out if lse is None else lse,
        q,
        k,
        v,
        k if k_scale is None else k_scale,
        v if v_scale is None else v_scale,
        starts if work.firsts is None else work.firsts,
        work.tables,
        starts,
        work.seq_lens,
        starts if work.begins is None else work.begins,
        starts if work.rows is None else work.rows,
        work.num_seqs,
        q.shape[0],
        work.tables.stride(0),
        window or 0,
        scale,
        softcap or 0.0,
        # The stride of a lone row or head may be anything, and would be another specialisation.
        q.stride(0) if q.shape[0] > 1 else q.shape[1] * q.shape[2],
        q.stride(1) if q.shape[1] > 1 else q.shape[2],
        *strides,
        *((0, 0, 0) if lse is None else lse.stride()),
        *cache_strides,
        **constants,
        **tile.options,
    )


def step_constants(
    q: Tensor, layer: CacheLayer, tile: Tile, work: Work, window: int | None, softcap: float | None
) -> dict[str, Any]:
    """What the kernel is compiled for: the model's shape, the tile, and which of its parts are wanted."""
    block_size, kv_heads, dim = layer.k.shape[1:]
    return {
        "KV_HEADS": kv_heads,
        "GROUP": q.shape[1] // kv_heads,
        "DIM": dim,
        "DIM_PADDED": max(16, power_of_two(dim)),
        "BLOCK_SIZE": block_size,
        "ROWS": tile.rows,
        "TOKENS": tile.tokens,
        "PEEL": tile.peel,
        "WINDOW": window is not None,
        "SOFTCAP": softcap is not None,
        "QUANTISED": layer.k_scale is not None,
        "SEGMENTS": work.firsts is not None,
        "PREFIX": work.rows is not None,
        # Only float32 has a choice: its products are exact, as the other paths' are, and slow.
        "PRECISION": "ieee",
    }
