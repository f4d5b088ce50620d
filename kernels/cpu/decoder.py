"""The whole decoder step in one C++ call. Owns the packed weights, the KV cache and the threads behind it.

It knows nothing of sequences or tenants: a batch comes as flat arrays, logits go out. Results do not depend on the
batch: each row's arithmetic is the same whatever runs beside it, however its prompt was chunked, grouped or not.
"""

from __future__ import annotations

import ctypes
import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from kernels.cpu import sampling
from kernels.cpu.build import load
from kernels.cpu.kv_layout import KvLayout
from kernels.cpu.packing import Tiles, interleave

HEAD_DIMS = range(32, 257, 16)
MAX_HIDDEN = 8192
MAX_PER_HEAD = 16
# A shared prefix is computed once for a group in whole rounds of 8 blocks (attention.hpp), so results stay the same.
ROUND_BLOCKS = 8

PARTS = ("embed", "norms", "qkv", "prefixes", "attention", "output", "gate_up", "down", "head")

I32 = npt.NDArray[np.int32]
I64 = npt.NDArray[np.int64]
F32 = npt.NDArray[np.float32]
U16 = npt.NDArray[np.uint16]


class _Weight(ctypes.Structure):
    _fields_ = [
        ("tiles", ctypes.c_void_p),
        ("bits", ctypes.c_int32),
        ("outputs", ctypes.c_int32),
        ("inputs", ctypes.c_int32),
    ]


class _Layer(ctypes.Structure):
    _fields_ = [
        *((name, _Weight) for name in ("qkv", "out", "gate_up", "down")),
        *((name, ctypes.c_void_p) for name in ("qkv_bias", "norm_attention", "norm_mlp", "norm_query", "norm_key")),
        ("rotated", ctypes.c_int32),
    ]


_SIZES = [
    *("layers", "hidden", "heads", "kv_heads", "head_dim"),
    *("intermediate", "vocabulary", "max_tokens", "max_rows", "threads", "kv_int8"),
]


class _Config(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_int32) for name in _SIZES),
        ("eps", ctypes.c_float),
        ("scale", ctypes.c_float),
        ("layer", ctypes.POINTER(_Layer)),
        ("head", _Weight),
        *((name, ctypes.c_void_p) for name in ("norm_final", "embedding", "cosine", "sine")),
    ]


class _Batch(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_int32) for name in ("tokens", "sequences", "groups", "rows", "threads")),
        *((name, ctypes.c_void_p) for name in ("ids", "positions", "slots", "query_starts", "lengths", "tables")),
        ("table_stride", ctypes.c_int64),
        *((name, ctypes.c_void_p) for name in ("group_of", "group_blocks", "row_tokens", "cache")),
        ("layer_stride", ctypes.c_int64),
        ("logits", ctypes.c_void_p),
    ]


@dataclass(frozen=True)
class LayerWeights:
    """One layer. qkv rows: query, key, value heads; gate and up: [intermediate, hidden]; norms: float32 vectors.

    rotated: whether q and k are turned by their position; SmolLM3 leaves some layers without.
    """

    qkv: Tiles
    out: Tiles
    gate: Tiles
    up: Tiles
    down: Tiles
    norm_attention: F32
    norm_mlp: F32
    qkv_bias: F32 | None = None
    norm_query: F32 | None = None
    norm_key: F32 | None = None
    rotated: bool = True


@dataclass(frozen=True)
class DecoderWeights:
    """A Llama-like decoder. cosine, sine: [positions, dim / 2].

    layers: taken one by one, so they may be made as they are asked for. embedding: bf16 bits, uint16
    [vocabulary, hidden]; None: tied, tokens are looked up in the head.
    """

    layers: Iterable[LayerWeights]
    head: Tiles
    norm_final: F32
    embedding: U16 | None
    cosine: F32
    sine: F32
    heads: int
    kv_heads: int
    head_dim: int
    eps: float
    scale: float


@dataclass
class Batch:
    """One step. Shapes as in structures.hpp; group_of and group_blocks may be left out. threads: 0 for all."""

    ids: I32
    positions: I32
    slots: I64
    query_starts: I32
    lengths: I32
    tables: I32
    row_tokens: I32
    group_of: I32 | None = None
    group_blocks: I32 = field(default_factory=lambda: np.zeros(0, np.int32))
    threads: int = 0


def supports(*, head_dim: int, heads: int, kv_heads: int, hidden: int, intermediate: int) -> str | None:
    """None when this decoder can run such a model, else what it cannot do."""
    checks = {
        f"head_dim {head_dim}": head_dim in HEAD_DIMS
        and head_dim * heads % 32 == 0
        and heads // kv_heads * head_dim % 32 == 0,
        f"{heads // kv_heads} query heads a KV head": heads % kv_heads == 0 and heads // kv_heads <= MAX_PER_HEAD,
        f"hidden size {hidden}": hidden % 32 == 0 and hidden <= MAX_HIDDEN,
        f"intermediate size {intermediate}": intermediate % 32 == 0,
    }
    return next((name for name, fine in checks.items() if not fine), None)


class Decoder:
    """`step(batch)` runs a batch and returns float32 logits [rows, vocabulary]; the GIL is released meanwhile.

    `cache`: the keys and values, uint8 [layers, num_blocks, layout.block_bytes].
    """

    def __init__(
        self,
        weights: DecoderWeights,
        *,
        num_blocks: int,
        max_tokens: int,
        max_rows: int,
        threads: int,
        kv_dtype: str = "bfloat16",
        level: str = "avx512",
    ) -> None:
        self._library = load(level)
        self.isa = self._library.octavo_isa().decode()
        # Other sources, another compiler or another CPU have another one: they may round differently.
        self.build = Path(self._library._name).stem
        self._keep: list[object] = []
        self.weight_bytes: Counter[int] = Counter()
        """Memory of the matrices by the bits of a weight; 16: bf16."""
        self.vocabulary, self.hidden = weights.head.outputs, weights.head.inputs
        self.max_tokens, self.max_rows = max_tokens, max_rows
        made = [self._layer(layer) for layer in weights.layers]
        layers = (_Layer * len(made))(*made)
        config = _Config(
            layers=len(made),
            hidden=self.hidden,
            heads=weights.heads,
            kv_heads=weights.kv_heads,
            head_dim=weights.head_dim,
            intermediate=made[0].down.inputs,
            vocabulary=self.vocabulary,
            max_tokens=max_tokens,
            max_rows=max_rows,
            threads=threads,
            kv_int8=kv_dtype == "int8",
            eps=weights.eps,
            scale=weights.scale,
            layer=layers,
            head=self._weight(weights.head),
            norm_final=self._pointer(weights.norm_final),
            embedding=None if weights.embedding is None else self._pointer(weights.embedding),
            cosine=self._pointer(weights.cosine),
            sine=self._pointer(weights.sine),
        )
        self.layout = KvLayout(weights.kv_heads, weights.head_dim, kv_dtype)
        shape = (len(made), num_blocks, self.layout.block_bytes)
        self.cache = self._memory(math.prod(shape), "the KV cache").reshape(shape)
        self._model = self._library.octavo_model_new(ctypes.byref(config))
        if not self._model:
            raise MemoryError(f"not enough memory for a step of {max_tokens} tokens; lower the token budget")

    def _memory(self, size: int, what: str) -> npt.NDArray[np.uint8]:
        address = self._library.octavo_memory_new(size)
        if not address:
            raise MemoryError(f"not enough memory for {what}: {size / 2**20:.0f} MiB")
        self._mapped = [*getattr(self, "_mapped", []), (address, size)]
        return np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(address))

    def _pointer(self, array: np.ndarray) -> int:
        array = np.ascontiguousarray(array)
        self._keep.append(array)
        return array.ctypes.data

    def _weight(self, matrix: Tiles) -> _Weight:
        memory = self._memory(matrix.data.nbytes, "the weights")
        memory[:] = matrix.data.reshape(-1)
        self.weight_bytes[matrix.bits] += matrix.data.nbytes
        return _Weight(memory.ctypes.data, matrix.bits, matrix.data.shape[0] * 16, matrix.inputs)

    def _layer(self, layer: LayerWeights) -> _Layer:
        optional = {
            name: self._pointer(value) if (value := getattr(layer, name)) is not None else None
            for name in ("qkv_bias", "norm_query", "norm_key")
        }
        return _Layer(
            qkv=self._weight(layer.qkv),
            out=self._weight(layer.out),
            # Both sides of SiLU(gate) * up side by side, so that a task has them at hand.
            gate_up=self._weight(interleave(layer.gate, layer.up)),
            down=self._weight(layer.down),
            norm_attention=self._pointer(layer.norm_attention),
            norm_mlp=self._pointer(layer.norm_mlp),
            rotated=layer.rotated,
            **optional,
        )

    def step(self, batch: Batch) -> F32:
        rows = len(batch.row_tokens)
        logits = np.empty((rows, self.vocabulary), np.float32)
        if len(batch.ids) > self.max_tokens or rows > self.max_rows:
            raise ValueError(
                f"a step of {len(batch.ids)} tokens, {rows} rows is over {self.max_tokens}, {self.max_rows}"
            )
        tables = np.ascontiguousarray(batch.tables, np.int32)
        grouped = batch.group_of is not None
        arrays: dict[str, npt.NDArray[np.generic]] = {
            "ids": np.ascontiguousarray(batch.ids, np.int32),
            "positions": np.ascontiguousarray(batch.positions, np.int32),
            "slots": np.ascontiguousarray(batch.slots, np.int64),
            "query_starts": np.ascontiguousarray(batch.query_starts, np.int32),
            "lengths": np.ascontiguousarray(batch.lengths, np.int32),
            "tables": tables,
            "group_of": np.ascontiguousarray(batch.group_of if grouped else batch.lengths, np.int32),
            "group_blocks": np.ascontiguousarray(batch.group_blocks, np.int32),
            "row_tokens": np.ascontiguousarray(batch.row_tokens, np.int32),
        }
        call = _Batch(
            tokens=len(batch.ids),
            sequences=len(batch.lengths),
            groups=len(batch.group_blocks) if grouped else 0,
            rows=rows,
            threads=batch.threads,
            table_stride=tables.shape[1],
            cache=self.cache.ctypes.data,
            layer_stride=self.cache.strides[0],
            logits=logits.ctypes.data,
            **{name: array.ctypes.data for name, array in arrays.items()},
        )
        self._library.octavo_model_step(self._model, ctypes.byref(call))
        return logits

    def sample(self, logits: F32, **settings: Any) -> I32:
        """As kernels.cpu.sampling.sample, by this decoder's threads."""
        return sampling.sample(self._library, self._model, logits, **settings)

    def times(self) -> dict[str, float]:
        """Seconds that all steps so far spent in each part of a layer, and in the head, by name (PARTS)."""
        seconds = np.zeros(len(PARTS))
        self._library.octavo_model_times(self._model, seconds.ctypes.data)
        return dict(zip(PARTS, seconds.tolist(), strict=True))

    def close(self) -> None:
        """Free the threads and the memory; the cache must not be used afterwards. Idempotent."""
        if self._model:
            self._library.octavo_model_free(self._model)
            self._model = None
            for address, size in self._mapped:
                self._library.octavo_memory_free(address, size)

    def __del__(self) -> None:
        if getattr(self, "_model", None):
            self.close()
