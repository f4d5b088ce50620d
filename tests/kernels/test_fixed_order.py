"""The fixed-order path gives what the float32 oracle gives, and a row's bits do not depend on the other rows."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch

from kernels import api, reference
from kernels.api import AttentionMetadata, CacheLayer
from kernels.fixed_order import SPLIT_TOKENS
from tests.kernels.test_torch_paged import Case


@pytest.mark.parametrize(
    "case",
    [
        Case([37, 5, 70], [1, 1, 20]),
        Case([300, 129, 128, 127, 1], [1, 1, 1, 1, 1], dim=80, group=1),
        Case([270, 16, 0, 33], [200, 16, 0, 1], block_size=24, kv_heads=1, group=14),
        Case([100, 0, 7], [3, 0, 7], block_size=100, dim=96),
        Case([260, 40], [9, 40], dtype=torch.bfloat16),
        Case([3, 0, 9], [1, 2, 9]),
        Case([400, 30, 129, 1], [2, 1, 40, 1], window=33, softcap=5.0),
        Case([600, 300], [1, 16], window=1),
        Case([40, 300], [10, 200], window=1000, block_size=8),
        Case([], []),
    ],
)
def test_it_agrees_with_the_oracle_and_reads_nothing_it_must_not(case: Case) -> None:
    """K2, K4, K5, K6, K7, K11: all that is not written is NaN, all that is not in a table is no block."""
    q, layer, meta = case.build()
    options = {"window": case.window, "softcap": case.softcap}
    out = api.paged_attention(q, layer, replace(meta, fixed_order=True), 0.2, **options)
    assert out.shape == q.shape
    assert out.dtype == q.dtype
    expected = reference.paged_attention(q, layer, meta, 0.2, **options)
    rough = case.dtype == torch.bfloat16
    torch.testing.assert_close(out.float(), expected, atol=1e-2 if rough else 2e-5, rtol=1e-2 if rough else 1e-4)


def test_padded_rows_come_out_as_zeros() -> None:
    """K8."""
    q, layer, meta = Case([20, 30], [1, 1]).build()
    padded = torch.cat([q, torch.full_like(q, 7.0)])
    out = api.paged_attention(padded, layer, replace(meta, fixed_order=True), 0.2)
    assert not out[2:].any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("threads", "window"), [(1, None), (2, None), (2, 50)])
def test_a_rows_bits_are_the_same_whatever_lies_beside_it(dtype: torch.dtype, threads: int, window: int | None) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        lengths = [3 * SPLIT_TOKENS + 5, 40, SPLIT_TOKENS, 1, 77, SPLIT_TOKENS + 1, 9]
        q, layer, meta = Case(lengths, [30, 1, 7, 1, 50, 1, 9], dtype=dtype).build()
        whole = api.paged_attention(q, layer, replace(meta, fixed_order=True), 0.2, window=window)
        chance = random.Random(0)
        for _ in range(12):
            parts = chance.sample(range(len(lengths)), chance.randint(1, 4))
            rows: list[int] = []
            seen, counts = [], []
            for s in parts:  # some of its rows, as a chunk of any size would have them
                first, last = int(meta.query_starts[s]), int(meta.query_starts[s + 1])
                start = chance.randrange(first, last)
                stop = chance.randint(start + 1, last)
                rows += range(start, stop)
                seen.append(lengths[s] - (last - stop))
                counts.append(stop - start)
            out = api.paged_attention(q[rows], *partial(layer, meta, parts, seen, counts), 0.2, window=window)
            assert torch.equal(out, whole[rows])
    finally:
        torch.set_num_threads(before)


def partial(
    layer: CacheLayer, meta: AttentionMetadata, parts: list[int], seen: list[int], counts: list[int]
) -> tuple[CacheLayer, AttentionMetadata]:
    return layer, AttentionMetadata(
        slot_mapping=torch.zeros(sum(counts), dtype=torch.int64),
        block_tables=meta.block_tables[parts],
        query_starts=torch.tensor([0, *counts]).cumsum(0).int(),
        seq_lens=torch.tensor(seen, dtype=torch.int32),
        max_query_len=max(counts),
        max_seq_len=max(seen),
        fixed_order=True,
    )
