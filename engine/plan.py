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
import os
import sys
from collections import Counter
from pathlib import Path
from typing import NoReturn

from engine import kv_plan
from engine.config import DEFAULT_CPU_KV_BYTES, KV_DTYPES
from engine.kv_plan import (
    BLOCK_SIZES,
    BYTES,
    DEFAULT_BLOCK_SIZE,
    EXAMPLE,
    LENGTHS,
    KvShape,
    ModelError,
    PlanError,
    mix_that_fits,
    parse_size,
    percentile,
    read_shape,
    sequences_that_fit,
    show_bytes,
    token_bytes,
    waste,
)

PREFIXES = (512, 2048)

# --- lengths ----------------------------------------------------------------------------------------------------------


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
    """The lengths of what runs, from the frames that a worker ("all": every worker) has published lately."""
    from engine.bus import RedisUnavailable, recent_lengths

    try:
        lengths = recent_lengths(url, None if worker == "all" else worker)
    except RedisUnavailable as error:
        raise PlanError(str(error)) from None
    if not lengths:
        who = "No worker" if worker == "all" else f"The worker {worker}"
        raise PlanError(f"{who} has shown a running sequence lately; ask again while there is work, or give --lengths.")
    return lengths


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
    options.add_argument("--block-size", type=int, default=DEFAULT_BLOCK_SIZE, metavar="N", help="tokens a block")
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
        shape = kv_plan.of_a_rank(shape, ranks)
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
    if options.kv_dtype == KV_DTYPES[0]:
        return shape.bytes_per_token(BYTES[options.dtype])
    return token_bytes(shape, "int8-torch" if options.torch and options.kv_dtype == "int8" else options.kv_dtype)


def _blocks(options: argparse.Namespace, shape: KvShape, memory: int) -> int:
    return kv_plan.blocks_that_fit(memory, options.block_size, _token_bytes(options, shape))


def _model_lines(options: argparse.Namespace, shape: KvShape, memory: int) -> list[str]:
    size = options.block_size
    blocks = _blocks(options, shape, memory)
    tokens = [
        ("bfloat16, float16", shape.bytes_per_token(2)),
        ("float32", shape.bytes_per_token(4)),
        ("int8 KV, C++ decoder", token_bytes(shape, "int8")),
        ("int8 and fp8 KV, torch", token_bytes(shape, "fp8")),
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
    mean, middle, high = kv_plan.mean(lengths), percentile(lengths, 0.5), percentile(lengths, 0.95)
    lines = [
        f"\nWaste in last blocks, lengths from {source}",
        f"  {lengths.total():,} sequences: mean {mean:,.0f} tokens, median {middle:,}, 95 % up to {high:,}",
        f"  {'block size':>12}{'empty slots':>14}{'of the memory':>15}{'blocks each':>13}{'sequences that fit':>20}",
    ]
    for size in sorted({*BLOCK_SIZES, options.block_size}):
        figures = waste(lengths, size)
        fit = mix_that_fits(memory // (size * _token_bytes(options, shape)), size, lengths)
        mark = " <" if size == options.block_size else ""
        lines.append(f"  {size:>12}{figures.slots:>14.1f}{figures.share:>15.1%}{figures.blocks:>13.1f}{fit:>20,}{mark}")
    return lines


if __name__ == "__main__":
    sys.exit(main())
