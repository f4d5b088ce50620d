"""The C++ decoder step: right against plain arithmetic, and the same whatever runs beside a sequence."""

from __future__ import annotations

import ctypes
import dataclasses

import numpy as np
import pytest

from kernels.cpu.build import BuildError, load
from kernels.cpu.decoder import Batch, Decoder, DecoderWeights, LayerWeights, _Weight, supports
from kernels.cpu.packing import Quantised, Tiles, interleave, pack, pack_bf16, stack
from kernels.cpu.quantising import quantise_4, quantise_8

try:
    load("portable")
except BuildError as error:  # pragma: no cover
    pytest.skip(str(error), allow_module_level=True)

BLOCK = 16
NUM_BLOCKS = 96
LEVELS = ["avx512", "avx2", "portable"]
KV = pytest.mark.parametrize("kv_dtype", ["bfloat16", "int8"])
FORMS = ["low-bit", "bf16", "mixed", "mixed, tied"]


def quantised_4(rng: np.random.Generator, outputs: int, inputs: int) -> Quantised:
    groups = (outputs, inputs // 32)
    scale = rng.uniform(0.005, 0.02, groups).astype(np.float16)
    minimum = (-7.5 * scale.astype(np.float32) + rng.uniform(-0.01, 0.01, groups)).astype(np.float16)
    return Quantised(rng.integers(0, 16, (outputs, inputs), dtype=np.uint8), scale, minimum, 4)


def bf16(values: np.ndarray) -> np.ndarray:
    return (np.ascontiguousarray(values, np.float32).view(np.uint32) >> 16).astype(np.uint16)


def from_bf16(bits: np.ndarray) -> np.ndarray:
    return (bits.astype(np.uint32) << 16).view(np.float32)


def rounded(values: np.ndarray) -> np.ndarray:
    """bf16 bits, to the nearest and ties to even."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def make_weights(
    *,
    form: str = "low-bit",
    heads: int = 6,
    kv_heads: int = 2,
    dim: int = 64,
    bias: bool = False,
    norms: bool = False,
    rotated: tuple[bool, bool] = (True, True),
    seed: int = 0,
) -> DecoderWeights:
    """Random weights; "mixed" has bf16 in every other matrix and layer, "tied" looks tokens up in the head."""
    rng = np.random.default_rng(seed)
    hidden, inter, vocabulary, positions = 96, 160, 200, 512

    def vector(n: int) -> np.ndarray:
        return rng.uniform(0.5, 1.5, n).astype(np.float32)

    def matrix(outputs: int, inputs: int, turn: int) -> Tiles:
        values = quantised_4(rng, outputs, inputs)
        in_bf16 = form == "bf16" or (form.startswith("mixed") and turn % 2)
        return pack_bf16(rounded(values.dequantised())) if in_bf16 else pack(values)

    layers = [
        LayerWeights(
            qkv=matrix((heads + 2 * kv_heads) * dim, hidden, layer),
            out=matrix(hidden, heads * dim, layer),
            gate=matrix(inter, hidden, layer + 1),
            up=matrix(inter, hidden, layer + 1),
            down=matrix(hidden, inter, layer + 1),
            norm_attention=vector(hidden),
            norm_mlp=vector(hidden),
            qkv_bias=rng.normal(0, 0.3, (heads + 2 * kv_heads) * dim).astype(np.float32) if bias else None,
            norm_query=vector(dim) if norms else None,
            norm_key=vector(dim) if norms else None,
            rotated=rotated[layer],
        )
        for layer in range(2)
    ]
    head = rng.normal(0, 0.1, (vocabulary, hidden)).astype(np.float32)
    angles = np.outer(np.arange(positions), 1e4 ** (-np.arange(dim // 2) / (dim // 2))).astype(np.float32)
    return DecoderWeights(
        layers=layers,
        head=pack_bf16(rounded(head)) if form == "bf16" else pack(quantise_8(head)),
        norm_final=vector(hidden),
        embedding=None if "tied" in form else bf16(rng.normal(0, 1, (vocabulary, hidden))),
        cosine=np.cos(angles),
        sine=np.sin(angles),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=dim,
        eps=1e-5,
        scale=dim**-0.5,
    )


def weights_of(matrix: Tiles) -> np.ndarray:
    """The float weights behind tiles, by way of the definition: scale * q + minimum, or bf16."""
    if matrix.bits == 16:
        tiles, groups, _ = matrix.data.shape
        pairs = from_bf16(matrix.data.view(np.uint16)).reshape(tiles, groups, 16, 16, 2).astype(np.float64)
        return pairs.transpose(0, 3, 1, 2, 4).reshape(tiles * 16, groups * 32)[: matrix.outputs]
    wide = matrix.widened().data
    tiles, groups, _ = wide.shape
    q = wide[:, :, :512].reshape(tiles, groups, 8, 16, 4).transpose(0, 3, 1, 2, 4).astype(np.float64)
    tail = wide[:, :, 512:].copy().view(np.float16).reshape(tiles, groups, 2, 16).astype(np.float64)
    scale, minimum = tail[:, :, 0].transpose(0, 2, 1), tail[:, :, 1].transpose(0, 2, 1)
    full = q * scale[..., None, None] + minimum[..., None, None]
    return full.reshape(tiles * 16, groups * 32)[: matrix.outputs]


def plain_logits(w: DecoderWeights, ids: np.ndarray) -> np.ndarray:
    """The same decoder in float64 over a whole sequence, without a cache, from the dequantised weights."""

    def norm(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + w.eps) * weight

    def rope(x: np.ndarray) -> np.ndarray:
        cosine, sine = w.cosine[: len(x), None].astype(float), w.sine[: len(x), None].astype(float)
        a, b = np.split(x, 2, axis=-1)
        return np.concatenate([a * cosine - b * sine, b * cosine + a * sine], -1)

    x = weights_of(w.head)[ids] if w.embedding is None else from_bf16(w.embedding)[ids].astype(float)
    count, group = len(ids), w.heads // w.kv_heads
    causal = np.where(np.tril(np.ones((count, count), bool)), 0.0, -np.inf)
    for layer in w.layers:
        qkv = norm(x, layer.norm_attention) @ weights_of(layer.qkv).T
        if layer.qkv_bias is not None:
            qkv = qkv + layer.qkv_bias
        q, k, v = np.split(qkv.reshape(count, -1, w.head_dim), [w.heads, w.heads + w.kv_heads], axis=1)
        if layer.norm_query is not None and layer.norm_key is not None:
            q, k = norm(q, layer.norm_query), norm(k, layer.norm_key)
        if layer.rotated:
            q, k = rope(q), rope(k)
        k = np.repeat(k, group, axis=1)
        v = np.repeat(v, group, axis=1)
        scores = np.einsum("qhd,khd->hqk", q, k) * w.scale + causal
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        x = x + np.einsum("hqk,khd->qhd", weights, v).reshape(count, -1) @ weights_of(layer.out).T
        y = norm(x, layer.norm_mlp)
        gate = y @ weights_of(layer.gate).T
        x = x + (gate / (1 + np.exp(-gate)) * (y @ weights_of(layer.up).T)) @ weights_of(layer.down).T
    return norm(x, w.norm_final) @ weights_of(w.head).T


class Runner:
    """A decoder and sequences in it, each with blocks of its own in an order that no one would guess."""

    def __init__(
        self, weights: DecoderWeights, *, kv_dtype: str = "bfloat16", level: str = "avx512", threads: int = 2
    ) -> None:
        self.decoder = Decoder(
            weights,
            num_blocks=NUM_BLOCKS,
            max_tokens=256,
            max_rows=64,
            threads=threads,
            kv_dtype=kv_dtype,
            level=level,
        )
        self.decoder.cache.view(np.uint16)[:] = 0x7FC0  # NaN wherever nothing has been written, int8's scales too
        self.free = list(np.random.default_rng(7).permutation(NUM_BLOCKS))
        self.tables: dict[str, list[int]] = {}
        self.tokens: dict[str, list[int]] = {}

    def step(
        self, work: dict[str, list[int]], groups: list[tuple[list[str], int]] | None = None
    ) -> dict[str, np.ndarray]:
        """Append tokens to sequences and run them in one batch; the logits after each sequence's last token."""
        ids, positions, slots, starts, lengths, rows = [], [], [], [0], [], []
        for name, new in work.items():
            table, old = self.tables.setdefault(name, []), self.tokens.setdefault(name, [])
            for position, token in enumerate(new, len(old)):
                if position // BLOCK == len(table):
                    table.append(int(self.free.pop()))
                ids.append(token)
                positions.append(position)
                slots.append(table[position // BLOCK] * BLOCK + position % BLOCK)
            old.extend(new)
            starts.append(len(ids))
            lengths.append(len(old))
            rows.append(len(ids) - 1)
        width = max(len(self.tables[name]) for name in work) + 2
        tables = np.full((len(work), width), 2**30, np.int32)  # what lies behind a table's end is never read
        for i, name in enumerate(work):
            tables[i, : len(self.tables[name])] = self.tables[name]
        group_of = np.full(len(work), -1, np.int32)
        for g, (members, _) in enumerate(groups or []):
            for member in members:
                group_of[list(work).index(member)] = g
        logits = self.decoder.step(
            Batch(
                np.array(ids),
                np.array(positions),
                np.array(slots),
                np.array(starts),
                np.array(lengths),
                tables,
                np.array(rows),
                group_of if groups else None,
                np.array([blocks for _, blocks in groups or []], np.int32),
            )
        )
        return dict(zip(work, logits, strict=True))

    def share(self, source: str, name: str, blocks: int) -> None:
        """Let a new sequence begin with the leading blocks of another."""
        self.tables[name] = self.tables[source][:blocks]
        self.tokens[name] = self.tokens[source][: blocks * BLOCK]


def tokens(seed: int, count: int) -> list[int]:
    return [int(token) for token in np.random.default_rng(seed).integers(0, 200, count)]


def product(tiles: Tiles, x: np.ndarray, level: str, *, wide: bool = False) -> np.ndarray:
    """x [rows, inputs] times the matrix, by the kernel; [rows, outputs]."""
    memory = np.zeros(tiles.data.nbytes + 64, np.uint8)
    start = -memory.ctypes.data % 64
    memory[start : start + tiles.data.nbytes] = tiles.data.reshape(-1)
    outputs = tiles.data.shape[0] * 16
    weight = _Weight(memory.ctypes.data + start, tiles.bits, outputs, tiles.inputs)
    out = np.full((len(x), outputs), np.nan, np.float32)
    load(level).octavo_gemm(ctypes.byref(weight), x.ctypes.data, len(x), int(wide), out.ctypes.data)
    return out[:, : tiles.outputs]


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("rows", [1, 2, 3, 5, 8, 11, 16, 37])
def test_a_matrix_product_equals_the_product_of_the_dequantised_weights(rows: int, bits: int, level: str) -> None:
    rng = np.random.default_rng(rows)
    matrix = quantised_4(rng, 48, 96) if bits == 4 else quantise_8(rng.normal(0, 0.05, (48, 96)).astype(np.float32))
    x = rng.normal(0, 1, (rows, 96)).astype(np.float32)
    out, wide = product(pack(matrix), x, level), product(pack(matrix), x, level, wide=True)
    # The kernel rounds activations to int8 by groups of 32; with that done here too, nothing else may differ.
    groups = x.reshape(rows, -1, 32)
    top = np.abs(groups).max(-1, keepdims=True)
    rounded = (np.rint(groups * (np.float32(127) / top)) * (top / 127)).reshape(rows, 96)
    np.testing.assert_allclose(out, rounded @ matrix.dequantised().T, rtol=1e-4, atol=1e-4)
    # With the rounding error multiplied as well hardly anything is lost.
    exact = x.astype(float) @ matrix.dequantised().T
    assert np.abs(wide - exact).max() < np.abs(out - exact).max() / 20


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 13, 16, 17, 37])
def test_a_bf16_product_equals_that_of_the_rounded_activations(rows: int, level: str) -> None:
    """Outputs that do not fill a tile included."""
    rng = np.random.default_rng(rows)
    weight = rounded(rng.normal(0, 0.05, (40, 288)))
    x = rng.normal(0, 1, (rows, 288)).astype(np.float32)
    out = product(pack_bf16(weight), x, level)
    exact = from_bf16(rounded(x)).astype(float) @ from_bf16(weight).astype(float).T
    np.testing.assert_allclose(out, exact, rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("level", LEVELS)
def test_activations_in_the_middle_of_two_bf16_values_go_to_the_even_one(level: str) -> None:
    ones = np.zeros((16, 32), np.float32)
    ones[:, 0] = 1
    x = np.zeros((4, 32), np.float32)
    x[:, 0] = 1 + np.array([1, 3, 1.01, -1]) / 2**8
    x[3, 0] = -x[0, 0]
    out = product(pack_bf16(rounded(ones)), x, level)
    np.testing.assert_array_equal(out[:, 0], [1, 1 + 2 / 2**7, 1 + 1 / 2**7, -1])


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("form", ["int4", "int8", "bf16"])
def test_a_row_is_the_same_to_the_bit_whatever_rows_are_beside_it(form: str, level: str) -> None:
    rng = np.random.default_rng(1)
    values = rng.normal(0, 0.05, (32, 256)).astype(np.float32)
    packed = {"int4": lambda: pack(quantise_4(values)), "int8": lambda: pack(quantise_8(values))}
    tiles = pack_bf16(rounded(values)) if form == "bf16" else packed[form]()
    x = rng.normal(0, 1, (16, 256)).astype(np.float32)
    together = product(tiles, x, level, wide=True)
    for rows in range(1, 17):
        for start in (0, 16 - rows):
            some = np.ascontiguousarray(x[start : start + rows])
            np.testing.assert_array_equal(product(tiles, some, level, wide=True), together[start : start + rows])


@KV
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(
    "shape",
    [
        {},
        {"heads": 9, "kv_heads": 3},
        {"heads": 14, "kv_heads": 2, "bias": True},
        {"heads": 4, "kv_heads": 4, "norms": True},
        {"heads": 4, "kv_heads": 2, "rotated": (True, False)},
        {"heads": 8, "kv_heads": 4, "dim": 32},
        {"heads": 2, "kv_heads": 1, "dim": 128},
        {"heads": 4, "kv_heads": 2, "dim": 80},
        {"heads": 4, "kv_heads": 1, "dim": 48},
        *({"form": form} for form in FORMS[1:]),
        {"form": "bf16", "heads": 14, "kv_heads": 2, "bias": True},
        {"form": "mixed", "heads": 4, "kv_heads": 2, "dim": 80, "norms": True},
    ],
    ids=str,
)
def test_the_logits_are_those_of_plain_arithmetic_within_the_rounding_of_activations(
    shape: dict, level: str, kv_dtype: str
) -> None:
    weights = make_weights(**shape)
    runner = Runner(weights, kv_dtype=kv_dtype, level=level)
    prompt = tokens(1, 150)
    runner.step({"a": prompt[:100]})
    runner.step({"a": prompt[100:149]})
    logits = runner.step({"a": prompt[149:]})["a"]
    expected = plain_logits(weights, np.array(prompt))[-1]
    assert np.isfinite(logits).all()
    error = np.abs(logits - expected).max() / np.abs(expected).max()
    assert error < (0.03 if shape.get("form") == "bf16" else 0.05), f"{error:.3f}"
    assert np.corrcoef(logits, expected)[0, 1] > 0.999


@KV
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("level", LEVELS)
def test_chunking_neighbours_and_threads_change_no_bit(level: str, form: str, kv_dtype: str) -> None:
    weights = make_weights(form=form)
    prompt, more = tokens(2, 200), tokens(3, 5)
    alone = Runner(weights, kv_dtype=kv_dtype, level=level, threads=1)
    expected = [alone.step({"a": prompt})["a"], *(alone.step({"a": [token]})["a"] for token in more)]

    crowd = Runner(weights, kv_dtype=kv_dtype, level=level, threads=2)
    for begin in range(0, 185, 37):
        crowd.step({"x": tokens(begin, 11), "a": prompt[begin : begin + 37], "y": tokens(begin + 1, 1)})
    got = [crowd.step({"y": tokens(9, 3), "a": prompt[185:]})["a"]]
    got += [crowd.step({"x": [1], "a": [token], "y": [2]})["a"] for token in more]
    for one, other in zip(expected, got, strict=True):
        np.testing.assert_array_equal(one, other)


@KV
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("level", LEVELS)
def test_a_shared_prefix_computed_once_for_a_group_changes_no_bit(level: str, form: str, kv_dtype: str) -> None:
    weights = make_weights(form=form, heads=9, kv_heads=3)
    runner = Runner(weights, kv_dtype=kv_dtype, level=level)
    runner.step({"base": tokens(4, 140)})
    runner.step({"other": tokens(5, 130)})
    names = [f"s{i}" for i in range(7)]
    for i, name in enumerate(names):
        runner.share("base", name, 8)
        runner.step({name: tokens(20 + i, 3 + 17 * i)})
    for name in ("o1", "o2"):
        runner.share("other", name, 8)
        runner.step({name: tokens(40, 2)})
    work = {name: [i] for i, name in enumerate([*names, "o1", "o2", "base"])}
    grouped = runner.step(work, groups=[(names, 8), (["o1", "o2"], 8)])
    for name in work:  # the same step again, ungrouped: it writes the same keys and values to the same slots
        runner.tokens[name].pop()
    ungrouped = runner.step(work)
    for name in work:
        np.testing.assert_array_equal(grouped[name], ungrouped[name])


@KV
def test_padding_is_not_written_and_empty_sequences_read_nothing(kv_dtype: str) -> None:
    weights = make_weights()
    runner = Runner(weights, kv_dtype=kv_dtype)
    runner.step({"a": tokens(1, 20)})
    before = runner.decoder.cache.copy()
    table = np.array([runner.tables["a"], [2**30] * 2], np.int32)
    batch = Batch(
        np.array([5, 5]),
        np.array([20, 0]),
        np.array([-1, -1]),
        np.array([0, 1, 2]),
        np.array([20, 0]),
        table,
        np.array([0]),
    )
    runner.decoder.step(batch)
    np.testing.assert_array_equal(runner.decoder.cache, before)


@KV
@pytest.mark.parametrize("dim", [64, 48])
def test_what_a_layout_leaves_of_a_block_is_what_was_written_to_its_first_slots(dim: int, kv_dtype: str) -> None:
    weights = make_weights(heads=4, kv_heads=2, dim=dim)
    garbage = [Runner(weights, kv_dtype=kv_dtype) for _ in range(2)]
    garbage[1].decoder.cache[:] = 0x55
    for filled in range(1, BLOCK + 1):
        blocks = []
        for runner in garbage:
            runner.step({f"a{filled}": tokens(1, filled)})
            blocks.append(runner.decoder.cache[:, runner.tables[f"a{filled}"][0]].copy())
            runner.decoder.layout.clear(blocks[-1], filled)
        np.testing.assert_array_equal(*blocks)
        # And all of that: a sequence that goes on from a cleared copy computes what the first one does.
        one, other = garbage
        other.tables[f"b{filled}"], other.tokens[f"b{filled}"] = [int(other.free.pop())], tokens(1, filled)
        other.decoder.cache[:, other.tables[f"b{filled}"][0]] = blocks[0]
        np.testing.assert_array_equal(
            one.step({f"a{filled}": [7, 8]})[f"a{filled}"], other.step({f"b{filled}": [7, 8]})[f"b{filled}"]
        )


@KV
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("level", ["avx2", "portable"])
def test_the_levels_agree_with_each_other(level: str, form: str, kv_dtype: str) -> None:
    weights = make_weights(form=form, bias=True)
    fast, slow = Runner(weights, kv_dtype=kv_dtype), Runner(weights, kv_dtype=kv_dtype, level=level)
    if fast.decoder.isa != "avx512" or slow.decoder.isa != level:
        pytest.skip("this CPU has no AVX-512 VNNI and BF16, or no AVX2")
    prompt = tokens(6, 90)
    one, other = fast.step({"a": prompt})["a"], slow.step({"a": prompt})["a"]
    assert np.abs(one - other).max() < 0.03 * np.abs(other).max()


def test_tiles_hold_the_weights_exactly_and_widening_stacking_and_interleaving_lose_nothing() -> None:
    rng = np.random.default_rng(0)
    narrow, wide = quantised_4(rng, 64, 96), quantise_8(rng.normal(0, 1, (64, 96)).astype(np.float32))
    for matrix in (narrow, wide):
        assert pack(matrix).bits == matrix.bits
        np.testing.assert_array_equal(weights_of(pack(matrix)).astype(np.float32), matrix.dequantised())
    both = stack([pack(narrow), pack(wide)])
    assert (both.bits, both.outputs) == (8, 128)
    np.testing.assert_array_equal(
        weights_of(both).astype(np.float32), np.concatenate([narrow.dequantised(), wide.dequantised()])
    )
    turns = weights_of(interleave(pack(narrow), pack(wide))).astype(np.float32).reshape(2, 2, 32, 96)
    np.testing.assert_array_equal(turns[:, 0].reshape(64, 96), narrow.dequantised())
    np.testing.assert_array_equal(turns[:, 1].reshape(64, 96), wide.dequantised())


def test_outputs_that_pad_a_matrix_come_out_as_zero() -> None:
    values = np.random.default_rng(0).normal(0, 1, (40, 64)).astype(np.float32)
    for tiles in (pack(quantise_8(values)), pack_bf16(rounded(values))):
        assert (weights_of(Tiles(tiles.data, 48))[40:] == 0).all()


def test_tiles_of_bf16_hold_it_exactly_and_are_not_mixed_with_others_in_one_matrix() -> None:
    rng = np.random.default_rng(0)
    one, other = (rounded(rng.normal(0, 1, (64, 96))) for _ in range(2))
    np.testing.assert_array_equal(weights_of(pack_bf16(one)), from_bf16(one))
    both = stack([pack_bf16(one), pack_bf16(other)])
    assert (both.bits, both.outputs, both.inputs) == (16, 128, 96)
    np.testing.assert_array_equal(weights_of(both), from_bf16(np.concatenate([one, other])))
    turns = weights_of(interleave(pack_bf16(one), pack_bf16(other))).reshape(2, 2, 32, 96)
    np.testing.assert_array_equal(turns[:, 1].reshape(64, 96), from_bf16(other))
    for parts in (
        [pack_bf16(one), pack(quantise_8(from_bf16(other)))],
        [pack(quantised_4(rng, 64, 96)), pack_bf16(one)],
    ):
        with pytest.raises(ValueError, match="bf16 and low-bit"):
            stack(parts)
    with pytest.raises(ValueError, match="70 inputs"):
        pack_bf16(one[:, :70])


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("form", ["int4", "int8", "bf16"])
def test_a_token_looked_up_in_the_head_is_the_heads_row(form: str, level: str) -> None:
    """Of a decoder without layers the logits are what norm and head make of the embedding."""
    rng = np.random.default_rng(0)
    values = rng.normal(0, 1, (200, 96)).astype(np.float32)
    packed = {"int4": lambda: pack(quantise_4(values)), "int8": lambda: pack(quantise_8(values))}
    head = pack_bf16(rounded(values)) if form == "bf16" else packed[form]()
    silent = dataclasses.replace(make_weights(), head=head, embedding=None)
    for layer in silent.layers:
        layer.out.data[:] = layer.down.data[:] = 0
    runner = Runner(silent, level=level)
    for token in (0, 15, 16, 77, 199):
        logits = runner.step({str(token): [token]})[str(token)]
        table = weights_of(head)
        x = table[token]
        expected = table @ (x / np.sqrt((x * x).mean() + silent.eps) * silent.norm_final)
        np.testing.assert_allclose(logits, expected, rtol=0.01, atol=0.01 * np.abs(expected).max())


def test_four_bits_lose_less_than_a_grid_over_the_range_and_respect_what_counts() -> None:
    rng = np.random.default_rng(0)
    values = rng.normal(0, 1, (64, 320)).astype(np.float32)
    groups = values.reshape(64, -1, 32)
    low, step = groups.min(-1, keepdims=True), np.ptp(groups, axis=-1, keepdims=True) / 15
    grid = (np.rint((groups - low) / step) * step + low).reshape(values.shape)

    def errors(kept: np.ndarray) -> np.ndarray:
        return ((kept - values) ** 2).mean(axis=0)

    plain = errors(quantise_4(values).dequantised())
    assert plain.mean() < 0.85 * errors(grid).mean()
    importance = np.where(np.arange(320) % 32 < 4, 100, 1).astype(np.float32)
    weighted = errors(quantise_4(values, importance).dequantised())
    assert weighted[importance > 1].mean() < 0.8 * plain[importance > 1].mean()


def test_four_bits_keep_what_four_bits_can_hold() -> None:
    """A dequantised Q4_1 whose groups use their whole range; all one value; nothing but zeros."""
    rng = np.random.default_rng(0)
    matrix = quantised_4(rng, 64, 96)
    full = matrix.q.reshape(64, 3, 32)
    full[..., 3], full[..., 20] = 0, 15
    np.testing.assert_allclose(quantise_4(matrix.dequantised()).dequantised(), matrix.dequantised(), atol=2e-4)
    for value in (0.0, 0.25, -3.0):
        same = np.full((16, 32), value, np.float32)
        np.testing.assert_array_equal(quantise_4(same).dequantised(), same)


def test_what_the_decoder_cannot_run_is_named() -> None:
    fine = {"head_dim": 64, "heads": 9, "kv_heads": 3, "hidden": 576, "intermediate": 1536}
    assert supports(**fine) is None
    assert supports(**{**fine, "hidden": 570}) == "hidden size 570"
    assert "head_dim 72" in str(supports(**{**fine, "head_dim": 72}))
