"""What a layer does beside its matrices and attention: plain torch gives what the float32 oracle gives."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from kernels import api, reference
from kernels.api import KVCache

pytestmark = pytest.mark.usefixtures("path")
CLOSE = {torch.float32: {"atol": 1e-5, "rtol": 1e-5}, torch.bfloat16: {"atol": 3e-2, "rtol": 2e-2}}
DTYPES = [torch.float32, torch.bfloat16]


def turns(rows: int, dim: int) -> tuple[Tensor, Tensor]:
    angles = torch.rand(rows, dim // 2) * 6
    return angles.cos(), angles.sin()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("residual", [True, False])
@pytest.mark.parametrize("hidden", [48, 576, 2048])
def test_a_norm_is_of_the_sum_and_the_sum_goes_on(hidden: int, residual: bool, dtype: torch.dtype) -> None:
    torch.manual_seed(hidden)
    x, before = torch.randn(7, hidden).to(dtype), torch.randn(7, hidden).to(dtype) if residual else None
    weight = torch.rand(hidden).to(dtype)
    expected, total = reference.add_rms_norm(x, before, weight, 1e-5)
    out, after = api.add_rms_norm(x.clone(), None if before is None else before.clone(), weight, 1e-5)
    assert out.dtype == after.dtype == dtype
    torch.testing.assert_close(after, total)
    torch.testing.assert_close(out.float(), expected, **CLOSE[dtype])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("norms", [True, False])
@pytest.mark.parametrize("rotated", [True, False])
@pytest.mark.parametrize(("heads", "kv_heads", "dim"), [(9, 3, 64), (14, 2, 80), (4, 4, 128)])
def test_heads_are_normalised_rotated_and_stored_but_not_for_padded_rows(
    heads: int, kv_heads: int, dim: int, rotated: bool, norms: bool, dtype: torch.dtype
) -> None:
    torch.manual_seed(dim)
    fused = torch.randn(6, (heads + 2 * kv_heads) * dim + 8).to(dtype)
    qkv = fused[:, : (heads + 2 * kv_heads) * dim].unflatten(1, (-1, dim))
    slots = torch.tensor([17, 0, -1, 5, 6, 31])
    weights = (torch.rand(dim).to(dtype), torch.rand(dim).to(dtype)) if norms else None
    rotation = turns(6, dim) if rotated else None
    ours, theirs = (KVCache(1, 2, 16, kv_heads, dim, dtype=dtype) for _ in range(2))
    expected = reference.rope_write_kv(qkv.clone(), rotation, theirs.layer(0), slots, heads, norms=weights, eps=1e-5)
    q = api.rope_write_kv(qkv, rotation, ours.layer(0), slots, heads, norms=weights, eps=1e-5)
    torch.testing.assert_close(q.float(), expected, **CLOSE[dtype])
    torch.testing.assert_close(ours.data, theirs.data, **CLOSE[dtype])
    assert (ours.data != 0).any(-1).any(-1).sum() == 2 * 5, "the padded row is nowhere"


@pytest.mark.parametrize("dtype", DTYPES)
def test_silu_of_the_gate_times_up(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    gate_up = (4 * torch.randn(5, 2 * 96)).to(dtype)
    torch.testing.assert_close(api.silu_mul(gate_up).float(), reference.silu_mul(gate_up), **CLOSE[dtype])


@pytest.mark.parametrize("rows", [0, 1])
def test_no_rows_are_no_trouble(rows: int) -> None:
    cache = KVCache(1, 2, 16, 2, 64)
    slots = torch.full((rows,), 3)
    assert api.add_rms_norm(torch.ones(rows, 32), None, torch.ones(32), 1e-5)[0].shape == (rows, 32)
    assert api.rope_write_kv(torch.ones(rows, 8, 64), turns(rows, 64), cache.layer(0), slots, 4).shape == (rows, 4, 64)
    assert api.silu_mul(torch.ones(rows, 64)).shape == (rows, 32)
