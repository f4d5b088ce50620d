"""What a KV cache costs, as functions: bytes of a token, blocks in memory, sequences that fit, waste in last blocks.

The figures behind `python -m engine.plan` and the operators' planner page. A length is a sequence's tokens, prompt and
answer together; a Counter says how many sequences have which. Loads no torch and opens nothing but a model's config.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from dataclasses import dataclass, replace
from statistics import NormalDist

from engine.config import KV_SCALE_BYTES, MAX_BLOCK_SIZE, EngineConfig
from engine.models.config import ModelError
from engine.models.kv_shape import KvShape, read_shape
from engine.models.ranks import kv_heads_fit, of_each

__all__ = ["DEFAULT_BLOCK_SIZE", "MAX_BLOCK_SIZE", "KvShape", "ModelError", "read_shape"]

BYTES = {"bfloat16": 2, "float16": 2, "float32": 4}
"""Bytes of a value in the KV cache by torch's dtype; the C++ decoder keeps bfloat16 KV. Both know eight bits."""
INT8_SCALE = 2
"""Bytes of the scale that an int8 key or value has in the C++ decoder."""
KINDS = {
    "bfloat16": (2, 0),
    "float32": (4, 0),
    "int8": (1, INT8_SCALE),
    "int8-torch": (1, KV_SCALE_BYTES),
    "fp8": (1, KV_SCALE_BYTES),
}
"""How keys and values may be kept -> bytes of a value, and of the scale that each head's have. int8 is the C++
decoder's, int8-torch and fp8 are torch's."""
DEFAULT_BLOCK_SIZE = EngineConfig.block_size
BLOCK_SIZES = (8, 16, 32, 64, 128)
LENGTHS = (512, 1024, 2048, 4096, 8192)
SPREAD = 200
UNITS = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}
HIGH = NormalDist().inv_cdf(0.95)


class PlanError(Exception):
    """One line for whoever asked: what is wrong, with which value, and what would be right."""


def parse_size(text: str) -> int:
    """Bytes of "8GiB", "8G" (both binary), "8GB" (decimal), "1.5 GiB" or "1073741824"."""
    match = re.fullmatch(r"(\d{1,20}(?:\.\d{1,20})?)\s*([kmgt]?)(i?b?)", text.strip().lower(), re.ASCII)
    if match is None or (match[3] == "ib" and not match[2]) or match[3] == "i":
        raise PlanError(f"{text!r} is no size: write it like 8GiB, 512MiB, or as a number of bytes.")
    power = list(UNITS).index(match[2])
    size = int(float(match[1]) * (1000**power if match[3] == "b" else UNITS[match[2]]))
    if size < 1:
        raise PlanError(f"{text!r} is no memory at all; give the KV pool some.")
    return size


def show_bytes(count: float) -> str:
    for unit, factor in (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if count >= factor:
            return f"{count / factor:,.1f} {unit}"
    return f"{count:,.0f} bytes"


# --- lengths ----------------------------------------------------------------------------------------------------------


def spread(median: int, high: int, longest: int | None = None) -> Counter[int]:
    """Two hundred lengths with a long tail (log-normal): half up to `median`, 95 % up to `high`, and
    none above `longest`."""
    return _tail(median, math.log(max(high, median) / median) / HIGH, longest)


def _tail(median: float, sigma: float, longest: int | None = None) -> Counter[int]:
    draws = (NormalDist().inv_cdf((i + 0.5) / SPREAD) for i in range(SPREAD))
    lengths = (max(1, round(median * math.exp(sigma * draw))) for draw in draws)
    return Counter(min(length, longest or length) for length in lengths)


EXAMPLE = _tail(900, 0.9)
"""Prompt and answer of two hundred chats, in tokens: half below 900, a long tail. Made up."""


def mean(lengths: Counter[int]) -> float:
    return sum(length * times for length, times in lengths.items()) / lengths.total()


def percentile(lengths: Counter[int], share: float) -> int:
    seen, need = 0, share * lengths.total()
    for length in sorted(lengths):
        seen += lengths[length]
        if seen >= need:
            return length
    return max(lengths)


# --- memory -----------------------------------------------------------------------------------------------------------


def of_a_rank(shape: KvShape, ranks: int) -> KvShape:
    """What each of so many ranks that share a model has of it. PlanError where they cannot."""
    if not kv_heads_fit(shape.kv_heads, ranks):
        raise PlanError(f"The model has {shape.kv_heads} KV heads, which do not go with {ranks} ranks.")
    return replace(shape, kv_heads=of_each(shape.kv_heads, ranks))


def token_bytes(shape: KvShape, kind: str) -> int:
    """`kind`: of KINDS."""
    return shape.bytes_per_token(*KINDS[kind])


def blocks_that_fit(memory: int, block_size: int, bytes_of_token: int) -> int:
    """At least one; PlanError where not even that fits."""
    block_bytes = block_size * bytes_of_token
    if memory < block_bytes:
        raise PlanError(
            f"{show_bytes(memory)} hold no block: one of {block_size} tokens takes {show_bytes(block_bytes)}; "
            "give the pool more memory, or use smaller blocks."
        )
    return memory // block_bytes


def blocks_of(length: int, block_size: int) -> int:
    return -(-length // block_size)


def unused_slots(length: int, block_size: int) -> int:
    return -length % block_size


def shared_blocks(length: int, block_size: int, shared: int) -> int:
    """Blocks that a sequence need not have for itself where its first `shared` tokens are there already: full ones, and
    never all of its tokens, as the last has to be computed."""
    return min(shared, length - 1) // block_size


def sequences_that_fit(blocks: int, block_size: int, length: int, shared: int = 0) -> int:
    """Sequences of `length` tokens in a pool; the full blocks of their first `shared` tokens are there once for all."""
    return mix_that_fits(blocks, block_size, Counter([length]), shared)


def mix_that_fits(blocks: int, block_size: int, lengths: Counter[int], shared: int = 0) -> int:
    """Sequences of which so many have each length, as on average, in a pool; all of them share their first tokens."""
    once = shared_blocks(max(lengths), block_size, shared)
    own = sum(
        (blocks_of(length, block_size) - shared_blocks(length, block_size, shared)) * times
        for length, times in lengths.items()
    )
    return max(0, blocks - once) * lengths.total() // own


@dataclass(frozen=True)
class Waste:
    """Of sequences in blocks of one size: empty slots and blocks a sequence on average, and the empty share of all."""

    slots: float
    blocks: float
    share: float


def waste(lengths: Counter[int], block_size: int) -> Waste:
    count = lengths.total()
    blocks = sum(blocks_of(length, block_size) * times for length, times in lengths.items())
    empty = blocks * block_size - sum(length * times for length, times in lengths.items())
    return Waste(empty / count, blocks / count, empty / (blocks * block_size))
