"""Every kernel of the GPU path on random data, against float64.

Each is run on fresh inputs twice. While it runs, memory that it takes for its results is full of NaN (an integer's
largest value), and so is a cache wherever no token lies: what a kernel does not write, or must not read, shows.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from torch import Tensor

from bench.gpu import oracle
from bench.gpu.judge import ROOM, Wrong, distance, poisoned
from bench.gpu.made import GARBAGE, Steps, random_like, sequences
from bench.gpu.oracle import bits
from bench.gpu.report import Report
from bench.gpu.sizes import Sizes
from kernels import triton as gpu
from kernels.api import CacheLayer, KVCache
from kernels.quantised import quantise
from kernels.triton import grouped

ROUNDS = 2
STORED = {torch.int8: 0.51, torch.float8_e4m3fn: 16.5}
"""Of a stored number's distance from the true one, in units of its scale: half a step of int8; half the largest step of
fp8, between 256 and 448."""
CACHES = (torch.int8, torch.float8_e4m3fn)
NAN = float("nan")


class Checks:
    def __init__(self, report: Report, sizes: Sizes, device: torch.device, seed: int) -> None:
        self._report, self._sizes, self._device = report, sizes, device
        self._rng = np.random.default_rng(seed)
        torch.manual_seed(seed)

    def _check(self, name: str, once: Callable[[], float]) -> None:
        """once: one round on new inputs; it gives how far its worst number is off, and raises when that is too far."""

        def all_rounds() -> None:
            worst = max(once() for _ in range(ROUNDS))
            if self._device.type == "cuda":
                torch.cuda.synchronize(self._device)
            self._report.row(name, ok=True, note=f"off by {worst:.1e} at most")

        self._report.attempt(name, all_rounds, check=True)

    def _random(self, *shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
        return random_like(shape, dtype, self._device)

    def run(self) -> None:
        sizes = self._sizes
        self.rows()
        for dim, kind in itertools.product(sorted({dim for dim, _ in sizes.check_heads}), (torch.bfloat16, *CACHES)):
            self.storing(dim, kind)
        self._check("copy_blocks", self._copies)
        self._check("pick, a token a row", self._picks)
        # Each is a kernel of its own, which takes seconds to compile: hence not all pairs.
        for dim, group in sizes.check_heads:
            self.attention(dim, group, torch.bfloat16)
        last = sizes.check_heads[-1]
        self.variants(*last)
        self._check(f"grouped prefixes, head_dim {last[0]}", lambda: self._grouped(*last))
        for kind in CACHES:
            self.attention(*last, kind)
        self.attention(*sizes.check_heads[0], torch.float16)

    # --- rows -----------------------------------------------------------------------------------------------------

    def rows(self) -> None:
        for dtype in (torch.bfloat16, torch.float32):
            name = str(dtype).removeprefix("torch.")
            self._check(f"add_rms_norm, {name}", partial(self._norm, dtype, True))
            self._check(f"rms_norm alone, {name}", partial(self._norm, dtype, False))
            self._check(f"silu_mul, {name}", partial(self._silu, dtype))

    def _norm(self, dtype: torch.dtype, with_residual: bool) -> float:
        rows, hidden = self._sizes.check_rows, self._sizes.check_hidden
        x, weight = self._random(rows, hidden, dtype=dtype), self._random(hidden, dtype=dtype)
        residual = self._random(rows, hidden, dtype=dtype) if with_residual else None
        total = x if residual is None else (x.float() + residual.float()).to(dtype)
        expected = oracle.rms_norm(total, weight, 1e-5)
        total = total.clone().double()
        with poisoned():
            out, after = gpu.add_rms_norm(x, residual, weight, 1e-5)
        return max(distance(out, expected, ROOM[dtype]), distance(after, total, ROOM[dtype], "the sum"))

    def _silu(self, dtype: torch.dtype) -> float:
        gate_up = self._random(self._sizes.check_rows, 2 * self._sizes.check_hidden + 32, dtype=dtype)
        with poisoned():
            out = gpu.silu_mul(gate_up)
        return distance(out, oracle.silu_mul(gate_up), ROOM[dtype])

    # --- storing --------------------------------------------------------------------------------------------------

    def _empty(self, blocks: int, kv_heads: int, dim: int, kind: torch.dtype) -> CacheLayer:
        """A layer in which no token lies; where eight bits know no NaN, the scales are NaN."""
        layer = KVCache(1, blocks, self._sizes.block_size, kv_heads, dim, dtype=kind, device=self._device).layer(0)
        for values, scales in ((layer.k, layer.k_scale), (layer.v, layer.v_scale)):
            if kind == torch.int8:
                values.fill_(77)
            elif scales is None:
                values.fill_(NAN)
            else:
                values.copy_(torch.full(values.shape, NAN).to(kind))
            if scales is not None:
                scales.fill_(NAN)
        return layer

    def storing(self, dim: int, kind: torch.dtype) -> None:
        name = f"{str(kind).removeprefix('torch.')} cache, head_dim {dim}"
        self._check(f"write_kv, {name}", lambda: self._write(dim, kind))
        self._check(f"rope_write_kv, {name}", lambda: self._rope(dim, kind, False))
        self._check(f"rope_write_kv with norms, {name}", lambda: self._rope(dim, kind, True))

    def _slots(self, blocks: int) -> Tensor:
        """A slot a row, all different, and some rows of padding."""
        found = self._rng.permutation(blocks * self._sizes.block_size)[: self._sizes.check_rows]
        found[1::4] = -1
        return torch.from_numpy(found).to(self._device)

    def _blocks(self) -> int:
        return 2 + self._sizes.check_rows // self._sizes.block_size

    def _write(self, dim: int, kind: torch.dtype) -> float:
        rows, blocks, kv_heads = self._sizes.check_rows, self._blocks(), 3
        layer, slots = self._empty(blocks, kv_heads, dim, kind), self._slots(blocks)
        k, v = self._random(rows, kv_heads, dim), self._random(rows, kv_heads, dim)
        gpu.write_kv(k, v, layer, slots)
        return self._stored(layer, slots, k.double(), v.double(), 0.0)

    def _rope(self, dim: int, kind: torch.dtype, with_norms: bool) -> float:
        rows, blocks, kv_heads, heads = self._sizes.check_rows, self._blocks(), 3, 6
        layer, slots = self._empty(blocks, kv_heads, dim, kind), self._slots(blocks)
        qkv = self._random(rows, heads + 2 * kv_heads, dim)
        angles = torch.rand(rows, dim // 2, device=self._device) * 6
        rotation = angles.cos(), angles.sin()
        norms = (self._random(dim), self._random(dim)) if with_norms else None
        q, k, v = qkv.double().split([heads, kv_heads, kv_heads], dim=1)
        if norms is not None:
            q, k = oracle.rms_norm(q, norms[0], 1e-5), oracle.rms_norm(k, norms[1], 1e-5)
        q, k = oracle.rotate(q, *rotation), oracle.rotate(k, *rotation)
        v = v.clone()
        with poisoned():
            out = gpu.rope_write_kv(qkv, rotation, layer, slots, heads, norms=norms, eps=1e-5)
        room = ROOM[torch.bfloat16]
        return max(distance(out, q, room, "q"), self._stored(layer, slots, k, v, room))

    def _stored(self, layer: CacheLayer, slots: Tensor, k: Tensor, v: Tensor, room: float) -> float:
        """How far what lies in the slots is from k and v, and whether everything else is as empty as it was."""
        live = slots >= 0
        worst = 0.0
        blocks, _, kv_heads, dim = layer.k.shape
        empty = self._empty(blocks, kv_heads, dim, layer.k.dtype)
        for name, cache, scales, nothing, true in (
            ("K", layer.k, layer.k_scale, empty.k, k[live]),
            ("V", layer.v, layer.v_scale, empty.v, v[live]),
        ):
            found = oracle.values(cache, scales, slots[live])
            if scales is None:
                worst = max(worst, distance(found, true, room, name))
            else:
                steps = scales.flatten(0, 1)[slots[live]].double()[..., None]
                off = (found - true).abs() / steps - room * true.abs().amax(-1, keepdim=True) / steps
                if not float(off.max()) <= STORED[cache.dtype]:
                    raise Wrong(f"{name} is stored {float(off.max()):.3g} of its scale off")
                worst = max(worst, float(((found - true).abs() / true.abs().amax(-1, keepdim=True)).max()))
            untouched = torch.ones(cache.shape[0] * cache.shape[1], dtype=torch.bool, device=self._device)
            untouched[slots[live]] = False
            now, before = (bits(x.flatten(0, 1))[untouched] for x in (cache, nothing))
            if not torch.equal(now, before):
                raise Wrong(f"{name} was written in a slot that no row names")
        return worst

    def _copies(self) -> float:
        for kind in (torch.bfloat16, *CACHES):
            cache = KVCache(3, 9, self._sizes.block_size, 2, 64, dtype=kind, device=self._device)
            bits(cache.data).copy_(torch.randint(0, 100, cache.data.shape, device=self._device))
            if cache.scales is not None:
                cache.scales.uniform_()
            order = self._rng.permutation(9)
            src, dst = (torch.from_numpy(part.copy()).to(self._device) for part in (order[:4], order[4:8]))
            expected = bits(cache.data).clone()
            expected[:, :, dst] = expected[:, :, src]
            scales = None if cache.scales is None else cache.scales.clone()
            gpu.copy_blocks(cache, src, dst)
            if not torch.equal(bits(cache.data), expected):
                raise Wrong(f"a {kind} cache has other bits than those copied")
            if scales is not None and cache.scales is not None:
                scales[:, :, dst] = scales[:, :, src]
                if not torch.equal(cache.scales, scales):
                    raise Wrong(f"the scales of a {kind} cache are not those copied")
        return 0.0

    # --- attention ------------------------------------------------------------------------------------------------

    def _filled(self, steps: Steps, kv_heads: int, dim: int, kind: torch.dtype, window: int | None) -> CacheLayer:
        """A layer with random tokens where the sequences' lie, but not in blocks wholly before their windows."""
        layer = self._empty(int(steps.tables[steps.tables < GARBAGE].max()) + 3, kv_heads, dim, kind)
        for seq, length in enumerate(steps.lengths.tolist()):
            rows = int(steps.starts[seq + 1] - steps.starts[seq])
            low = 0 if window is None else max(0, length - rows - window + 1)
            low -= low % steps.block_size
            slots = torch.from_numpy(steps.slots(seq, low, length)).to(self._device)
            for cache, scales in ((layer.k, layer.k_scale), (layer.v, layer.v_scale)):
                new = self._random(len(slots), kv_heads, dim)
                if scales is None:
                    cache.view(-1, kv_heads, dim)[slots] = new.to(kind)
                else:
                    stored, size = quantise(new, kind)
                    bits(cache).view(-1, kv_heads, dim)[slots] = bits(stored)
                    scales[slots // steps.block_size, slots % steps.block_size] = size
        return layer

    def _lengths(self) -> tuple[list[int], list[int]]:
        """Contexts, and how many rows of each are this step's where some are chunks."""
        lengths = list(self._sizes.check_lengths)
        return lengths, [1 if i % 2 else min(length, 3 * self._sizes.check_rows) for i, length in enumerate(lengths)]

    def attention(self, dim: int, group: int, kind: torch.dtype) -> None:
        lengths, mixed = self._lengths()
        name = f"head_dim {dim}, GQA {group}, {str(kind).removeprefix('torch.')}"
        for what, at, queries in (
            ("decode", lengths * 8, [1] * 8 * len(lengths)),
            ("decode of few", lengths[-2:], [1, 1]),
            ("chunks beside decodes", lengths, mixed),
        ):
            self._check(f"{what}, {name}", partial(self._attend, dim, group, kind, at, queries))

    def variants(self, dim: int, group: int) -> None:
        lengths, mixed = self._lengths()
        for what, options in (("in a window", {"window": 33}), ("with a softcap", {"softcap": 20.0})):
            for how, queries in (("decode", [1] * len(lengths)), ("chunks", mixed)):
                name = f"{how} {what}, head_dim {dim}, GQA {group}"
                self._check(name, partial(self._attend, dim, group, torch.bfloat16, lengths, queries, **options))

    def _attend(
        self,
        dim: int,
        group: int,
        kind: torch.dtype,
        lengths: list[int],
        queries: list[int],
        window: int | None = None,
        softcap: float | None = None,
    ) -> float:
        # As many as in the parts that take times: what is compiled here need not be again there.
        kv_heads, size = max(2, self._sizes.heads // group), self._sizes.block_size
        blocks = sum(-(-length // size) for length in lengths) + 3
        steps = sequences(lengths, queries, blocks, size, self._rng)
        layer = self._filled(steps, kv_heads, dim, kind, window)
        for seq, length in enumerate(lengths if window is not None else []):
            # Blocks that no row sees have been given back.
            gone = max(0, length - queries[seq] - (window or 0) + 1) // size
            steps.tables[seq, :gone] = GARBAGE
        dtype = torch.float16 if kind == torch.float16 else torch.bfloat16
        # A view of a wider row, as the projections leave it; and two rows of padding behind all sequences.
        q = self._random(sum(queries) + 2, (group + 2) * kv_heads, dim, dtype=dtype)[:, : group * kv_heads]
        with poisoned():
            out = gpu.paged_attention(q, layer, steps.metadata(self._device), dim**-0.5, window=window, softcap=softcap)
        return distance(out, oracle.attention(q, layer, steps, dim**-0.5, window, softcap), ROOM[dtype])

    def _grouped(self, dim: int, group: int) -> float:
        """Two tenants with a long prefix each, and one sequence beside them; grouped, plain and true."""
        size, kv_heads = self._sizes.block_size, max(2, self._sizes.heads // group)
        shared = grouped.MIN_SAVED // size
        lengths = [shared * size + int(self._rng.integers(1, 70)) for _ in range(6)] + [50]
        steps = sequences(lengths, [1] * 7, 4 * shared + 60, size, self._rng, shared=shared)
        # The second tenant's prefix lies in blocks of its own.
        used = set(steps.tables[steps.tables < GARBAGE].tolist())
        free = [block for block in range(4 * shared + 60) if block not in used]
        steps.tables[3:6, :shared] = np.array(free[:shared], np.int32)
        steps.tables[6, :4] = np.array(free[shared : shared + 4], np.int32)
        layer = self._filled(steps, kv_heads, dim, torch.bfloat16, None)
        q = self._random(7, group * kv_heads, dim)
        meta = steps.metadata(self._device)
        with poisoned():
            plain = gpu.paged_attention(q, layer, meta, dim**-0.5)
        meta = steps.metadata(self._device)
        meta.groups = grouped.find_groups(steps.tables, steps.starts, steps.lengths, size)
        if meta.groups is None or len(meta.groups.blocks) != 2:
            raise Wrong("two tenants' prefixes were not found")
        with poisoned():
            out = gpu.paged_attention(q, layer, meta, dim**-0.5)
        grouped.compare(out, plain)
        expected = oracle.attention(q, layer, steps, dim**-0.5)
        return max(distance(x, expected, ROOM[torch.bfloat16]) for x in (plain, out))

    # --- drawing --------------------------------------------------------------------------------------------------

    def _picks(self) -> float:
        rows, vocabulary = self._sizes.check_rows, self._sizes.check_vocabulary
        logits = self._random(rows, vocabulary, dtype=torch.float32) * 3
        logits[:, ::7] = float("-inf")
        choices = [(0.0, 0.3, 0.7, 1.0), (0.0, 0.01), (0.0, 1.0, 40.0), (1.0, 0.9, 0.5)]
        settings = torch.tensor(
            [[*(float(self._rng.choice(each)) for each in choices), self._rng.random()] for _ in range(rows)],
            dtype=torch.float64,
            device=self._device,
        )
        logits[-1, vocabulary // 2] = NAN
        with poisoned():
            tokens = gpu.pick(logits, settings).tolist()
        if tokens[-1] != -1:
            raise Wrong(f"a row with a NaN gave token {tokens[-1]}, not -1")
        for row, token in enumerate(tokens[:-1]):
            if not 0 <= token < vocabulary or not oracle.may_be_drawn(logits[row], settings[row], token):
                raise Wrong(f"row {row} gave token {token} with settings {settings[row].tolist()}")
        return 0.0


def run(report: Report, sizes: Sizes, device: torch.device, seed: int) -> None:
    Checks(report, sizes, device, seed).run()
