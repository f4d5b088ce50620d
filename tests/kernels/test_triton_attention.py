"""The GPU's attention gives what the float32 oracle gives, whatever the shapes, and reads nothing it must not.

Through Triton's interpreter, on the CPU, which pretends a device of two multiprocessors: a batch of few long sequences
goes in segments, others do not.
"""

from __future__ import annotations

import mmap
import os
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

os.environ["TRITON_INTERPRET"] = "1"  # before triton is imported

import numpy as np
import pytest
import torch
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.compiler import CUDABackend
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle
from triton.runtime.jit import JITFunction, create_function_from_signature

from kernels import reference
from kernels.api import AttentionMetadata, CacheLayer
from kernels.quantised import quantise
from kernels.triton import attention, grouped, paged, split, tiles
from kernels.triton.paged import paged_attention
from tests.kernels.test_torch_paged import NAN, Case

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning:triton")  # numpy's, of NaN and infinity

CLOSE = {
    torch.float32: {"atol": 2e-5, "rtol": 1e-4},
    torch.float16: {"atol": 5e-3, "rtol": 5e-3},
    torch.bfloat16: {"atol": 2e-2, "rtol": 2e-2},
}


def check(case: Case) -> None:
    q, layer, meta = case.build()
    scale, options = case.dim**-0.5, {"window": case.window, "softcap": case.softcap}
    out = paged_attention(q, layer, meta, scale, **options)
    assert out.shape == q.shape
    assert out.dtype == q.dtype
    assert out.is_contiguous()
    expected = reference.paged_attention(q, layer, meta, scale, **options)
    assert not expected.isnan().any()
    torch.testing.assert_close(out.float(), expected, **CLOSE[case.dtype])


def in_segments(meta: AttentionMetadata, window: int | None = None) -> bool:
    """Whether the step that was just run was cut."""
    return meta.plan[window].partials is not None


@pytest.fixture
def many_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a device that wants many programs, which short segments suit."""
    monkeypatch.setattr(paged, "PROGRAMS_PER_SM", 64)
    monkeypatch.setattr(split, "MIN_SEGMENT", 16)


@pytest.mark.parametrize(("dim", "group"), [(64, 3), (80, 7), (96, 1), (112, 14), (128, 6), (192, 2), (16, 5)])
def test_head_sizes_and_groups_agree_with_the_oracle(dim: int, group: int) -> None:
    """K5; each once, all pairs among the long tests."""
    check(Case([37, 70], [1, 9], dim=dim, group=group))
    check(Case([5, 70], [1, 1], kv_heads=1, dim=dim, group=group))


@pytest.mark.long
@pytest.mark.parametrize("dim", [16, 64, 80, 96, 112, 128, 192])
@pytest.mark.parametrize("group", [1, 2, 3, 5, 6, 7, 14, 20])
def test_all_head_sizes_with_all_groups_agree_with_the_oracle(dim: int, group: int) -> None:
    """K5"""
    check(Case([37, 5, 70, 300], [1, 1, 20, 1], dim=dim, group=group))
    check(Case([37, 5, 70, 300], [1, 1, 1, 1], dim=dim, group=group, dtype=torch.bfloat16))
    check(Case([150, 300], [100, 1], kv_heads=1, dim=dim, group=group, dtype=torch.float16))


@pytest.mark.parametrize("block_size", [8, 16, 24, 32, 100])
def test_block_sizes_agree_with_the_oracle(block_size: int) -> None:
    """K6, with lengths just below, at and just above a block's end."""
    lengths = [block_size - 1, block_size, block_size + 1]
    check(Case(lengths, [1] * 3, kv_heads=1, block_size=block_size))
    check(Case(lengths, [3, 1, block_size], kv_heads=1, block_size=block_size))


def random_case(seed: int, most: int, longest: int) -> Case:
    rng = random.Random(seed)
    lengths = [rng.choice([1, 2, 15, 16, 17, rng.randint(1, longest)]) for _ in range(rng.randint(1, most))]
    return Case(
        lengths,
        [rng.choice([1, 1, min(length, rng.randint(1, 8)), length]) for length in lengths],
        kv_heads=rng.choice([1, 2, 3]),
        group=rng.choice([1, 2, 5, 14]),
        dim=rng.choice([64, 80, 192]),
        block_size=rng.choice([8, 16, 24, 100]),
        seed=seed,
        window=rng.choice([None, None, 1, 5, 16, 33, 100, 1000]),
        softcap=rng.choice([None, None, 0.5, 20.0]),
    )


@pytest.mark.parametrize("seed", range(5))
def test_random_batches_agree_with_the_oracle(seed: int) -> None:
    """K2, K5, K6, K7, K11: mixed query lengths over a poisoned pool; garbage behind each table's end, and before a
    window."""
    check(random_case(seed, most=4, longest=100))


@pytest.mark.long
@pytest.mark.parametrize("seed", range(6, 36))
def test_more_random_batches_agree_with_the_oracle(seed: int) -> None:
    """K2, K5, K6, K7, K11"""
    case = random_case(seed, most=9, longest=300)
    check(replace(case, dtype=[torch.float32, torch.bfloat16, torch.float16][seed % 3]))


@pytest.mark.long
@pytest.mark.parametrize("seed", range(100, 116))
def test_random_batches_in_segments_agree_with_the_oracle(seed: int, many_segments: None) -> None:
    """K2, K3, K7, K11"""
    check(random_case(seed, most=5, longest=200))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_stays_within_its_own_rounding(dtype: torch.dtype) -> None:
    check(Case([100, 33], [20, 1], kv_heads=1, group=2, dtype=dtype))
    check(Case([300, 33], [1, 1], kv_heads=1, dtype=dtype))


@pytest.mark.parametrize("window", [1, 8, 31, 32, 33])
def test_windows_that_end_on_either_side_of_a_block_s_edge_agree_with_the_oracle(window: int) -> None:
    """K2, K6"""
    for queries in (1, 12):
        check(Case([48, 63, 65], [queries] * 3, kv_heads=1, group=2, window=window))


def test_query_lengths_one_to_eight_and_a_long_prefill_share_a_batch() -> None:
    """K11"""
    check(Case([20 + n for n in range(1, 9)] + [100], [*range(1, 9), 70], kv_heads=1, group=2))


def test_a_long_context_is_cut_and_a_short_one_is_not() -> None:
    for lengths, cut in (([300, 5, 70], True), ([100, 5, 70], False)):
        q, layer, meta = Case(lengths, [1, 1, 1], kv_heads=1).build()
        out = paged_attention(q, layer, meta, 0.125)
        assert in_segments(meta) == cut
        torch.testing.assert_close(out, reference.paged_attention(q, layer, meta, 0.125), **CLOSE[torch.float32])


@pytest.mark.parametrize(("programs", "slots"), [(1, 4), (5, 4), (24, 16)])
@pytest.mark.parametrize("window", [None, 40])
def test_other_numbers_of_segments_give_the_same(
    window: int | None, programs: int, slots: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """K13; K3: a causal limit or a window leaves segments of some tiles empty."""
    case = Case([150, 5, 60], [1, 1, 40], kv_heads=1, group=2, window=window)
    q, layer, meta = case.build()
    expected = reference.paged_attention(q, layer, meta, 0.125, window=window)
    monkeypatch.setattr(split, "MIN_SEGMENT", 16)
    monkeypatch.setattr(split, "cut", lambda *_: split.Cut(programs, slots))
    out = paged_attention(q, layer, meta, 0.125, window=window)
    assert in_segments(meta, window)
    torch.testing.assert_close(out, expected, **CLOSE[torch.float32])
    assert torch.equal(out.argmax(dim=-1), expected.argmax(dim=-1))


@pytest.mark.parametrize("seed", range(5))
def test_a_plan_has_room_for_all_rows_and_no_more_programs_than_it_may(seed: int) -> None:
    rng = random.Random(seed)
    lengths = [rng.choice([0, 1, rng.randint(1, 5000)]) for _ in range(rng.choice([1, 3, 300]))]
    queries = [min(length, rng.choice([1, 1, 5, 700])) for length in lengths]
    begins = [rng.choice([0, length // 2, length]) for length in lengths]
    tile_tokens, wanted, slots = rng.choice([(5, 8, 4), (16, 100, 32)])
    work = attention.Work(
        torch.zeros(len(lengths), 1, dtype=torch.int32),
        torch.tensor([0, *queries]).cumsum(0).int(),
        torch.tensor(lengths, dtype=torch.int32),
        len(lengths),
        sum(queries) // tile_tokens + len(lengths),
    )
    begun = torch.tensor(begins, dtype=torch.int32)
    planned = split.plan(work, split.Cut(wanted, slots), tile_tokens, None, begun)
    assert planned.firsts is not None
    items = planned.firsts.diff().tolist()
    assert planned.firsts[0] == 0
    assert sum(items) <= planned.programs
    for count, length, query, begin in zip(items, lengths, queries, begins, strict=True):
        tiled = -(-query // tile_tokens)
        assert count % max(1, tiled) == 0
        assert (count > 0) == (tiled > 0 and length > begin)
        assert count <= tiled * slots


@pytest.mark.parametrize("softcap", [1.0, 50.0])
def test_a_softcap_bounds_huge_scores(softcap: float) -> None:
    """K9"""
    for dtype in (torch.float32, torch.bfloat16):
        q, layer, meta = Case([40, 33], [1, 20], kv_heads=1, dtype=dtype).build()
        out = paged_attention(q * 1e18, layer, meta, 1e18, softcap=softcap)
        expected = reference.paged_attention(q * 1e18, layer, meta, 1e18, softcap=softcap)
        torch.testing.assert_close(out.float(), expected, atol=2e-2, rtol=2e-2)


def test_huge_scores_give_no_nan() -> None:
    q, layer, meta = Case([40, 33], [1, 20]).build()
    out = paged_attention(q * 1e4, layer, meta, 1.0)
    torch.testing.assert_close(out, reference.paged_attention(q * 1e4, layer, meta, 1.0), **CLOSE[torch.float32])


def padded(meta: AttentionMetadata, live: int, rows: int) -> AttentionMetadata:
    """`rows` sequences of one row each, of which the first `live` are those of meta, as a captured batch has them."""
    more = rows - live
    return replace(
        meta,
        slot_mapping=torch.cat([meta.slot_mapping, torch.full((more,), -1)]),
        block_tables=torch.cat([meta.block_tables, torch.full((more, meta.block_tables.shape[1]), -7).int()]),
        query_starts=torch.arange(rows + 1, dtype=torch.int32),
        seq_lens=torch.cat([meta.seq_lens, torch.zeros(more, dtype=torch.int32)]),
        plan=None,
    )


@pytest.mark.parametrize("lengths", [[40, 7], [300, 7]])
def test_sequences_of_length_zero_and_padded_rows_come_out_as_zeros(lengths: list[int]) -> None:
    """K4, K8: a captured batch with fewer live rows; the padded sequences have length 0, their rows slot -1."""
    q, layer, meta = Case(lengths, [1, 1], kv_heads=1).build()
    expected = reference.paged_attention(q, layer, meta, 0.125)
    step = padded(meta, 2, 5)
    out = paged_attention(torch.cat([q, torch.full((3, *q.shape[1:]), NAN)]), layer, step, 0.125)
    assert in_segments(step) == (lengths[0] == 300)
    torch.testing.assert_close(out[:2], expected, **CLOSE[torch.float32])
    assert (out[2:] == 0).all()


@pytest.mark.parametrize(("lengths", "queries"), [([40, 30], [1, 6]), ([300, 9], [1, 1]), ([70, 30], [30, 1])])
def test_rows_behind_the_last_sequence_come_out_as_zeros(lengths: list[int], queries: list[int]) -> None:
    q, layer, meta = Case(lengths, queries, kv_heads=1).build()
    out = paged_attention(torch.cat([q, torch.full((13, *q.shape[1:]), NAN)]), layer, meta, 0.125)
    live = len(q)
    torch.testing.assert_close(out[:live], reference.paged_attention(q, layer, meta, 0.125), **CLOSE[torch.float32])
    assert (out[live:] == 0).all()


def test_a_step_of_padding_only_comes_out_as_zeros() -> None:
    q = torch.full((2, 4, 32), NAN)
    kv = torch.full((1, 16, 2, 32), NAN)
    meta = AttentionMetadata(
        slot_mapping=torch.tensor([-1, -1]),
        block_tables=torch.zeros(2, 0, dtype=torch.int32),
        query_starts=torch.tensor([0, 1, 2], dtype=torch.int32),
        seq_lens=torch.zeros(2, dtype=torch.int32),
        max_query_len=1,
        max_seq_len=0,
    )
    assert (paged_attention(q, CacheLayer(kv, kv), meta, 1.0) == 0).all()
    assert paged_attention(q[:0], CacheLayer(kv, kv), replace(meta, plan=None), 1.0).shape == (0, 4, 32)


@pytest.mark.parametrize("queries", [[1, 1], [1, 20]])
def test_rows_of_q_and_of_the_output_may_be_strided(queries: list[int]) -> None:
    """K12: q is a slice of the fused projection."""
    q, layer, meta = Case([40, 33], queries, dtype=torch.bfloat16).build()
    fused = torch.full((q.shape[0], q.shape[1] + 4, q.shape[2]), NAN, dtype=q.dtype)
    fused[:, : q.shape[1]] = q
    strided = fused[:, : q.shape[1]]
    expected = paged_attention(q, layer, replace(meta, plan=None), 0.125)
    assert torch.equal(paged_attention(strided, layer, meta, 0.125), expected)
    wide = torch.full((q.shape[0], q.shape[1] + 4, q.shape[2]), 7.0, dtype=q.dtype)
    plan = meta.plan[None]
    attention.launch(wide[:, 2:-2], None, q, layer, plan.work, plan.tile, 0.125, None, None)
    assert torch.equal(wide[:, 2:-2], expected)
    assert (wide[:, :2] == 7.0).all()
    assert (wide[:, -2:] == 7.0).all()


def test_one_step_serves_layers_with_and_without_a_window() -> None:
    q, layer, meta = Case([300, 7, 133], [1, 1, 1], kv_heads=1).build()
    for window in (None, 16, None, 200, 16):
        expected = reference.paged_attention(q, layer, meta, 0.125, window=window)
        out = paged_attention(q, layer, meta, 0.125, window=window)
        torch.testing.assert_close(out, expected, **CLOSE[torch.float32])


@pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e4m3fn])
@pytest.mark.parametrize("queries", [[1, 1], [9, 1]])
def test_a_cache_of_eight_bits_agrees_with_the_oracle_that_multiplies_its_scales(
    dtype: torch.dtype, queries: list[int]
) -> None:
    q, layer, meta = Case([270, 33], queries, dim=80, dtype=torch.bfloat16).build()
    k, k_scale = quantise(layer.k.float().nan_to_num() * torch.rand(layer.k.shape[:3])[..., None] * 5, dtype)
    v, v_scale = quantise(layer.v.float().nan_to_num(), dtype)
    # Unwritten places hold the largest values, whose scale is NaN.
    unwritten = layer.k[..., 0].isnan()
    for scales in (k_scale, v_scale):
        scales[unwritten] = NAN
    # In memory a head's tokens lie next to each other.
    k_scale, v_scale = (x.transpose(1, 2).contiguous().transpose(1, 2) for x in (k_scale, v_scale))
    quantised = CacheLayer(k, v, k_scale, v_scale)
    out = paged_attention(q, quantised, meta, 0.1)
    expected = reference.paged_attention(q, quantised, meta, 0.1)
    torch.testing.assert_close(out.float(), expected, **CLOSE[torch.bfloat16])


def test_a_block_id_times_stride_beyond_two_to_the_31_is_addressed_right() -> None:
    """K1: a strided view whose blocks lie 2 ** 28 elements apart in an untouched mapping; nine of them pass 2 ** 31."""
    blocks, block_size, heads, dim = 12, 16, 2, 32
    stride = 2**28
    no_reserve = 0x4000  # MAP_NORESERVE, which Python 3.11 does not name
    with mmap.mmap(-1, blocks * stride * 4, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | no_reserve) as memory:
        flat = torch.frombuffer(memory, dtype=torch.float32)
        shape, strides = (blocks, block_size, heads, dim), (stride, heads * dim, dim, 1)
        far = CacheLayer(flat.as_strided(shape, strides), flat.as_strided(shape, strides, 2**20))
        near = CacheLayer(torch.zeros(shape), torch.zeros(shape))
        slots = torch.tensor([11 * 16 + i for i in range(16)] + [9 * 16 + i for i in range(16)] + [32, 33])
        kv = torch.randn(2, 34, heads, dim)
        meta = AttentionMetadata(
            slot_mapping=slots,
            block_tables=torch.tensor([[11, 9, 2]], dtype=torch.int32),
            query_starts=torch.tensor([0, 34], dtype=torch.int32),
            seq_lens=torch.tensor([34], dtype=torch.int32),
            max_query_len=34,
            max_seq_len=34,
        )
        for layer in (far, near):
            reference.write_kv(kv[0], kv[1], layer, slots)
        q = torch.randn(34, 4, dim)
        out = paged_attention(q, far, meta, 0.2)
        torch.testing.assert_close(out, reference.paged_attention(q, near, meta, 0.2), **CLOSE[torch.float32])
        del far, layer, flat


# --- merging ---------------------------------------------------------------------------------------------------------


def merged(partials: Tensor, lse: Tensor) -> Tensor:
    """By the definition, in float64; rows of nothing but -inf come out as zeros."""
    weights = torch.exp2(lse.double() - lse.double().amax(dim=-1, keepdim=True)).nan_to_num(0.0)
    total = weights.sum(dim=-1, keepdim=True)
    weights = torch.where(total > 0, weights / total, 0.0)
    return torch.einsum("rhs,rhsd->rhd", weights, partials.double().nan_to_num(0.0)).float()


@pytest.mark.parametrize("slots", [2, 9, 40])
def test_a_merge_reads_a_transposed_lse(slots: int) -> None:
    """K10, K3: some sides are empty, and what is stored for them is NaN."""
    torch.manual_seed(0)
    partials, lse = torch.randn(5, 3, slots, 48), torch.randn(5, 3, slots) * 8
    empty = torch.rand(5, 3, slots) < 0.4
    lse[empty], partials[empty] = float("-inf"), NAN
    expected = merged(partials, lse)
    for order in ((0, 1, 2), (2, 1, 0), (1, 2, 0)):
        inverse = tuple(np.argsort(order).tolist())
        out = torch.empty(5, 3, 48)
        split.merge(out, partials, lse.permute(order).contiguous().permute(inverse))
        torch.testing.assert_close(out, expected, **CLOSE[torch.float32])


def test_a_merge_of_empty_sides_is_zero() -> None:
    """K4"""
    out = torch.full((2, 3, 16), NAN)
    split.merge(out, torch.full((2, 3, 4, 16), NAN), torch.full((2, 3, 4), float("-inf")))
    assert (out == 0).all()


# --- groups ----------------------------------------------------------------------------------------------------------


def share(case: Case, blocks: list[tuple[int, int, int]]) -> tuple[Tensor, CacheLayer, AttentionMetadata]:
    """A step in which sequences first .. last begin with the same so many blocks, for each (first, last, blocks)."""
    q, layer, meta = case.build()
    for first, last, count in blocks:
        meta.block_tables[first : last + 1, :count] = meta.block_tables[first, :count]
    return q, layer, meta


def find(meta: AttentionMetadata, block_size: int, **options: int) -> Any:
    arrays = (meta.block_tables.numpy(), meta.query_starts.numpy(), meta.seq_lens.numpy())
    return grouped.shared_prefixes(*arrays, block_size, **options)


SHARED = [(0, 2, 3), (4, 5, 5)]
LENGTHS = [50, 70, 53, 300, 90, 100, 30]


@pytest.mark.parametrize(
    "case",
    [
        Case(LENGTHS, [1] * 7, kv_heads=1, group=4),
        Case(LENGTHS, [1, 1, 1, 20, 1, 1, 3], kv_heads=1, group=3, dim=80),
        Case(LENGTHS, [1] * 7, kv_heads=1, group=2, softcap=2.0, dtype=torch.bfloat16),
    ],
    ids=["decodes", "beside a chunk", "softcap"],
)
def test_groups_give_the_same_as_no_groups(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """K13: two groups in one launch, beside sequences that share nothing; the same argmax."""
    q, layer, meta = share(case, SHARED)
    expected = reference.paged_attention(q, layer, meta, 0.125, softcap=case.softcap)
    plain = paged_attention(q, layer, meta, 0.125, softcap=case.softcap)
    groups = find(meta, case.block_size)
    assert groups.blocks.tolist() == [3, 5]
    monkeypatch.setattr(grouped, "CHECK", True)
    for wanted in (1, 9):
        monkeypatch.setattr(paged, "programs_wanted", lambda *_, wanted=wanted: wanted)
        step = replace(meta, groups=groups, plan=None)
        out = paged_attention(q, layer, step, 0.125, softcap=case.softcap)
        torch.testing.assert_close(out.float(), expected, **CLOSE[case.dtype])
        if case.dtype == torch.float32:
            assert torch.equal(out.argmax(dim=-1), plain.argmax(dim=-1))
        # A second layer uses the step's scratch again.
        other = CacheLayer(layer.v, layer.k)
        torch.testing.assert_close(
            paged_attention(q, other, step, 0.125, softcap=case.softcap).float(),
            reference.paged_attention(q, other, meta, 0.125, softcap=case.softcap),
            **CLOSE[case.dtype],
        )


def test_a_prefix_is_read_once_for_its_group() -> None:
    """Of a group's tables only one is looked at for the prefix: the others may hold garbage there."""
    q, layer, meta = share(Case(LENGTHS, [1] * 7, kv_heads=1, group=4), SHARED)
    groups = find(meta, 16)
    expected = reference.paged_attention(q, layer, meta, 0.125)
    meta.block_tables[1:3, :3] = 2**31 - 1
    meta.block_tables[5, :5] = 2**31 - 1
    out = paged_attention(q, layer, replace(meta, groups=groups), 0.125)
    torch.testing.assert_close(out, expected, **CLOSE[torch.float32])


def test_layers_with_a_window_and_fixed_order_go_without_groups() -> None:
    q, layer, meta = share(Case(LENGTHS, [1] * 7, kv_heads=1, group=2), SHARED)
    for options, fixed_order in (({"window": 50}, False), ({}, True)):
        expected = reference.paged_attention(q, layer, meta, 0.125, **options)
        step = replace(meta, groups=find(meta, 16), fixed_order=fixed_order)
        out = paged_attention(q, layer, step, 0.125, **options)
        assert "groups" not in step.plan
        torch.testing.assert_close(out, expected, **CLOSE[torch.float32])


def test_room_for_groups_that_a_step_does_not_have_changes_nothing() -> None:
    """As a captured graph has it: the same tensor filled anew for each step, with rows of padding behind the live."""
    q, layer, meta = share(Case(LENGTHS, [1] * 7, kv_heads=1, group=4), SHARED)
    expected = reference.paged_attention(q, layer, meta, 0.125)
    q = torch.cat([q, torch.full((3, *q.shape[1:]), NAN)])
    room = grouped.DeviceGroups(torch.zeros(10 + 4 + 3 + 3 + 10, dtype=torch.int32), 10, 3, 10, 4096)
    for groups in (find(meta, 16), None, find(meta, 16, min_saved=6)):
        room.packed.copy_(torch.from_numpy(grouped.pack(groups, 16, 10, 10, 3)))
        step = replace(padded(meta, 7, 10), groups=room, max_seq_len=4096)
        out = paged_attention(q, layer, step, 0.125)
        assert "groups" in step.plan
        torch.testing.assert_close(out[:7], expected, **CLOSE[torch.float32])
        assert (out[7:] == 0).all()


def test_a_grouped_result_that_differs_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    q, layer, meta = share(Case(LENGTHS, [1] * 7, kv_heads=1, group=4), SHARED)
    groups = find(meta, 16)
    wrong = replace(groups, blocks=groups.blocks + np.int32(1))
    monkeypatch.setattr(grouped, "CHECK", True)
    with pytest.raises(grouped.GroupsDisagree, match="row 0, head 0"):
        paged_attention(q, layer, replace(meta, groups=wrong), 0.125)


def test_small_groups_are_left_alone_on_a_gpu() -> None:
    _, _, meta = share(Case(LENGTHS, [1] * 7, kv_heads=1), SHARED)
    arrays = (meta.block_tables.numpy(), meta.query_starts.numpy(), meta.seq_lens.numpy())
    assert grouped.find_groups(*arrays, 16) is None


# --- the same bits, and nothing compiled anew ------------------------------------------------------------------------


def test_in_fixed_order_a_row_has_the_same_bits_in_every_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """With products that treat all rows of a tile alike, as a matrix unit does and numpy's do not."""

    def product(_: Any, a: TensorHandle, b: TensorHandle, acc: TensorHandle, *options: Any) -> TensorHandle:
        return TensorHandle(np.einsum("mk,kn->mn", a.data, b.data) + acc.data, acc.dtype.scalar)

    monkeypatch.setattr(InterpreterBuilder, "create_dot", product)
    for window in (None, 20):
        q, layer, meta = Case([90, 300], [90, 1], kv_heads=1, group=2, dim=16, window=window).build()
        whole = paged_attention(q, layer, replace(meta, fixed_order=True), 0.125, window=window)
        for start, stop in ((0, 1), (61, 66), (66, 90)):
            part = AttentionMetadata(
                slot_mapping=meta.slot_mapping[start:stop],
                block_tables=meta.block_tables[:1],
                query_starts=torch.tensor([0, stop - start], dtype=torch.int32),
                seq_lens=torch.tensor([stop], dtype=torch.int32),
                max_query_len=stop - start,
                max_seq_len=stop,
                fixed_order=True,
            )
            rows = paged_attention(q[start:stop], layer, part, 0.125, window=window)
            assert torch.equal(rows, whole[start:stop])


class Recorder:
    """Stands for a kernel; notes what it would be compiled for, and launches nothing."""

    def __init__(self, kernel: Any, seen: set[tuple[str, ...]]) -> None:
        function = JITFunction(kernel.fn, **kernel.kwargs)
        backend = CUDABackend(GPUTarget("cuda", 90, 32))
        self.bind = create_function_from_signature(function.signature, function.params, backend)
        self.name, self.seen = kernel.fn.__name__, seen

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        def launch(*args: Any, **options: Any) -> None:
            _, specialisation, rest = self.bind(*args, **options)
            self.seen.add((self.name, str(specialisation), str(rest)))

        return launch


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> set[tuple[str, ...]]:
    seen: set[tuple[str, ...]] = set()
    for module, name in ((attention, "attend_kernel"), (split, "plan_kernel"), (split, "merge_kernel")):
        monkeypatch.setattr(module, name, Recorder(getattr(module, name), seen))
    monkeypatch.setattr(paged, "device_of", lambda _: tiles.Device(9, 132, 227 << 10))
    return seen


@pytest.mark.parametrize("dim", [64, 80])
def test_after_warm_up_no_batch_and_no_length_compiles_anything(compiled: set[tuple[str, ...]], dim: int) -> None:
    """K14: batches of 1 to 256, lengths of 1 to 4,096, chunks, groups, tensors that begin anywhere in their buffers."""
    heads, kv_heads, windows = 8, 2, (None, 512)
    kv = torch.zeros(2, 4, 16, kv_heads, dim, dtype=torch.bfloat16)
    layer = CacheLayer(kv[0], kv[1])
    fused = torch.zeros(6000, heads + 2 * kv_heads, dim, dtype=torch.bfloat16)
    paged.warm_up(heads, layer, fused.dtype, windows=windows, row_stride=fused.stride(0))
    known = set(compiled)
    assert 10 < len(known) < 40
    rng = random.Random(0)
    buffer = torch.zeros(1 << 17, dtype=torch.int32)
    kinds = set()
    for step in range(400):
        seqs = step + 1 if step < 256 else rng.randint(1, 64)
        counts = [1 if step < 256 else rng.choice([1, 1, 2, 7, 300]) for _ in range(seqs)]
        rows = sum(counts)
        width, offset = rng.randint(1, 300), rng.randint(0, 40)
        groups = None
        if step % 3 == 0 and seqs > 2:
            starts = np.array([0, seqs // 2, seqs], np.int32)[: 2 + (seqs > 3)]
            groups = grouped.PrefixGroups(
                np.arange(starts[-1], dtype=np.int32), starts, np.full(len(starts) - 1, rng.randint(1, 200), np.int32)
            )
        meta = AttentionMetadata(
            slot_mapping=torch.zeros(rows, dtype=torch.int64),
            block_tables=buffer[offset : offset + seqs * width].view(seqs, width),
            query_starts=buffer[offset : offset + seqs + 1],
            seq_lens=buffer[offset : offset + seqs],
            max_query_len=max(counts),
            max_seq_len=rng.choice([1, 100, 1000, 4096]) if step >= 256 else 16 * step + 1,
            groups=groups,
        )
        for window in windows:
            paged_attention(fused[:rows, :heads], layer, meta, 0.125, window=window)
            plan = meta.plan.get(window)
            kinds.add(("groups",) if plan is None else (window, plan.tile, plan.partials is None))
        assert compiled <= known, compiled - known
    # Every kind of step came by: three tiles, two windows, cut or not; and groups.
    assert len(kinds) == 13, kinds
