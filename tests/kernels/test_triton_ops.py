"""The GPU's kernels beside attention give what the float32 oracle gives: here through Triton's interpreter."""

from __future__ import annotations

import mmap
import random

import pytest
import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels import reference
from kernels import triton as gpu
from kernels.api import CacheLayer, KVCache
from kernels.quantised import quantise
from kernels.triton.cache import at_once
from kernels.triton.quantised import decode

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning:triton")  # numpy's, of NaN and infinity

NAN = float("nan")
# The interpreter cuts float32 down to bfloat16 where a GPU rounds.
CLOSE = {
    torch.float32: {"atol": 1e-5, "rtol": 1e-5},
    torch.float16: {"atol": 5e-3, "rtol": 5e-3},
    torch.bfloat16: {"atol": 4e-2, "rtol": 2e-2},
}
DTYPES = list(CLOSE)
EIGHT_BITS = [torch.int8, torch.float8_e4m3fn]


def turns(rows: int, dim: int) -> tuple[Tensor, Tensor]:
    angles = torch.rand(rows, dim // 2) * 6
    return angles.cos(), angles.sin()


def same(ours: KVCache, theirs: KVCache, **tolerance: float) -> None:
    torch.testing.assert_close(ours.data.float(), theirs.data.float(), **tolerance, equal_nan=True)
    if ours.scales is not None:
        assert theirs.scales is not None
        torch.testing.assert_close(ours.scales, theirs.scales, equal_nan=True, rtol=1e-2, atol=0.0)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("residual", [True, False])
@pytest.mark.parametrize("hidden", [1, 48, 576, 2048])
def test_a_norm_is_of_the_sum_and_the_sum_goes_on(hidden: int, residual: bool, dtype: torch.dtype) -> None:
    torch.manual_seed(hidden)
    x, before = torch.randn(3, hidden).to(dtype), torch.randn(3, hidden).to(dtype) if residual else None
    weight = torch.rand(hidden).to(dtype)
    expected, total = reference.add_rms_norm(x, before, weight, 1e-5)
    out, after = gpu.add_rms_norm(x.clone(), None if before is None else before.clone(), weight, 1e-5)
    assert out.dtype == after.dtype == dtype
    torch.testing.assert_close(after, total, **CLOSE[dtype])
    torch.testing.assert_close(out.float(), expected, **CLOSE[dtype])


def test_rows_of_a_norm_may_lie_apart_and_nothing_between_them_is_touched() -> None:
    """K12"""
    wide, beside = torch.full((4, 100), NAN), torch.full((4, 120), NAN)
    wide[:, 8:72], beside[:, 32:96] = torch.randn(4, 64), torch.randn(4, 64)
    x, residual = wide[:, 8:72], beside[:, 32:96]
    expected, total = reference.add_rms_norm(x.clone(), residual.clone(), torch.ones(64), 1e-5)
    out, after = gpu.add_rms_norm(x, residual, torch.ones(64), 1e-5)
    torch.testing.assert_close(out, expected)
    torch.testing.assert_close(after, total)
    assert int(wide.isnan().sum()) == 4 * 36
    assert int(beside.isnan().sum()) == 4 * 56


HEADS = [(9, 3, 64), (14, 2, 80), (2, 2, 192)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("rotated", "norms"), [(True, False), (True, True), (False, False), (False, True)])
@pytest.mark.parametrize(("heads", "kv_heads", "dim"), HEADS)
def test_heads_are_normalised_rotated_and_stored_but_not_for_padded_rows(
    heads: int, kv_heads: int, dim: int, rotated: bool, norms: bool, dtype: torch.dtype
) -> None:
    """K5, K8, K12"""
    check_rope(heads, kv_heads, dim, rotated, norms, dtype, dtype, 16)


@pytest.mark.parametrize("cache", EIGHT_BITS)
@pytest.mark.parametrize(("heads", "kv_heads", "dim"), HEADS)
def test_rotated_heads_are_stored_in_eight_bits(heads: int, kv_heads: int, dim: int, cache: torch.dtype) -> None:
    check_rope(heads, kv_heads, dim, True, True, torch.float32, cache, 16)


BLOCK_SIZES = [8, 16, 24, 32, 100]


@pytest.mark.long
@pytest.mark.parametrize("dim", [16, 64, 80, 96, 112, 128, 192, 256])
@pytest.mark.parametrize("group", [1, 2, 3, 5, 6, 7, 14])
def test_all_heads_and_blocks_agree_with_the_oracle(group: int, dim: int) -> None:
    """K5, K6"""
    block_size = BLOCK_SIZES[(group + dim // 16) % 5]
    for cache in (torch.float16, *EIGHT_BITS):
        check_rope(2 * group, 2, dim, True, group % 2 == 0, torch.float16, cache, block_size)


def check_rope(
    heads: int,
    kv_heads: int,
    dim: int,
    rotated: bool,
    norms: bool,
    dtype: torch.dtype,
    cache: torch.dtype,
    block_size: int,
) -> None:
    torch.manual_seed(dim)
    width = (heads + 2 * kv_heads) * dim
    fused = torch.randn(5, width + 8).to(dtype)
    qkv = fused[:, :width].unflatten(1, (-1, dim))
    slots = torch.tensor([block_size + 1, 0, -1, 5, 2 * block_size - 1])
    weights = (torch.rand(dim).to(dtype), torch.rand(dim).to(dtype)) if norms else None
    rotation = turns(5, dim) if rotated else None
    ours, theirs = (KVCache(1, 2, block_size, kv_heads, dim, dtype=cache) for _ in range(2))
    beside = fused[:, width:].clone()
    expected = reference.rope_write_kv(qkv.clone(), rotation, theirs.layer(0), slots, heads, norms=weights, eps=1e-5)
    q = gpu.rope_write_kv(qkv, rotation, ours.layer(0), slots, heads, norms=weights, eps=1e-5)
    assert q.shape == (5, heads, dim)
    torch.testing.assert_close(q.float(), expected, **CLOSE[dtype])
    # A value between two steps may fall to either side, since the scale differs in its last bit.
    same(ours, theirs, **CLOSE.get(cache, {"atol": 1.0, "rtol": 0.13}))
    assert (ours.data.float() != 0).any(-1).any(-1).sum() == 2 * 4, "the padded row is nowhere"
    assert torch.equal(fused[:, width:], beside)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [1, 96, 1100])
def test_silu_of_the_gate_times_up(width: int, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    fused = (4 * torch.randn(3, 2 * width + 5)).to(dtype)
    gate_up = fused[:, : 2 * width]
    out = gpu.silu_mul(gate_up)
    assert out.is_contiguous()
    torch.testing.assert_close(out.float(), reference.silu_mul(gate_up), **CLOSE[dtype])


def test_silu_of_huge_gates_is_no_nan() -> None:
    out = gpu.silu_mul(torch.tensor([[-1e30, 1e30, -200.0, 1.0, 1.0, 1.0]]))
    torch.testing.assert_close(out, torch.tensor([[0.0, 1e30, 0.0]]))


# --- the cache -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cache", [torch.float32, torch.bfloat16, *EIGHT_BITS])
def test_written_tokens_lie_in_their_slots_and_nothing_else_changes(cache: torch.dtype) -> None:
    """K8, K12: slices of a fused projection; two padded rows."""
    ours, theirs = (KVCache(2, 5, 8, 3, 80, dtype=cache) for _ in range(2))
    fused = torch.randn(5, 9, 80).to(torch.bfloat16 if cache == torch.bfloat16 else torch.float32)
    fused[2] = NAN
    slots = torch.tensor([39, 0, -1, 8, -1])
    gpu.write_kv(fused[:, 3:6], fused[:, 6:], ours.layer(1), slots)
    reference.write_kv(fused[:, 3:6], fused[:, 6:], theirs.layer(1), slots)
    same(ours, theirs, atol=0.0, rtol=0.0)


@pytest.mark.parametrize("cache", EIGHT_BITS)
def test_eight_bits_are_those_of_plain_torch_for_all_sizes_of_values(cache: torch.dtype) -> None:
    torch.manual_seed(1)
    # A seventh of all float16, as parts of heads that reach from zero to the type's end; and the ends of float32.
    halves = torch.arange(-(2**15), 2**15, 7).to(torch.int16).view(torch.float16).float()
    halves = halves[halves.isfinite()][: 64 * 128].view(4, 32, 64)
    ends = torch.randn(32, 64) * torch.logspace(-44, 38, 32)[:, None]
    x = torch.cat([halves, ends[None], torch.zeros(1, 32, 64)])
    x[3, 0, 5], x[4, 0, 6] = NAN, float("inf")
    ours = KVCache(1, len(x), 1, 32, 64, dtype=cache)
    gpu.write_kv(x, x, ours.layer(0), torch.arange(len(x)))
    values, scale = quantise(x, cache)
    layer = ours.layer(0)
    assert layer.k_scale is not None
    torch.testing.assert_close(layer.k_scale[:, 0], scale, rtol=0.0, atol=0.0, equal_nan=True)
    sound = scale.isfinite()
    assert int((~sound).sum()) == 2
    assert torch.equal(layer.k[:, 0].view(torch.int8)[sound], values.view(torch.int8)[sound])


@triton.jit
def read_bytes(bytes_ptr: tl.tensor, out_ptr: tl.tensor) -> None:
    at = tl.arange(0, 256)
    tl.store(out_ptr + at, decode(tl.load(bytes_ptr + at)))


def test_every_byte_of_e4m3_is_read_as_torch_reads_it() -> None:
    every, out = torch.arange(256).to(torch.uint8), torch.empty(256)
    read_bytes[(1,)](every, out)
    torch.testing.assert_close(out, every.view(torch.float8_e4m3fn).float(), rtol=0.0, atol=0.0, equal_nan=True)


@pytest.mark.parametrize("cache", [torch.float32, torch.bfloat16, *EIGHT_BITS])
@pytest.mark.parametrize(("block_size", "kv_heads", "dim"), [(8, 2, 16), (3, 1, 5), (100, 3, 64)])
def test_blocks_are_copied_in_every_layer_and_only_these(
    block_size: int, kv_heads: int, dim: int, cache: torch.dtype
) -> None:
    pool = KVCache(2, 7, block_size, kv_heads, dim, dtype=cache)
    data = pool.data.view(torch.int8)
    data.copy_(torch.randint(-128, 128, data.shape).to(torch.int8))
    before, scales = data.clone(), None
    if pool.scales is not None:
        scales = pool.scales.normal_().clone()
    gpu.copy_blocks(pool, torch.tensor([1, 4, 4]), torch.tensor([0, 5, 6]))
    order = torch.tensor([1, 1, 2, 3, 4, 4, 4])
    assert torch.equal(data, before[:, :, order])
    if pool.scales is not None:
        assert scales is not None
        assert torch.equal(pool.scales, scales[:, :, order])


def test_runs_of_copies_give_what_the_copies_give_one_after_the_other() -> None:
    rng = random.Random(0)
    for count in [0, 1, *[rng.randint(2, 30) for _ in range(40)]]:
        pairs = [(rng.randrange(12), rng.randrange(12)) for _ in range(count)]
        one_by_one, by_runs = list(range(12)), list(range(12))
        for source, destination in pairs:
            one_by_one[destination] = one_by_one[source]
        runs = at_once(pairs)
        for run in runs:
            found = [by_runs[source] for source, _ in run]
            assert len({destination for _, destination in run}) == len(run), "no two to one place"
            assert not {s for s, d in run if s != d} & {d for s, d in run if s != d}, "none reads what another writes"
            for (_, destination), block in zip(run, found, strict=True):
                by_runs[destination] = block
        assert by_runs == one_by_one
        assert [pair for run in runs for pair in run] == pairs
    assert len(at_once([(0, 5), (1, 6), (0, 7)])) == 1


@pytest.mark.parametrize("rows", [0, 1])
def test_no_rows_are_no_trouble(rows: int) -> None:
    cache = KVCache(1, 2, 16, 2, 64)
    slots = torch.full((rows,), 3)
    assert gpu.add_rms_norm(torch.ones(rows, 32), None, torch.ones(32), 1e-5)[0].shape == (rows, 32)
    assert gpu.rope_write_kv(torch.ones(rows, 8, 64), turns(rows, 64), cache.layer(0), slots, 4).shape == (rows, 4, 64)
    assert gpu.silu_mul(torch.ones(rows, 64)).shape == (rows, 32)
    gpu.write_kv(torch.ones(rows, 2, 64), torch.ones(rows, 2, 64), cache.layer(0), slots)
    gpu.copy_blocks(cache, torch.zeros(rows).long(), torch.ones(rows).long())


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
        slots = torch.tensor([11 * 16 + 3, 9 * 16, 2])
        kv = torch.randn(2, 3, heads, dim)
        reference.write_kv(kv[0], kv[1], near, slots)
        gpu.write_kv(kv[0], kv[1], far, slots)
        for number in (11, 9, 2):
            assert torch.equal(far.k[number], near.k[number])
            assert torch.equal(far.v[number], near.v[number])
        qkv = torch.cat([torch.randn(3, 4, dim), torch.randn(3, 4, dim)], dim=1)
        reference.rope_write_kv(qkv.clone(), None, near, slots, 4)
        gpu.rope_write_kv(qkv, None, far, slots, 4)
        for number in (11, 9, 2):
            assert torch.equal(far.k[number], near.k[number])
        del flat, far


def test_a_head_that_is_not_in_one_piece_is_refused() -> None:
    cache = KVCache(1, 2, 16, 2, 64)
    with pytest.raises(ValueError, match="make them contiguous"):
        gpu.write_kv(torch.ones(1, 64, 2).mT, torch.ones(1, 2, 64), cache.layer(0), torch.tensor([0]))
