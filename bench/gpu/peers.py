"""Others' attention beside ours, on the same numbers: torch's own, and FlashAttention and FlashInfer where installed.

A peer that is absent, or fails, or gives another result, is a row that says so. All but FlashInfer get K and V in one
piece for each sequence, which spares them the block tables. Time a peer takes to compile is not counted.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from bench.gpu.counts import attention_flops, decode_bytes
from bench.gpu.made import random_like

if TYPE_CHECKING:
    from bench.gpu.attention import Bench

CLOSE = 5e-2
"""Between two results in bfloat16, against the largest number of a row."""
COMPILE_S = 15.0
"""What flex_attention takes to be compiled, roughly; with less left it is not begun."""

Run = Callable[[], Tensor]
Maker = Callable[[Tensor, Tensor, Tensor, bool], Run]
"""From q [B, rows, heads, dim], k and v [B, tokens, kv_heads, dim] and whether it is causal (else there is one row that
sees all): what gives [B, rows, heads, dim]."""


def sdpa(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Run:
    heads, keys, values = (x.transpose(1, 2) for x in (q, k, v))

    def run() -> Tensor:
        attend = torch.nn.functional.scaled_dot_product_attention
        return attend(heads, keys, values, is_causal=causal, enable_gqa=True).transpose(1, 2)

    return run


def flex(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Run:
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    attend = torch.compile(flex_attention, dynamic=False) if q.is_cuda else flex_attention
    mask = None
    if causal:
        rows, tokens = q.shape[1], k.shape[1]
        mask = create_block_mask(lambda b, h, i, j: i >= j, None, None, rows, tokens, device=q.device.type)
    # FlexAttention's kernels want their inputs in one piece, heads first.
    heads, keys, values = (x.transpose(1, 2).contiguous() for x in (q, k, v))
    grouped = q.shape[2] != k.shape[2]

    def run() -> Tensor:
        out: Tensor = attend(heads, keys, values, block_mask=mask, enable_gqa=grouped)
        return out.transpose(1, 2)

    return run


def flash_attn(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Run:
    from flash_attn import flash_attn_func, flash_attn_with_kvcache  # type: ignore[import-not-found]

    if causal:
        return lambda: flash_attn_func(q, k, v, causal=True)
    lengths = torch.full((len(q),), k.shape[1], dtype=torch.int32, device=q.device)
    return lambda: flash_attn_with_kvcache(q, k, v, cache_seqlens=lengths)


def flashinfer(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Run:
    import flashinfer as peer  # type: ignore[import-not-found]

    batch, tokens, kv_heads, dim = k.shape
    heads, page = q.shape[2], 16
    if causal:
        starts = torch.arange(batch + 1, dtype=torch.int32, device=q.device) * tokens
        space = torch.empty(256 << 20, dtype=torch.uint8, device=q.device)
        ragged = peer.BatchPrefillWithRaggedKVCacheWrapper(space, "NHD")
        ragged.plan(starts, starts, heads, kv_heads, dim, causal=True, q_data_type=q.dtype)
        flat = [x.flatten(0, 1) for x in (q, k, v)]
        return lambda: ragged.run(*flat).view(q.shape)
    pages = tokens // page
    space = torch.empty(256 << 20, dtype=torch.uint8, device=q.device)
    paged = peer.BatchDecodeWithPagedKVCacheWrapper(space, "NHD", use_tensor_cores=heads > kv_heads)
    starts = torch.arange(batch + 1, dtype=torch.int32, device=q.device) * pages
    order = torch.arange(batch * pages, dtype=torch.int32, device=q.device)
    last = torch.full((batch,), page, dtype=torch.int32, device=q.device)
    paged.plan(starts, order, last, heads, kv_heads, dim, page, q_data_type=q.dtype, kv_data_type=k.dtype)
    cache = k.view(-1, page, kv_heads, dim), v.view(-1, page, kv_heads, dim)
    return lambda: paged.run(q[:, 0], cache)[:, None]


PEERS: dict[str, tuple[str, Maker]] = {
    "torch's scaled_dot_product_attention": ("torch", sdpa),
    "flex_attention": ("torch.nn.attention.flex_attention", flex),
    "flash_attn": ("flash_attn", flash_attn),
    "flashinfer": ("flashinfer", flashinfer),
}


def decode(bench: Bench, kv_heads: int, batch: int, tokens: int, bandwidth: float) -> None:
    moved = decode_bytes([tokens] * batch, bench.sizes.heads, kv_heads, bench.sizes.dim)
    _each(
        bench,
        f"decode of {batch} x {tokens:,} tokens",
        (batch, 1, tokens, kv_heads),
        lambda seconds: (100 * moved / seconds / bandwidth, "% of copy"),
    )


def prefill(bench: Bench, kv_heads: int, count: int, tokens: int) -> None:
    flops = count * attention_flops(tokens, tokens, bench.sizes.heads, bench.sizes.dim)
    _each(
        bench,
        f"prefill of {count} x {tokens:,} tokens",
        (count, tokens, tokens, kv_heads),
        lambda seconds: (flops / seconds / 1e12, "TFLOP/s"),
    )


def _each(
    bench: Bench, what: str, shape: tuple[int, int, int, int], figure: Callable[[float], tuple[float, str]]
) -> None:
    batch, rows, tokens, kv_heads = shape
    heads, dim, device = bench.sizes.heads, bench.sizes.dim, bench.device
    made: dict[str, Tensor] = {}
    for name, (module, maker) in PEERS.items():
        title = f"{name}: {what}"
        if not _installed(module):
            bench.report.row(title, note="not installed, left out")
            continue

        def one(name: str = name, maker: Maker = maker, title: str = title) -> None:
            if name == "flex_attention" and device.type == "cuda" and bench.report.left() < COMPILE_S:
                bench.report.row(title, note="left out: no time to compile it")
                return
            if not made:
                made["q"] = random_like((batch, rows, heads, dim), torch.bfloat16, device)
                made["k"], made["v"] = (
                    random_like((batch, tokens, kv_heads, dim), torch.bfloat16, device) for _ in range(2)
                )
            run = maker(made["q"], made["k"], made["v"], rows > 1)
            off = _apart(run(), made)
            if off > CLOSE:
                raise RuntimeError(f"its result is off by {off:.2g}")
            seconds = bench.clock.seconds(run)
            note = f"{1e6 * seconds:,.1f} us {bench.clock.remark}".rstrip()
            bench.report.row(title, *figure(seconds), note=note)

        bench.report.attempt(title, one)


def _installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def _apart(out: Tensor, made: dict[str, Tensor]) -> float:
    """How far its last row of the first sequence is from the truth; all rows together would take long."""
    q, k, v = (made[name][0].double() for name in ("q", "k", "v"))
    group = q.shape[1] // k.shape[1]
    last = q[-1].unflatten(0, (-1, group))
    scores = torch.einsum("kgd,lkd->kgl", last, k) * q.shape[-1] ** -0.5
    expected = torch.einsum("kgl,lkd->kgd", scores.softmax(dim=-1), v).flatten(0, 1)
    off = (out[0, -1].double() - expected).abs() / expected.abs().amax(dim=-1, keepdim=True)
    return float(off.max())
