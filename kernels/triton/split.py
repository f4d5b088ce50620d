# mypy: allow-untyped-defs
"""Attention cut along the context: which sequence in how many segments, and how their results become one.

For steps of few sequences with long contexts, which alone would leave multiprocessors idle (Flash-Decoding; FlashInfer,
arXiv 2501.01005, section 3.3, balances alike). The plan is made on the device, from the sequences' true lengths: all
segments are about as long as all work divided by the programs wanted, so one long context beside many short ones keeps
nobody waiting, no length is read back, and a captured graph plans anew whenever it is replayed.

Partial results are normalised, float32, with the base-2 logarithm of their sum of weights (LSE); one that saw nothing
has the LSE -inf, and what is stored for it is not read.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.triton.attention import Work
from kernels.triton.tiles import MAX_SEGMENTS, MIN_SEGMENT

SLOTS_AT_ONCE = 8
SEQS_AT_ONCE = 256


@triton.jit
def spans(
    query_starts_ptr, seq_lens_ptr, begins_ptr, seqs, num_seqs, window, tile_tokens,
    WINDOW: tl.constexpr, PREFIX: tl.constexpr,
):  # fmt: skip
    """(tiles of query rows, tokens that they look at) of these sequences, zeros behind the last."""
    mask = seqs < num_seqs
    count = tl.load(query_starts_ptr + seqs + 1, mask=mask, other=0)
    count -= tl.load(query_starts_ptr + seqs, mask=mask, other=0)
    span = tl.load(seq_lens_ptr + seqs, mask=mask, other=0)
    if not PREFIX:
        begin = tl.load(begins_ptr + seqs, mask=mask, other=0)
        if WINDOW:
            begin = tl.maximum(begin, span - count - window + 1)
        span -= begin
    return (count + tile_tokens - 1) // tile_tokens, tl.maximum(span, 0)


PLAN_ARGUMENTS = ["firsts_ptr", "query_starts_ptr", "seq_lens_ptr", "begins_ptr"]
PLAN_COUNTS = ["num_seqs", "programs", "slots", "window", "tile_tokens"]


@triton.jit(do_not_specialize=PLAN_ARGUMENTS + PLAN_COUNTS)
def plan_kernel(
    firsts_ptr, query_starts_ptr, seq_lens_ptr, begins_ptr, num_seqs, programs, slots, window, tile_tokens,
    LEAST: tl.constexpr, WINDOW: tl.constexpr, PREFIX: tl.constexpr, AT_ONCE: tl.constexpr,
):  # fmt: skip
    """firsts: the programs before each sequence's; one program does it. A sequence of nothing to see has none.

    With segments of length L = all tiles' tokens / programs, the programs are at most `programs` more than the tiles.
    """
    lanes = tl.arange(0, AT_ONCE)
    work = tl.zeros([AT_ONCE], tl.int64)
    for start in range(0, num_seqs, AT_ONCE):
        tiles, span = spans(
            query_starts_ptr, seq_lens_ptr, begins_ptr, start + lanes, num_seqs, window, tile_tokens, WINDOW, PREFIX
        )
        work += tiles.to(tl.int64) * span
    size = tl.maximum((tl.sum(work, axis=0) + programs - 1) // programs, LEAST)
    planned = tl.full([], 0, tl.int32)
    for start in range(0, num_seqs, AT_ONCE):
        tiles, span = spans(
            query_starts_ptr, seq_lens_ptr, begins_ptr, start + lanes, num_seqs, window, tile_tokens, WINDOW, PREFIX
        )
        items = tiles * tl.minimum((span + size - 1) // size, slots).to(tl.int32)
        before = planned + tl.cumsum(items, axis=0) - items
        tl.store(firsts_ptr + start + lanes, before, mask=start + lanes < num_seqs)
        planned += tl.sum(items, axis=0)
    tl.store(firsts_ptr + num_seqs, planned)


@triton.jit(do_not_specialize=["num_slots", "partial_row", "partial_head", "lse_row", "lse_head", "lse_slot"])
def merge_kernel(
    out_ptr, partial_ptr, lse_ptr, num_slots,
    out_row, out_head, partial_row, partial_head, partial_slot, lse_row, lse_head, lse_slot,
    DIM: tl.constexpr, DIM_PADDED: tl.constexpr, MAX_SLOTS: tl.constexpr, AT_ONCE: tl.constexpr,
):  # fmt: skip
    """One row and head: the mean of its partial results, weighted by their sums of weights; zeros if all are empty."""
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    dims = tl.arange(0, DIM_PADDED)
    lse_ptr += row * lse_row + head * lse_head
    partial_ptr += row * partial_row + head * partial_head
    all_slots = tl.arange(0, MAX_SLOTS)
    best = tl.max(tl.load(lse_ptr + all_slots * lse_slot, mask=all_slots < num_slots, other=float("-inf")), axis=0)
    best = tl.where(best == float("-inf"), 0.0, best)
    acc = tl.zeros([DIM_PADDED], tl.float32)
    total = tl.zeros([AT_ONCE], tl.float32)
    for start in range(0, num_slots, AT_ONCE):
        slots = start + tl.arange(0, AT_ONCE)
        lse = tl.load(lse_ptr + slots * lse_slot, mask=slots < num_slots, other=float("-inf"))
        weight = tl.exp2(lse - best)
        mask = (lse > float("-inf"))[:, None] & (dims < DIM)[None, :]
        partial = tl.load(partial_ptr + slots[:, None] * partial_slot + dims[None, :], mask=mask, other=0.0)
        acc += tl.sum(weight[:, None] * partial, axis=0)
        total += weight
    total = tl.sum(total, axis=0)
    acc = acc / tl.where(total == 0.0, 1.0, total)
    tl.store(out_ptr + row * out_row + head * out_head + dims, acc.to(out_ptr.dtype.element_ty), mask=dims < DIM)


def merge(out: Tensor, partials: Tensor, lse: Tensor) -> None:
    """out [T, num_heads, head_dim] from partials float32 [T, num_heads, slots, head_dim] and lse [T, num_heads, slots].

    All may be strided, but head_dim of out and partials. At most 2 * MAX_SEGMENTS slots.
    """
    num_rows, heads, slots, dim = partials.shape
    merge_kernel[(num_rows, heads)](
        out,
        partials,
        lse,
        slots,
        *out.stride()[:2],
        *partials.stride()[:3],
        *lse.stride(),
        DIM=dim,
        DIM_PADDED=triton.next_power_of_2(dim),
        MAX_SLOTS=2 * MAX_SEGMENTS,
        AT_ONCE=SLOTS_AT_ONCE,
        num_warps=2,
    )


@dataclass(frozen=True)
class Cut:
    """How far a step is to be cut: into about so many programs for each KV head, a row into at most so many slots.

    slots: a multiple of 4, so that strides stay multiples of 16, and a kernel compiled for that stays the right one.
    """

    programs: int
    slots: int


UNCUT = Cut(1, 4)


def cut(tiles: int, wanted: int, max_length: int) -> Cut | None:
    """None where a bound of `tiles` programs for each KV head is enough already, or the contexts are short.

    From numbers that the host knows; `wanted` is what kernels.triton.tiles says of the device. Segments of one row may
    be four times as many as they are on the average, before a sequence far longer than the others is cut less finely.
    """
    longest = -(-max_length // MIN_SEGMENT)
    if tiles >= wanted or longest < 2:
        return None
    slots = min(MAX_SEGMENTS, longest, max(4, 4 * wanted // tiles))
    return Cut(wanted, -(-slots // 4) * 4)


def scratch(q: Tensor, slots: int) -> tuple[Tensor, Tensor]:
    """Partial results and LSE for a step's rows. The slots that no segment fills stay empty through all its layers."""
    num_rows, heads, dim = q.shape
    partials = torch.empty(num_rows, heads, slots, dim, dtype=torch.float32, device=q.device)
    return partials, torch.full((num_rows, heads, slots), float("-inf"), dtype=torch.float32, device=q.device)


def plan(work: Work, how: Cut, tile_tokens: int, window: int | None, begins: Tensor | None = None) -> Work:
    """The same work in segments. begins: tokens at each sequence's beginning that are left out, int32 [num_seqs]."""
    prefix = work.rows is not None
    device = work.seq_lens.device
    firsts = torch.empty(work.num_seqs + 1, dtype=torch.int32, device=device)
    if begins is None and not prefix:
        begins = torch.zeros(work.num_seqs, dtype=torch.int32, device=device)
    plan_kernel[(1,)](
        firsts,
        work.query_starts,
        work.seq_lens,
        work.seq_lens if begins is None else begins,
        work.num_seqs,
        how.programs,
        how.slots,
        window or 0,
        tile_tokens,
        LEAST=MIN_SEGMENT,
        WINDOW=window is not None,
        PREFIX=prefix,
        AT_ONCE=SEQS_AT_ONCE,
    )
    programs = work.programs + how.programs
    return Work(work.tables, work.query_starts, work.seq_lens, work.num_seqs, programs, firsts, begins, work.rows)
