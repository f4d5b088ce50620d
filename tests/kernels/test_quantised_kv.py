"""KV in eight bits: every path writes the same values and scales, and attention stays close to float32."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from kernels import api, reference
from kernels.api import AttentionMetadata, KVCache
from kernels.quantised import LARGEST, dequantise, quantise

NAN = float("nan")
DTYPES = [torch.int8, torch.float8_e4m3fn]
ERROR = {torch.int8: 0.015, torch.float8_e4m3fn: 0.05}
"""Attention's error against float32, root mean square over that of the result; measured 0.010 and 0.039 on noise, the
hardest case: what many tokens agree on is not lost in a mean."""


def step(lengths: list[int], queries: list[int], dtype: torch.dtype, **sizes: int) -> tuple[Tensor, ...]:
    """q, a poisoned cache layer of `dtype` and one of float32 with the same tokens, and the metadata."""
    kv_heads, group, dim, block_size = (sizes.get(k, v) for k, v in SIZES.items())
    torch.manual_seed(sum(lengths))
    needed = [-(-length // block_size) for length in lengths]
    tables = torch.full((len(lengths), max(needed) + 2), 2**31 - 1, dtype=torch.int32)
    order = torch.randperm(sum(needed) + 2)
    low, full = (KVCache(1, len(order), block_size, kv_heads, dim, dtype=kind) for kind in (dtype, torch.float32))
    low.data.view(torch.int8).fill_(-1)  # NaN as float8_e4m3fn
    assert low.scales is not None
    low.scales.fill_(NAN)
    full.data.fill_(NAN)
    slots, at = [], 0
    for s, length in enumerate(lengths):
        blocks = order[at : at + needed[s]]
        at += needed[s]
        tables[s, : needed[s]] = blocks
        where = (blocks[:, None] * block_size + torch.arange(block_size)).view(-1)[:length]
        # Heads of very different sizes, as keys have them: each has its own scale.
        kv = torch.randn(2, length, kv_heads, dim) * torch.logspace(-2, 2, kv_heads)[:, None]
        for cache in (low, full):
            reference.write_kv(kv[0], kv[1], cache.layer(0), where)
        slots.append(where[length - queries[s] :])
    meta = AttentionMetadata(
        slot_mapping=torch.cat(slots),
        block_tables=tables,
        query_starts=torch.tensor([0, *queries]).cumsum(0).int(),
        seq_lens=torch.tensor(lengths, dtype=torch.int32),
        max_query_len=max(queries),
        max_seq_len=max(lengths),
    )
    q = torch.randn(sum(queries), kv_heads, group, dim) / torch.logspace(-2, 2, kv_heads)[:, None, None]
    return q.flatten(1, 2), low.layer(0), full.layer(0), meta


SIZES = {"kv_heads": 2, "group": 3, "dim": 64, "block_size": 16}


@pytest.mark.parametrize("dtype", DTYPES)
def test_values_come_back_within_half_a_step_of_their_head_s_scale(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x = torch.randn(200, 3, 64) * torch.logspace(-20, 20, 200)[:, None, None]
    values, scale = quantise(x, dtype)
    assert values.dtype == dtype
    assert scale.shape == (200, 3)
    error = (dequantise(values, scale, torch.float32) - x).abs() / scale[..., None]
    # int8 has steps of 1; e4m3 has three bits behind the point, and its last subnormal is 2 ** -9.
    allowed = 0.5 if dtype == torch.int8 else (x / scale[..., None]).abs().clamp(min=2.0**-6) / 16
    assert (error <= allowed * 1.0001).all()
    assert (values.float().abs().amax(-1) == LARGEST[dtype]).all(), "the range is used to its end"


@pytest.mark.parametrize("dtype", DTYPES)
def test_zeros_stay_zeros_and_a_nan_or_infinity_does_not_hide(dtype: torch.dtype) -> None:
    x = torch.zeros(4, 8)
    x[1, 3], x[2, 0], x[3] = NAN, float("inf"), 1e-38
    back = dequantise(*quantise(x, dtype), torch.float32)
    assert (back[0] == 0).all()
    assert back[1].isnan().any()
    assert back[2].isnan().any()
    assert back[3].isfinite().all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_torch_path_writes_what_the_oracle_writes_and_drops_padded_rows(dtype: torch.dtype) -> None:
    """K8"""
    ours, theirs = (KVCache(2, 5, 8, 2, 16, dtype=dtype) for _ in range(2))
    fused = torch.randn(4, 6, 16).bfloat16()
    slots = torch.tensor([39, 0, -1, 8])
    api.write_kv(fused[:, 2:4], fused[:, 4:], ours.layer(1), slots)
    reference.write_kv(fused[:, 2:4], fused[:, 4:], theirs.layer(1), slots)
    assert torch.equal(ours.data.view(torch.int8), theirs.data.view(torch.int8))
    assert ours.scales is not None
    assert theirs.scales is not None
    assert torch.equal(ours.scales, theirs.scales)
    assert int((ours.scales != 0).sum()) == 2 * 2 * 3


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("fixed_order", [False, True])
@pytest.mark.parametrize("options", [{}, {"window": 21}, {"softcap": 20.0}])
def test_attention_over_eight_bits_is_that_of_the_values_which_are_stored(
    dtype: torch.dtype, fixed_order: bool, options: dict[str, float]
) -> None:
    """K2, K7: what is poisoned, values and scales, is not used."""
    q, low, _, meta = step([40, 7, 133, 64], [1, 1, 20, 1], dtype)
    expected = reference.paged_attention(q, low, meta, 0.125, **options)
    assert not expected.isnan().any()
    out = api.paged_attention(q, low, replace(meta, fixed_order=fixed_order), 0.125, **options)
    torch.testing.assert_close(out, expected, atol=2e-4, rtol=1e-4)


@pytest.mark.parametrize("dtype", DTYPES)
def test_attention_over_eight_bits_is_close_to_float32(dtype: torch.dtype) -> None:
    q, low, full, meta = step([700, 40, 333], [1, 1, 64], dtype, kv_heads=3)
    exact = reference.paged_attention(q, full, meta, 0.125)
    for rows in (q, q.bfloat16()):
        out = api.paged_attention(rows, low, replace(meta, plan=None), 0.125).float()
        for head in range(3):  # each by itself: the heads' sizes differ by 10,000
            mine = slice(3 * head, 3 * head + 3)
            error = (out[:, mine] - exact[:, mine]).square().mean() / exact[:, mine].square().mean()
            assert error.sqrt() < ERROR[dtype], f"KV head {head}: {float(error.sqrt()):.4f}"


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_copied_block_takes_its_scales_along(dtype: torch.dtype) -> None:
    cache = KVCache(3, 6, 8, 2, 16, dtype=dtype)
    for i in range(3):
        api.write_kv(torch.randn(48, 2, 16), torch.randn(48, 2, 16), cache.layer(i), torch.arange(48))
    assert cache.scales is not None
    data, scales = cache.data.view(torch.int8).clone(), cache.scales.clone()
    api.copy_blocks(cache, torch.tensor([1, 4]), torch.tensor([0, 5]))
    order = torch.tensor([1, 1, 2, 3, 4, 4])
    assert torch.equal(cache.data.view(torch.int8), data[:, :, order])
    assert torch.equal(cache.scales, scales[:, :, order])


def test_a_type_that_no_path_knows_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"torch\.float8_e5m2; choose .* int8 or float8_e4m3fn"):
        KVCache(1, 2, 16, 1, 64, dtype=torch.float8_e5m2)
