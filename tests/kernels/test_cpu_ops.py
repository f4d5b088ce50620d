"""What is the C++ path's own: how work is cut, shared and merged, what it takes as input, and what it does without."""

from __future__ import annotations

import ctypes
import random
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from kernels import api, reference
from kernels.api import AttentionMetadata, CacheLayer, KVCache
from kernels.cpu import build, ops
from tests.kernels.conftest import LEVELS, use_level
from tests.kernels.test_torch_paged import Case

CLOSE = {
    torch.float32: {"atol": 2e-5, "rtol": 1e-4},
    torch.bfloat16: {"atol": 2e-2, "rtol": 2e-2},
    torch.float16: {"atol": 2e-3, "rtol": 2e-3},
}


@pytest.fixture(params=LEVELS)
def level(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    use_level(request.param, monkeypatch)
    name: str = request.param
    return name


def share(meta: AttentionMetadata, members: list[int], blocks: int) -> None:
    """From now on these sequences begin with the same blocks."""
    for s in members[1:]:
        meta.block_tables[s, :blocks] = meta.block_tables[members[0], :blocks]


def plan(
    meta: AttentionMetadata, threads: int, *, per_head: int = 3, kv_heads: int = 2, window: int = 0
) -> list[Tensor]:
    """Ranges [n, 5] (tile or -1, members, begin, end, parts) and parts [m, 3] (range, begin, end)."""
    tables = meta.block_tables
    call = ops._Tables(
        tables.data_ptr(),
        tables.stride(0),
        meta.query_starts.data_ptr(),
        meta.seq_lens.data_ptr(),
        len(meta.seq_lens),
        int(meta.query_starts[-1]),
        16,
        per_head,
        kv_heads,
        window,
    )
    out, parts = torch.full((20000,), -7, dtype=torch.int32), ctypes.c_int32()
    room, given = ctypes.c_void_p(out.data_ptr()), ctypes.byref(parts)
    ranges = ops.load("portable").octavo_plan(ctypes.byref(call), threads, room, len(out), given)
    assert 5 * ranges + 3 * parts.value <= len(out)
    return [out[: 5 * ranges].view(-1, 5), out[5 * ranges :][: 3 * parts.value].view(-1, 3)]


# --- splits and groups ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_long_context_gives_the_same_however_many_threads_split_it(
    level: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """K13"""
    case = Case([2000, 700, 5, 1100], [1, 1, 1, 20], dtype=dtype, dim=32)
    q, layer, meta = case.build()
    expected = reference.paged_attention(q, layer, meta, 0.2)
    cuts = []
    for threads in (1, 2, 3, 16):
        monkeypatch.setattr(ops, "_team", lambda n=threads: ops._Team(n, ops._parallel))
        out = api.paged_attention(q, layer, meta, 0.2)
        torch.testing.assert_close(out.float(), expected, **CLOSE[dtype])
        cuts.append(len(plan(meta, threads)[1]))
    assert cuts[0] == len(plan(meta, 1)[0]), "one thread cuts nothing"
    assert cuts[-1] > cuts[1] > cuts[0]


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_shared_prefix_gives_the_same_as_each_sequence_on_its_own(
    level: str, dtype: torch.dtype, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """K13: two groups, one sequence that shares too little, one alone, one that is a chunk."""
    monkeypatch.setattr(ops, "_team", lambda: ops._Team(threads, ops._parallel))
    lengths = [300, 289, 900, 420, 577, 600, 300, 64]
    q, layer, meta = Case(lengths, [1, 1, 1, 1, 1, 9, 1, 1], dtype=dtype).build()
    share(meta, [0, 1, 3], 18)
    share(meta, [2, 4, 5], 30)
    share(meta, [0, 6], 4)
    ranges = plan(meta, threads)[0]
    groups = {(int(r[1]), int(r[3])) for r in ranges if r[0] < 0}
    assert groups == {(3, 288), (2, 480)}
    expected = reference.paged_attention(q, layer, meta, 0.125)
    torch.testing.assert_close(api.paged_attention(q, layer, meta, 0.125).float(), expected, **CLOSE[dtype])
    apart = replace(meta, block_tables=meta.block_tables.clone())
    copies = CacheLayer(torch.cat([layer.k, layer.k]), torch.cat([layer.v, layer.v]))
    apart.block_tables[0, 0] += len(layer.k)  # the same content elsewhere: nothing to group by for this one
    out = api.paged_attention(q, copies, apart, 0.125)
    torch.testing.assert_close(out.float(), expected, **CLOSE[dtype])


def test_a_prefix_that_many_share_is_attended_to_in_tiles_of_rows(level: str) -> None:
    q, layer, meta = Case([200 + s for s in range(40)], [1] * 40, group=7, kv_heads=1, dim=16).build()
    share(meta, list(range(40)), 10)
    assert sum(int(r[1]) for r in plan(meta, 2, per_head=7, kv_heads=1)[0] if r[0] < 0) == 40
    out = api.paged_attention(q, layer, meta, 0.3)
    torch.testing.assert_close(out, reference.paged_attention(q, layer, meta, 0.3), **CLOSE[torch.float32])


def test_windows_and_prefixes_do_not_mix(level: str) -> None:
    """What a window hides of a shared prefix differs between sequences; a window that hides nothing changes nothing."""
    q, layer, meta = Case([300, 310, 400], [1, 1, 1]).build()
    share(meta, [0, 1, 2], 16)
    for window in (40, 290, 305, 1000):
        expected = reference.paged_attention(q, layer, meta, 0.125, window=window)
        out = api.paged_attention(q, layer, meta, 0.125, window=window)
        torch.testing.assert_close(out, expected, **CLOSE[torch.float32])


@pytest.mark.parametrize("seed", range(30))
def test_a_plan_covers_every_range_once_and_has_no_empty_part(seed: int) -> None:
    """K3"""
    rng = random.Random(seed)
    lengths = [rng.choice([0, 1, 16, 17, rng.randint(1, 5000)]) for _ in range(rng.randint(1, 12))]
    counts = [rng.choice([1, 1, 1, min(length, rng.randint(1, 300))]) for length in lengths]
    starts = torch.tensor([0, *counts]).cumsum(0).int()
    tables = torch.randint(0, 3, (len(lengths), 320), dtype=torch.int32)
    share_at = rng.randint(0, 200)
    tables[:, :share_at] = tables[0, :share_at].clone()
    meta = AttentionMetadata(torch.zeros(0), tables, starts, torch.tensor(lengths).int(), max(counts), max(lengths))
    window = rng.choice([0, 0, 0, 1, 100])
    ranges, parts = plan(meta, rng.choice([1, 2, 7]), window=window)
    assert (parts[:, 1] < parts[:, 2]).all()
    for i, (_, _, begin, end, count) in enumerate(ranges.tolist()):
        own = sorted((b, e) for r, b, e in parts.tolist() if r == i)
        assert len(own) == count
        assert [b for b, _ in own] == [begin, *(e for _, e in own[:-1])]
        assert own[-1][1] == end
    attended = sum((end - begin) * max(1, members) for _, members, begin, end, _ in ranges.tolist())
    if max(counts) == 1:
        seen = [min(length, window or length) for length in lengths]
        assert attended == 2 * sum(seen), "each KV head of each sequence sees its context once"


# --- inputs -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "case",
    [
        Case([37, 5, 300], [1, 1, 20]),
        Case([300, 129], [1, 40], dim=80, group=1, window=50, softcap=4.0),
        Case([64], [64], dim=24, block_size=100),
    ],
)
def test_float16_stays_within_its_own_rounding(level: str, case: Case) -> None:
    q, layer, meta = replace(case, dtype=torch.float16).build()
    options = {"window": case.window, "softcap": case.softcap}
    expected = reference.paged_attention(q, layer, meta, 0.2, **options)
    assert ops.serves_cache(layer.k)
    torch.testing.assert_close(
        api.paged_attention(q, layer, meta, 0.2, **options).float(), expected, **CLOSE[torch.float16]
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("group", "dim"), [(71, 64), (130, 8), (1, 576), (2, 264)])
def test_many_heads_on_one_and_large_heads_agree_with_the_oracle(
    level: str, group: int, dim: int, dtype: torch.dtype
) -> None:
    q, layer, meta = Case([40, 300], [3, 1], kv_heads=1, group=group, dim=dim, dtype=dtype).build()
    expected = reference.paged_attention(q, layer, meta, dim**-0.5)
    torch.testing.assert_close(api.paged_attention(q, layer, meta, dim**-0.5).float(), expected, **CLOSE[dtype])


def test_queries_of_another_type_than_the_cache_come_back_in_their_own(level: str) -> None:
    q, layer, meta = Case([37, 60], [1, 20], dtype=torch.bfloat16).build()
    out = api.paged_attention(q.float(), layer, meta, 0.125)
    assert out.dtype == torch.float32
    torch.testing.assert_close(out, reference.paged_attention(q, layer, meta, 0.125), **CLOSE[torch.bfloat16])


def test_a_head_dim_that_it_does_not_know_goes_through_torch(level: str) -> None:
    q, layer, meta = Case([37, 60], [1, 20], dim=20).build()
    assert not ops.serves_cache(layer.k)
    out = api.paged_attention(q, layer, meta, 0.2)
    torch.testing.assert_close(out, reference.paged_attention(q, layer, meta, 0.2), **CLOSE[torch.float32])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_k_and_v_may_come_head_by_head_and_in_another_type(level: str, dtype: torch.dtype) -> None:
    """K12: transformers' modules give [heads, T, head_dim], transposed."""
    kv = torch.randn(2, 3, 5, 16)
    slots = torch.tensor([7, -1, 30, 0, 15])
    ours, theirs = (KVCache(1, 4, 8, 3, 16, dtype=dtype) for _ in range(2))
    k, v = kv.transpose(1, 2)
    api.write_kv(k, v, ours.layer(0), slots)
    reference.write_kv(k, v, theirs.layer(0), slots)
    assert torch.equal(ours.data, theirs.data)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("size", [1, 5, 37, 4096])
def test_rows_of_any_width_are_normalised_and_gated(level: str, size: int, dtype: torch.dtype) -> None:
    x, residual = torch.randn(2, 40, size).to(dtype)
    weight = torch.rand(size).to(dtype)
    expected, total = reference.add_rms_norm(x, residual, weight, 1e-5)
    out, after = api.add_rms_norm(x.clone(), residual.clone(), weight, 1e-5)
    close = {"atol": 1e-5, "rtol": 1e-5} if dtype == torch.float32 else {"atol": 3e-2, "rtol": 1e-2}
    assert torch.equal(after, total)
    torch.testing.assert_close(out.float(), expected, **close)
    gate_up = torch.cat([x, residual], dim=1)
    torch.testing.assert_close(api.silu_mul(gate_up).float(), reference.silu_mul(gate_up), **close)


def test_infinite_gates_saturate_and_nan_stays(level: str) -> None:
    """The C++ sigmoid neither overflows nor hides what went wrong before it."""
    gate = torch.tensor([[3e38, -3e38, 1e4, -1e4, 0.0, float("nan"), 88.0, -88.0]])
    out = api.silu_mul(torch.cat([gate, torch.ones(1, 8)], dim=1))[0]
    assert out[5].isnan()
    expected = torch.tensor([3e38, 0.0, 1e4, 0.0, 0.0, 88.0, 0.0])
    torch.testing.assert_close(out[[0, 1, 2, 3, 4, 6, 7]], expected, atol=1e-5, rtol=1e-5)


# --- threads and builds -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("borrowed", [True, False])
def test_several_threads_may_call_at_once(borrowed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    use_level("portable", monkeypatch)
    monkeypatch.setattr(ops, "_team", lambda: ops._Team(2, ops._find_parallel() if borrowed else None))
    steps = [Case([700, 300 + s, 40], [1, 1, 20], seed=s, kv_heads=1).build() for s in range(4)]
    expected = [reference.paged_attention(q, layer, meta, 0.125) for q, layer, meta in steps]

    def work(s: int) -> bool:
        q, layer, meta = steps[s]
        outs = [api.paged_attention(q, layer, meta, 0.125) for _ in range(20)]
        return all(torch.allclose(out, expected[s], atol=2e-5, rtol=1e-4) for out in outs)

    with ThreadPoolExecutor(4) as threads:
        assert all(threads.map(work, range(4)))


def test_torch_s_threads_are_found() -> None:
    """Without them every kernel would have to push torch's spinning threads aside."""
    assert ops._find_parallel() is not None


def test_without_a_compiler_torch_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: str) -> str:
        raise build.BuildError("no C++ compiler found")

    monkeypatch.setattr(ops, "open_library", none)
    ops.load.cache_clear()
    ops._loaded.cache_clear()
    try:
        assert ops.why_not() == "no C++ compiler found"
        q, layer, meta = Case([37, 5], [1, 5]).build()
        assert not ops.serves_cache(layer.k)
        out = api.paged_attention(q, layer, meta, 0.125)
        torch.testing.assert_close(out, reference.paged_attention(q, layer, meta, 0.125), atol=2e-5, rtol=1e-4)
        assert api.silu_mul(torch.ones(2, 8)).shape == (2, 4)
    finally:
        ops.load.cache_clear()
        ops._loaded.cache_clear()


def test_a_library_is_keyed_by_its_own_sources_alone() -> None:
    """Work on the decoder must not make everybody build the single kernels again, nor the other way round."""
    step, single = build.sources("step"), build.sources("ops")
    assert any("class Model" in text for text in step)
    assert not any("class Model" in text for text in single)
    assert any("class Plan" in text for text in single)
