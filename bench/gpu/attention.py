"""Attention kernels by the clock: decodes against the copy bandwidth, prefixes grouped and not, chunks in FLOP/s.

Times are of one layer whose step has its plan, which a step makes once for all its layers.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from torch import Tensor

from bench.gpu import peers
from bench.gpu.clock import Clock, copy_bytes_s
from bench.gpu.counts import attention_flops, decode_bytes
from bench.gpu.made import Steps, random_like, sequences
from bench.gpu.report import Report
from bench.gpu.sizes import TARGET_BATCH, TARGET_CONTEXT, Sizes
from kernels import triton as gpu
from kernels.api import AttentionMetadata, CacheLayer
from kernels.triton import grouped

DTYPE = torch.bfloat16


class Bench:
    def __init__(self, report: Report, sizes: Sizes, device: torch.device, seed: int) -> None:
        self.report, self.sizes, self.device = report, sizes, device
        self.clock = Clock(device)
        self._rng = np.random.default_rng(seed)
        torch.manual_seed(seed)
        self._pool: Tensor | None = None

    def copy(self) -> float:
        """Bytes a second, told as a row."""
        bandwidth = copy_bytes_s(self.clock, self.sizes.copy_bytes)
        self.report.row("copy bandwidth", bandwidth / 1e9, "GB/s", note="bytes read and written")
        return bandwidth

    def layer(self, kv_heads: int, tokens: int) -> CacheLayer:
        """Random K and V with blocks for so many tokens, or what the pool's bytes hold. All share one memory."""
        sizes = self.sizes
        block = sizes.block_size * kv_heads * sizes.dim
        most = sizes.pool_bytes // (2 * DTYPE.itemsize * block)
        blocks = min(most, -(-tokens // sizes.block_size) + 8)
        if self._pool is None:
            self._pool = random_like((sizes.pool_bytes // DTYPE.itemsize,), DTYPE, self.device)
        shape = (blocks, sizes.block_size, kv_heads, sizes.dim)
        k, v = self._pool[: 2 * blocks * block].view(2, *shape)
        return CacheLayer(k, v)

    def step(self, lengths: list[int], queries: list[int], layer: CacheLayer, shared: int = 0) -> Steps:
        blocks, size = layer.k.shape[:2]
        return sequences(lengths, queries, blocks, size, self._rng, shared=shared)

    def q(self, rows: int) -> Tensor:
        return random_like((rows, self.sizes.heads, self.sizes.dim), DTYPE, self.device)

    def work(self, q: Tensor, layer: CacheLayer, meta: AttentionMetadata) -> Callable[[], Tensor]:
        scale = self.sizes.dim**-0.5
        return lambda: gpu.paged_attention(q, layer, meta, scale)


def decode(report: Report, sizes: Sizes, device: torch.device, seed: int) -> None:
    """Batches x contexts x query heads of a KV head; equal lengths, nothing shared, blocks all over the pool."""
    bench = Bench(report, sizes, device, seed)
    bandwidth = bench.copy()

    def one(group: int, context: int, batch: int) -> None:
        kv_heads = sizes.heads // group
        layer = bench.layer(kv_heads, batch * context)
        contexts = [context] * batch
        meta = bench.step(contexts, [1] * batch, layer).metadata(device)
        seconds = bench.clock.seconds(bench.work(bench.q(batch), layer, meta))
        moved = decode_bytes(contexts, sizes.heads, kv_heads, sizes.dim)
        share = 100 * moved / seconds / bandwidth
        judged = batch >= TARGET_BATCH and context >= TARGET_CONTEXT
        report.row(
            _decode_name(group, batch, context),
            share,
            "% of copy",
            note=f"{1e6 * seconds:,.1f} us, {moved / seconds / 1e9:,.0f} GB/s {bench.clock.remark}".rstrip(),
            measures={"copy_share": share} if judged else {},
        )

    # The cases that the target looks at come first, should the time be up.
    cases = [(g, c, b) for g in sizes.groups for c in sizes.contexts for b in sizes.batches]
    cases.sort(key=lambda case: not (case[1] >= TARGET_CONTEXT and case[2] >= TARGET_BATCH))
    for case in cases:
        report.attempt(_decode_name(case[0], case[2], case[1]), partial(one, *case))
    group = sizes.groups[len(sizes.groups) // 2]
    for batch, context in sizes.peer_decodes:
        peers.decode(bench, sizes.heads // group, batch, context, bandwidth)


def _decode_name(group: int, batch: int, context: int) -> str:
    return f"decode of {batch} x {context:,} tokens, GQA {group}"


def prefix(report: Report, sizes: Sizes, device: torch.device, seed: int) -> None:
    """Sequences that share leading tokens, by the grouped and by the plain kernel, which must agree."""
    bench = Bench(report, sizes, device, seed)
    group = sizes.groups[len(sizes.groups) // 2]
    kv_heads, count = sizes.heads // group, sizes.prefix_seqs

    def one(tokens: int) -> None:
        layer = bench.layer(kv_heads, tokens + count * (sizes.suffix + sizes.block_size))
        lengths = [tokens + sizes.suffix] * count
        steps = bench.step(lengths, [1] * count, layer, shared=tokens // sizes.block_size)
        q, plain, together = bench.q(count), steps.metadata(device), steps.metadata(device)
        together.groups = grouped.find_groups(steps.tables, steps.starts, steps.lengths, sizes.block_size)
        if together.groups is None:
            raise RuntimeError("no group was found to pay")
        # Made once, outside: in a step it is the engine that brings it to the device.
        together.groups = grouped.to_device(together.groups, together, sizes.block_size)
        runs = bench.work(q, layer, plain), bench.work(q, layer, together)
        grouped.compare(runs[1](), runs[0]())
        alone, shared = (bench.clock.seconds(run) for run in runs)
        judged = {"grouped_times": alone / shared} if tokens == sizes.prefixes[-1] else {}
        report.row(
            f"grouped over ungrouped, {count} x {tokens:,} shared",
            alone / shared,
            "x",
            note=f"{1e6 * alone:,.1f} us ungrouped, {1e6 * shared:,.1f} us grouped; {sizes.suffix} tokens of its own",
            measures=judged,
        )

    for tokens in sizes.prefixes:
        report.attempt(f"prefix of {tokens:,}", partial(one, tokens))


def prefill(report: Report, sizes: Sizes, device: torch.device, seed: int) -> None:
    """Prompt chunks, some behind a cached context."""
    bench = Bench(report, sizes, device, seed)
    group = sizes.groups[len(sizes.groups) // 2]
    kv_heads = sizes.heads // group

    def one(count: int, tokens: int, cached: int) -> None:
        length = tokens + cached
        layer = bench.layer(kv_heads, count * length)
        meta = bench.step([length] * count, [tokens] * count, layer).metadata(device)
        seconds = bench.clock.seconds(bench.work(bench.q(count * tokens), layer, meta))
        flops = count * attention_flops(length, tokens, sizes.heads, sizes.dim)
        note = f"{1e6 * seconds:,.1f} us {bench.clock.remark}".rstrip()
        report.row(_prefill_name(count, tokens, cached), flops / seconds / 1e12, "TFLOP/s", note=note)

    for case in sizes.prefill:
        report.attempt(_prefill_name(*case), partial(one, *case))
    for count, tokens in sizes.peer_prefills:
        peers.prefill(bench, kv_heads, count, tokens)


def _prefill_name(count: int, tokens: int, cached: int) -> str:
    behind = f" behind {cached:,}" if cached else ""
    return f"prefill of {count} x {tokens:,} tokens{behind}"
