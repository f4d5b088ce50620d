"""What work costs at least: bytes that must be read, and multiplications that must be done. Plain arithmetic."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Shape:
    """A Llama-like decoder; tied: the head's matrix is the embedding."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    dim: int
    inner: int
    vocabulary: int
    tied: bool
    qk_norm: bool = False

    @property
    def model_type(self) -> str:
        return "qwen3" if self.qk_norm else "llama"


LLAMA_8B = Shape(32, 4096, 32, 8, 128, 14336, 128_256, tied=False)
QWEN3_06B = Shape(28, 1024, 16, 8, 128, 3072, 151_936, tied=True, qk_norm=True)


def weights_read(shape: Shape) -> int:
    """Weights that a step reads whole: the head too, but not the embedding, of which it reads a row a token."""
    attention = shape.hidden * (shape.heads + 2 * shape.kv_heads) * shape.dim + shape.heads * shape.dim * shape.hidden
    norms = 2 * shape.hidden + (2 * shape.dim if shape.qk_norm else 0)
    layer = attention + 3 * shape.hidden * shape.inner + norms
    return shape.layers * layer + shape.hidden + shape.vocabulary * shape.hidden


def kv_token(shape: Shape, itemsize: int) -> int:
    """Bytes of a token's K and V in all layers."""
    return 2 * shape.layers * shape.kv_heads * shape.dim * itemsize


def step_bytes(shape: Shape, contexts: Iterable[int], itemsize: int = 2) -> int:
    """Bytes that a decode step must read: the weights once, and every sequence's K and V.

    Left out, as they are small: rows of the embedding, activations, logits and the new tokens' K and V.
    """
    return weights_read(shape) * itemsize + sum(contexts) * kv_token(shape, itemsize)


def decode_bytes(contexts: Iterable[int], heads: int, kv_heads: int, dim: int, itemsize: int = 2) -> int:
    """Bytes that one layer's attention must move for sequences of one row each: K and V, q, and the result."""
    tokens, rows = 0, 0
    for context in contexts:
        tokens, rows = tokens + context, rows + 1
    return (2 * tokens * kv_heads + 2 * rows * heads) * dim * itemsize


def pairs(length: int, rows: int) -> int:
    """(query, key) pairs of the last `rows` rows of a causal context of `length` tokens."""
    return rows * (length - rows) + rows * (rows + 1) // 2


def attention_flops(length: int, rows: int, heads: int, dim: int) -> int:
    """Two products, each of a multiplication and an addition for every pair, head and number."""
    return 4 * pairs(length, rows) * heads * dim
