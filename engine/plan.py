"""What a model's KV cache costs: `python -m engine.plan --model PATH [--memory 8GiB] [--kv-dtype int8]`.

With `--tensor-parallel N` all of it is about one of N ranks that share the model: its KV heads, its memory.

Prints the KV bytes of a token, the blocks that fit into the memory, how many sequences of which length that is, and
what block sizes of 8 to 128 would waste in the last blocks. The lengths for that come from a file, or from running
workers (`--worker ID` or `--worker all`, with REDIS_URL or --redis), else from an example that is labelled as one.

Loads no torch, and no Redis client unless a worker is asked for. Reads only the header of a GGUF file, and nothing from
the network. What cannot work is one line on standard error and exit status 2.
"""

from __future__ import annotations

import argparse
import math
import os
import re
import sys
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import NormalDist
from typing import NoReturn

from engine.config import DEFAULT_CPU_KV_BYTES, KV_DTYPES, KV_SCALE_BYTES, EngineConfig
from engine.models.config import ModelError
from engine.models.kv_shape import KvShape, read_shape
from engine.models.ranks import kv_heads_fit, of_each

BYTES = {"bfloat16": 2, "float16": 2, "float32": 4}
"""Bytes of a value in the KV cache by torch's dtype; the C++ decoder keeps bfloat16 KV. Both know eight bits."""
INT8_SCALE = 2
"""Bytes of the scale that an int8 key or value has in the C++ decoder."""
BLOCK_SIZES = (8, 16, 32, 64, 128)
LENGTHS = (512, 1024, 2048, 4096, 8192)
PREFIXES = (512, 2048)
EXAMPLE = Counter(round(900 * math.exp(0.9 * NormalDist().inv_cdf((i + 0.5) / 200))) for i in range(200))
"""Prompt and answer of two hundred chats, in tokens: half below 900, a long tail (log-normal). Made up."""
UNITS = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}


class PlanError(Exception):
    """One line for whoever typed the command: what is wrong, with which value, and what would be right."""


# --- lengths ----------------------------------------------------------------------------------------------------------


def parse_size(text: str) -> int:
    """Bytes of "8GiB", "8G" (both binary), "8GB" (decimal), "1.5 GiB" or "1073741824"."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(i?b?)", text.strip().lower())
    if match is None or (match[3] == "ib" and not match[2]) or match[3] == "i":
        raise PlanError(f"{text!r} is no size: write it like 8GiB, 512MiB, or as a number of bytes.")
    power = list(UNITS).index(match[2])
    size = int(float(match[1]) * (1000**power if match[3] == "b" else UNITS[match[2]]))
    if size < 1:
        raise PlanError(f"{text!r} is no memory at all; give the KV pool some.")
    return size


def read_lengths(path: str) -> Counter[int]:
    """How many sequences have which length, in tokens: a file of lines "length" or "length count"; # is a comment."""
    try:
        lines = Path(path).read_text(encoding="utf-8-sig").splitlines()
    except (OSError, ValueError) as error:
        raise PlanError(f"{path} cannot be read ({getattr(error, 'strerror', None) or 'it is no text'}).") from None
    lengths = Counter[int]()
    for number, line in enumerate(lines, 1):
        words = line.partition("#")[0].replace(",", " ").split()
        if not words:
            continue
        if len(words) > 2 or not all(len(word) < 10 and word.isdecimal() and int(word) > 0 for word in words):
            raise PlanError(
                f"{path}, line {number}: {line.strip()[:60]!r} is neither a length nor a length and a count."
            )
        lengths[int(words[0])] += int(words[1]) if len(words) == 2 else 1
    if not lengths:
        raise PlanError(f"{path} holds no lengths; write one a line, in tokens.")
    return lengths


def sample_lengths(url: str, worker: str) -> Counter[int]:
    """The lengths of what runs, from the snapshots that a worker ("all": every worker) has published lately."""
    from engine.bus import RedisUnavailable, recent_snapshots

    try:
        snapshots = recent_snapshots(url, None if worker == "all" else worker)
    except RedisUnavailable as error:
        raise PlanError(str(error)) from None
    lengths = Counter(length for snapshot in snapshots for length in snapshot.lengths)
    if not lengths:
        who = "No worker" if worker == "all" else f"The worker {worker}"
        raise PlanError(f"{who} has shown a running sequence lately; ask again while there is work, or give --lengths.")
    return lengths


# --- figures ----------------------------------------------------------------------------------------------------------


def sequences_that_fit(blocks: int, block_size: int, length: int, shared: int = 0) -> int:
    """Sequences of `length` tokens in a pool; the full blocks of their first `shared` tokens are there once for all."""
    prefix = min(shared, length - 1) // block_size
    own = -(-length // block_size) - prefix
    return max(0, blocks - prefix) // own


@dataclass(frozen=True)
class Waste:
    """Of sequences in blocks of one size: empty slots and blocks a sequence on average, and the empty share of all."""

    slots: float
    blocks: float
    share: float


def waste(lengths: Counter[int], block_size: int) -> Waste:
    count = lengths.total()
    blocks = sum(-(-length // block_size) * times for length, times in lengths.items())
    empty = blocks * block_size - sum(length * times for length, times in lengths.items())
    return Waste(empty / count, blocks / count, empty / (blocks * block_size))


def percentile(lengths: Counter[int], share: float) -> int:
    seen, need = 0, share * lengths.total()
    for length in sorted(lengths):
        seen += lengths[length]
        if seen >= need:
            return length
    return max(lengths)


def show_bytes(count: float) -> str:
    for unit, factor in (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if count >= factor:
            return f"{count / factor:,.1f} {unit}"
    return f"{count:,.0f} bytes"


# --- the command ------------------------------------------------------------------------------------------------------


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise PlanError(f"{message[:1].upper()}{message[1:]}.")


def parser() -> argparse.ArgumentParser:
    options = _Parser(
        prog="python -m engine.plan", description="What a model's KV cache costs, and what fits into memory."
    )
    options.add_argument("--model", required=True, metavar="PATH", help="model folder or .gguf file")
    options.add_argument("--memory", metavar="SIZE", help="for the KV pool alone, like 8GiB; default 1GiB, as on a CPU")
    options.add_argument("--tensor-parallel", type=int, default=1, metavar="N", help="GPUs that share the model")
    options.add_argument("--block-size", type=int, default=EngineConfig.block_size, metavar="N", help="tokens a block")
    options.add_argument(
        "--dtype",
        choices=sorted(BYTES),
        help="of the model in torch; default bfloat16, as in the C++ decoder",
    )
    options.add_argument(
        "--kv-dtype",
        choices=KV_DTYPES,
        default=KV_DTYPES[0],
        help="of keys and values; torch's int8 where --dtype or --tensor-parallel is given",
    )
    options.add_argument("--prefix", type=int, action="append", metavar="N", help="tokens that sequences share")
    options.add_argument("--lengths", metavar="FILE", help='lines "length" or "length count", in tokens')
    options.add_argument("--worker", metavar="ID", help="take the lengths from a running worker, or from all")
    options.add_argument(
        "--redis",
        default=os.environ.get("REDIS_URL"),
        metavar="URL",
        help="the worker's server [REDIS_URL]; that of make run is unix://$OCTAVO_DATA/valkey.sock",
    )
    return options


def main(arguments: list[str] | None = None) -> int:
    try:
        options = parser().parse_args(arguments)
        ranks = options.tensor_parallel
        for name, values in (
            ("--block-size", [options.block_size]),
            ("--prefix", options.prefix or []),
            ("--tensor-parallel", [ranks]),
        ):
            if min(values, default=1) < 1:
                raise PlanError(f"{name} must be 1 or more, not {min(values)}.")
        # The scales of the C++ decoder are smaller; it has no fp8, and runs in one process.
        options.torch = bool(options.dtype) or ranks > 1 or options.kv_dtype == "fp8"
        options.dtype = options.dtype or "bfloat16"
        memory = parse_size(options.memory) if options.memory else DEFAULT_CPU_KV_BYTES
        lengths, source = _lengths(options)
        shape = read_shape(options.model)
        if not kv_heads_fit(shape.kv_heads, ranks):
            raise PlanError(f"{options.model} has {shape.kv_heads} KV heads, which do not go with {ranks} ranks.")
        shape = replace(shape, kv_heads=of_each(shape.kv_heads, ranks))
        lines = _model_lines(options, shape, memory) + _fit_lines(options, shape, memory)
        lines += _waste_lines(options, shape, memory, lengths, source)
    except (PlanError, ModelError) as error:
        print(f"engine.plan: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    sys.stdout.write("\n".join([*lines, ""]))
    return 0


def _lengths(options: argparse.Namespace) -> tuple[Counter[int], str]:
    if options.lengths and options.worker:
        raise PlanError("--lengths and --worker both give lengths; leave one of them out.")
    if options.lengths:
        return read_lengths(options.lengths), options.lengths
    if options.worker:
        if not options.redis:
            raise PlanError("--worker needs the server's address: set REDIS_URL or --redis.")
        return sample_lengths(options.redis, options.worker), f"what runs on worker {options.worker}"
    return EXAMPLE, "a made-up example of chats; give --lengths or --worker"


def _token_bytes(options: argparse.Namespace, shape: KvShape) -> int:
    if options.kv_dtype != KV_DTYPES[0]:
        return shape.bytes_per_token(1, KV_SCALE_BYTES if options.torch else INT8_SCALE)
    return shape.bytes_per_token(BYTES[options.dtype])


def _blocks(options: argparse.Namespace, shape: KvShape, memory: int) -> int:
    block_size = options.block_size
    block_bytes = block_size * _token_bytes(options, shape)
    if memory < block_bytes:
        raise PlanError(
            f"{show_bytes(memory)} hold no block: one of {block_size} tokens takes {show_bytes(block_bytes)}; "
            "raise --memory or lower --block-size."
        )
    return memory // block_bytes


def _model_lines(options: argparse.Namespace, shape: KvShape, memory: int) -> list[str]:
    size = options.block_size
    blocks = _blocks(options, shape, memory)
    tokens = [
        ("bfloat16, float16", shape.bytes_per_token(2)),
        ("float32", shape.bytes_per_token(4)),
        ("int8 KV, C++ decoder", shape.bytes_per_token(1, INT8_SCALE)),
        ("int8 and fp8 KV, torch", shape.bytes_per_token(1, KV_SCALE_BYTES)),
    ]
    kind = options.dtype if options.kv_dtype == KV_DTYPES[0] else f"{options.kv_dtype} KV"
    each = "" if options.tensor_parallel == 1 else f" on each of {options.tensor_parallel} ranks"
    return [
        f"{options.model}: {shape.layers} layers, {shape.kv_heads} KV heads of {shape.head_dim}{each}, "
        f"context {shape.context:,}",
        "\nKV cache, 2 x layers x KV heads x head size x bytes a value (eight bits: and a scale a head)",
        *(f"  {kinds:28}{token:>12,} bytes a token ({show_bytes(token)})" for kinds, token in tokens),
        f"\nPool of {show_bytes(memory)}{each}, {kind}, blocks of {size} tokens",
        f"  {'bytes a block':28}{size * _token_bytes(options, shape):>12,}",
        f"  {'blocks':28}{blocks:>12,}",
        f"  {'tokens':28}{blocks * size:>12,}",
    ]


def _fit_lines(options: argparse.Namespace, shape: KvShape, memory: int) -> list[str]:
    size = options.block_size
    blocks = _blocks(options, shape, memory)
    prefixes = options.prefix or list(PREFIXES)
    lines = [
        "\nSequences that fit, prompt and answer together; all of them with their first tokens shared, or none",
        f"  {'tokens each':>12}{'alone':>10}" + "".join(f"{f'{prefix:,} shared':>16}" for prefix in prefixes),
    ]
    for length in [length for length in LENGTHS if length < shape.context] + [shape.context]:
        fits = [f"{sequences_that_fit(blocks, size, length, p):,}" if p < length else "-" for p in prefixes]
        alone = sequences_that_fit(blocks, size, length)
        lines.append(f"  {length:>12,}{alone:>10,}" + "".join(f"{fit:>16}" for fit in fits))
    return lines


def _waste_lines(
    options: argparse.Namespace, shape: KvShape, memory: int, lengths: Counter[int], source: str
) -> list[str]:
    mean = sum(length * times for length, times in lengths.items()) / lengths.total()
    middle, high = percentile(lengths, 0.5), percentile(lengths, 0.95)
    lines = [
        f"\nWaste in last blocks, lengths from {source}",
        f"  {lengths.total():,} sequences: mean {mean:,.0f} tokens, median {middle:,}, 95 % up to {high:,}",
        f"  {'block size':>12}{'empty slots':>14}{'of the memory':>15}{'blocks each':>13}{'sequences that fit':>20}",
    ]
    for size in sorted({*BLOCK_SIZES, options.block_size}):
        figures = waste(lengths, size)
        fit = memory // (size * _token_bytes(options, shape)) / figures.blocks
        mark = " <" if size == options.block_size else ""
        lines.append(
            f"  {size:>12}{figures.slots:>14.1f}{figures.share:>15.1%}{figures.blocks:>13.1f}{fit:>20,.0f}{mark}"
        )
    return lines


if __name__ == "__main__":
    sys.exit(main())
