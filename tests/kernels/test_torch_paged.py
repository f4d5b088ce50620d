"""The plain-torch path gives what the float32 oracle gives, whatever the shapes, and reads nothing it must not."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

from kernels import api, reference
from kernels.api import AttentionMetadata, CacheLayer, KVCache

pytestmark = pytest.mark.usefixtures("path")
NAN = float("nan")


@dataclass
class Case:
    """A step: `lengths` are contexts, `queries` how many of their last tokens are this step's.

    With a window, the blocks that no row sees have been given back: their table entries are garbage.
    """

    lengths: list[int]
    queries: list[int]
    kv_heads: int = 2
    group: int = 3
    dim: int = 64
    block_size: int = 16
    dtype: torch.dtype = torch.float32
    seed: int = 0
    window: int | None = None
    softcap: float | None = None

    def build(self) -> tuple[Tensor, CacheLayer, AttentionMetadata]:
        """q, a layer that is NaN wherever no token was written, and metadata whose table padding is garbage."""
        torch.manual_seed(self.seed)
        needed = [-(-length // self.block_size) for length in self.lengths]
        num_blocks = sum(needed) + 3
        free = list(range(num_blocks))
        random.Random(self.seed).shuffle(free)
        width = max(needed, default=0) + 2
        tables = torch.full((len(self.lengths), width), 2**31 - 1, dtype=torch.int32)
        shape = (num_blocks, self.block_size, self.kv_heads, self.dim)
        layer = CacheLayer(torch.full(shape, NAN, dtype=self.dtype), torch.full(shape, NAN, dtype=self.dtype))
        slots: list[int] = []
        for s, length in enumerate(self.lengths):
            blocks = [free.pop() for _ in range(needed[s])]
            tables[s, : needed[s]] = torch.tensor(blocks, dtype=torch.int32)
            where = [blocks[i // self.block_size] * self.block_size + i % self.block_size for i in range(length)]
            old = torch.tensor(where, dtype=torch.int64)
            kv = torch.randn(2, length, self.kv_heads, self.dim).to(self.dtype)
            reference.write_kv(kv[0], kv[1], layer, old)
            slots += where[length - self.queries[s] :]
            if self.window is not None:
                gone = max(0, length - self.queries[s] - self.window + 1) // self.block_size
                tables[s, :gone] = 2**31 - 1
                for block in blocks[:gone]:
                    layer.k[block], layer.v[block] = NAN, NAN
        starts = torch.tensor([0, *self.queries]).cumsum(0)
        meta = AttentionMetadata(
            slot_mapping=torch.tensor(slots, dtype=torch.int64),
            block_tables=tables,
            query_starts=starts.int(),
            seq_lens=torch.tensor(self.lengths, dtype=torch.int32),
            max_query_len=max(self.queries, default=0),
            max_seq_len=max(self.lengths, default=0),
        )
        q = torch.randn(sum(self.queries), self.kv_heads * self.group, self.dim).to(self.dtype)
        return q, layer, meta


def check(case: Case, **tolerance: float) -> None:
    q, layer, meta = case.build()
    scale, options = case.dim**-0.5, {"window": case.window, "softcap": case.softcap}
    out = api.paged_attention(q, layer, meta, scale, **options)
    assert out.shape == q.shape
    assert out.dtype == q.dtype
    assert out.is_contiguous()
    expected = reference.paged_attention(q, layer, meta, scale, **options)
    assert not expected.isnan().any()
    torch.testing.assert_close(out.float(), expected, **(tolerance or {"atol": 2e-5, "rtol": 1e-4}))


@pytest.mark.parametrize("dim", [16, 64, 80, 96, 112, 128, 192])
@pytest.mark.parametrize("group", [1, 2, 3, 5, 6, 7, 14])
def test_head_sizes_and_groups_agree_with_the_oracle(dim: int, group: int) -> None:
    """K5"""
    check(Case([37, 5, 70], [1, 1, 20], dim=dim, group=group))


@pytest.mark.parametrize("block_size", [8, 16, 24, 32, 100])
def test_block_sizes_agree_with_the_oracle(block_size: int) -> None:
    """K6, with lengths just below, at and just above a block's end."""
    lengths = [block_size - 1, block_size, block_size + 1, 3 * block_size, 1]
    check(Case(lengths, [1] * 5, block_size=block_size))
    check(Case(lengths, [block_size - 1, 3, 2, block_size + 5, 1], block_size=block_size))


@pytest.mark.parametrize("seed", range(25))
def test_random_batches_agree_with_the_oracle(seed: int) -> None:
    """K2, K7, K11: mixed query lengths over a poisoned pool; tables with garbage behind each end."""
    rng = random.Random(seed)
    lengths = [rng.choice([1, 2, 15, 16, 17, rng.randint(1, 300)]) for _ in range(rng.randint(1, 9))]
    queries = [rng.choice([1, 1, min(length, rng.randint(1, 8)), length]) for length in lengths]
    check(
        Case(
            lengths,
            queries,
            kv_heads=rng.choice([1, 2, 3]),
            group=rng.choice([1, 2, 3, 7]),
            dim=rng.choice([32, 64, 80]),
            block_size=rng.choice([8, 16, 24]),
            seed=seed,
        )
    )


@pytest.mark.parametrize("seed", range(25))
def test_random_batches_with_a_window_or_a_softcap_agree_with_the_oracle(seed: int) -> None:
    """K2, K5, K6, K7, K11: blocks outside the window are gone, table entries and contents."""
    rng = random.Random(seed)
    lengths = [rng.choice([1, 2, 15, 16, 17, rng.randint(1, 300)]) for _ in range(rng.randint(1, 9))]
    queries = [rng.choice([1, 1, min(length, rng.randint(1, 8)), length]) for length in lengths]
    case = Case(
        lengths,
        queries,
        kv_heads=rng.choice([1, 2, 3]),
        group=rng.choice([1, 2, 5, 14]),
        dim=rng.choice([64, 80, 192]),
        block_size=rng.choice([8, 16, 24, 100]),
        seed=seed,
        window=rng.choice([None, 1, 5, 16, 33, 100, 1000]),
        softcap=rng.choice([None, 0.5, 20.0]),
    )
    check(case)
    check(replace(case, dtype=torch.bfloat16), atol=2e-2, rtol=2e-2)


@pytest.mark.parametrize("window", [1, 8, 31, 32, 33])
@pytest.mark.parametrize("queries", [1, 2, 20])
def test_windows_that_end_on_either_side_of_a_block_s_edge_agree_with_the_oracle(window: int, queries: int) -> None:
    """K2, K6"""
    lengths = [48, 63, 64, 65, 96]
    check(Case(lengths, [queries] * 5, block_size=16, window=window))


def test_blocks_outside_the_window_are_not_gathered() -> None:
    from kernels.torch_paged import make_plan

    case = Case([1000, 40, 2000], [1, 1, 8], kv_heads=1, group=1, dim=16, window=32)
    _, _, meta = case.build()
    plan = make_plan(meta, 10, case.block_size, torch.float32, case.window)
    assert all(decodes.blocks.shape[1] <= 3 for decodes in plan.decodes)
    assert len(plan.chunks[0].blocks) <= 4


def test_a_decode_whose_padding_is_a_whole_masked_tile_agrees_with_the_oracle() -> None:
    """K3: windows of 30 tokens lie in two blocks or three; the shorter ones get a block that is all masked."""
    check(Case([62, 64, 65, 30], [1] * 4, window=30))
    check(Case([62, 64, 65, 30], [1] * 4, window=30, softcap=5.0))


@pytest.mark.parametrize("softcap", [1.0, 50.0])
def test_a_softcap_bounds_huge_scores(softcap: float) -> None:
    """K9: capped scores are within the cap of each other, so every visible token still counts; and nothing is NaN."""
    for dtype in (torch.float32, torch.bfloat16):
        q, layer, meta = Case([40, 33], [1, 20], dtype=dtype).build()
        out = api.paged_attention(q * 1e18, layer, meta, 1e18, softcap=softcap)
        assert out.isfinite().all()
        expected = reference.paged_attention(q * 1e18, layer, meta, 1e18, softcap=softcap)
        torch.testing.assert_close(out.float(), expected, atol=2e-2, rtol=2e-2)


def test_one_step_serves_layers_with_and_without_a_window() -> None:
    q, layer, meta = Case([40, 7, 133], [1, 1, 20]).build()
    for window in (None, 16, None, 50, 16):
        expected = reference.paged_attention(q, layer, meta, 0.125, window=window)
        out = api.paged_attention(q, layer, meta, 0.125, window=window)
        torch.testing.assert_close(out, expected, atol=2e-5, rtol=1e-4)


def test_query_lengths_one_to_eight_and_a_long_prefill_share_a_batch() -> None:
    """K11"""
    check(Case([20 + n for n in range(1, 9)] + [300], [*range(1, 9), 256]))


def test_bfloat16_stays_within_its_own_rounding() -> None:
    check(Case([900, 640, 33, 700], [1, 1, 1, 256], group=3, dtype=torch.bfloat16), atol=2e-2, rtol=2e-2)
    check(Case([9, 900, 30], [9, 1, 15], group=7, dtype=torch.bfloat16), atol=2e-2, rtol=2e-2)


def test_lengths_far_apart_are_not_padded_to_the_longest() -> None:
    from kernels.torch_paged import make_plan

    case = Case([3, 2000, 4, 1900, 900, 1000], [1] * 6, kv_heads=1, group=1, dim=16)
    check(case)
    _, _, meta = case.build()
    plan = make_plan(meta, 6, case.block_size, torch.float32)
    gathered = sum(decodes.mask.numel() for decodes in plan.decodes)
    assert gathered < 1.4 * sum(case.lengths)
    assert sum(len(decodes.rows) for decodes in plan.decodes) == 6


def test_sequences_of_length_zero_and_padded_rows_come_out_as_zeros() -> None:
    """K4, K8: a captured batch with fewer live rows; the padded sequences have length 0, their rows slot -1."""
    q, layer, meta = Case([40, 7], [1, 1]).build()
    expected = reference.paged_attention(q, layer, meta, 0.125)
    padded = replace(
        meta,
        slot_mapping=torch.cat([meta.slot_mapping, torch.tensor([-1, -1])]),
        block_tables=torch.cat([meta.block_tables, torch.full((2, meta.block_tables.shape[1]), -7, dtype=torch.int32)]),
        query_starts=torch.tensor([0, 1, 2, 3, 4], dtype=torch.int32),
        seq_lens=torch.tensor([40, 7, 0, 0], dtype=torch.int32),
    )
    out = api.paged_attention(torch.cat([q, torch.full((2, *q.shape[1:]), NAN)]), layer, padded, 0.125)
    torch.testing.assert_close(out[:2], expected, atol=2e-5, rtol=1e-4)
    assert (out[2:] == 0).all()


def test_rows_behind_the_last_sequence_come_out_as_zeros() -> None:
    q, layer, meta = Case([40, 30], [1, 6]).build()
    out = api.paged_attention(torch.cat([q, torch.full((3, *q.shape[1:]), NAN)]), layer, meta, 0.125)
    torch.testing.assert_close(out[:7], reference.paged_attention(q, layer, meta, 0.125), atol=2e-5, rtol=1e-4)
    assert (out[7:] == 0).all()


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
    assert (api.paged_attention(q, CacheLayer(kv, kv), meta, 1.0) == 0).all()


@pytest.mark.parametrize("queries", [[1, 1], [1, 20], [20, 33]])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_q_may_be_a_slice_of_the_fused_projection(queries: list[int], dtype: torch.dtype) -> None:
    """K12"""
    q, layer, meta = Case([40, 33], queries, dtype=dtype).build()
    fused = torch.full((q.shape[0], q.shape[1] + 4, q.shape[2]), NAN, dtype=dtype)
    fused[:, : q.shape[1]] = q
    strided = fused[:, : q.shape[1]]
    assert not strided.is_contiguous()
    for options in ({}, {"window": 17}, {"softcap": 2.0}):
        ours = api.paged_attention(strided, layer, replace(meta, plan=None), 0.125, **options)
        torch.testing.assert_close(ours, api.paged_attention(q, layer, replace(meta, plan=None), 0.125, **options))


def test_huge_scores_give_no_nan() -> None:
    q, layer, meta = Case([40, 33], [1, 20]).build()
    out = api.paged_attention(q * 1e4, layer, meta, 1.0)
    assert out.isfinite().all()


def test_one_layer_s_plan_serves_all_layers() -> None:
    q, layer, meta = Case([40, 7, 33], [1, 1, 20]).build()
    other = CacheLayer(layer.v, layer.k)
    api.paged_attention(q, layer, meta, 0.125)
    expected = reference.paged_attention(q, other, meta, 0.125)
    torch.testing.assert_close(api.paged_attention(q, other, meta, 0.125), expected, atol=2e-5, rtol=1e-4)


# --- the cache -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_written_tokens_lie_in_their_slots_and_nothing_else_changes(dtype: torch.dtype) -> None:
    cache = KVCache(2, 5, 8, 2, 16, dtype=dtype)
    fused = torch.randn(4, 6, 16).to(dtype)
    slots = torch.tensor([39, 0, 17, 8])
    api.write_kv(fused[:, 2:4], fused[:, 4:], cache.layer(1), slots)
    expected = KVCache(2, 5, 8, 2, 16, dtype=dtype)
    reference.write_kv(fused[:, 2:4], fused[:, 4:], expected.layer(1), slots)
    assert torch.equal(cache.data, expected.data)
    assert torch.equal(cache.layer(1).k[4, 7], fused[0, 2:4])


def test_rows_of_slot_minus_one_are_not_written() -> None:
    """K8"""
    cache = KVCache(1, 3, 8, 2, 16)
    new = torch.full((3, 2, 16), NAN)
    new[1] = 1.0
    api.write_kv(new, new, cache.layer(0), torch.tensor([-1, 5, -1]))
    assert float(cache.data.sum()) == 2 * 2 * 16
    api.write_kv(new, new, cache.layer(0), torch.tensor([-1, -1, -1]))
    assert float(cache.data.sum()) == 2 * 2 * 16


def test_blocks_are_copied_in_every_layer_and_only_these() -> None:
    cache = KVCache(3, 6, 8, 2, 16)
    cache.data.normal_()
    before = cache.data.clone()
    api.copy_blocks(cache, torch.tensor([1, 4]), torch.tensor([0, 5]))
    assert torch.equal(cache.data[:, :, 0], before[:, :, 1])
    assert torch.equal(cache.data[:, :, 5], before[:, :, 4])
    assert torch.equal(cache.data[:, :, 1:5], before[:, :, 1:5])


def test_a_block_id_times_stride_beyond_two_to_the_31_is_addressed_right() -> None:
    """K1: a strided view whose blocks lie 2 ** 28 elements apart in an untouched mapping; nine of them pass 2 ** 31."""
    import mmap

    blocks, block_size, heads, dim = 12, 16, 2, 32
    stride = 2**28
    no_reserve = 0x4000  # MAP_NORESERVE, which Python 3.11 does not name
    with mmap.mmap(-1, blocks * stride * 4, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | no_reserve) as memory:
        flat = torch.frombuffer(memory, dtype=torch.float32)
        shape, strides = (blocks, block_size, heads, dim), (stride, heads * dim, dim, 1)
        far = CacheLayer(flat.as_strided(shape, strides), flat.as_strided(shape, strides, 2**20))
        near = CacheLayer(torch.zeros(shape), torch.zeros(shape))
        table = torch.tensor([[11, 9, 2]], dtype=torch.int32)
        slots = torch.tensor([11 * 16 + i for i in range(16)] + [9 * 16 + i for i in range(16)] + [32, 33])
        kv = torch.randn(2, 34, heads, dim)
        meta = AttentionMetadata(
            slot_mapping=slots,
            block_tables=table,
            query_starts=torch.tensor([0, 34], dtype=torch.int32),
            seq_lens=torch.tensor([34], dtype=torch.int32),
            max_query_len=34,
            max_seq_len=34,
        )
        for layer in (far, near):
            api.write_kv(kv[0], kv[1], layer, slots)
        assert torch.equal(far.k[table[0].long()], near.k[table[0].long()])
        decode = replace(meta, query_starts=torch.tensor([0, 1], dtype=torch.int32))
        for step, rows in ((meta, 34), (decode, 1)):
            q = torch.randn(rows, 4, dim)
            expected = reference.paged_attention(q, near, step, 0.2)
            torch.testing.assert_close(api.paged_attention(q, far, step, 0.2), expected, atol=2e-5, rtol=1e-4)
        del flat, far
