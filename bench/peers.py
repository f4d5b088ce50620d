"""Other engines on our workloads, in the same process and run: transformers' `generate` and `generate_batch`.

    python -m bench.peers [--requests 16 --prompt 560 --output 64] [--json FILE]

A workload is a list of (prompt token ids, output tokens). Everything is greedy and ignores the end token, so that all
produce the same number of tokens. A peer that is not installed, or fails, is named with the reason and left out.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from bench.load import percentile
from ops.setup import MODEL_DIR

Workload = list[tuple[list[int], int]]

BATCH = 8
"""Sequences that `generate` runs at once: all wait for the longest, so they are sorted by their output first."""
PAGE = 256  # tokens; what transformers takes by default


def generate(model: Any, workload: Workload, size: int = BATCH) -> float:
    """Output tokens a second of static batches, padded on the left; tokens beyond a request's own end do not count."""
    ordered = sorted(workload, key=lambda request: request[1])
    start = time.perf_counter()
    for at in range(0, len(ordered), size):
        batch = ordered[at : at + size]
        width, output = max(len(prompt) for prompt, _ in batch), batch[-1][1]
        ids = torch.tensor([[0] * (width - len(prompt)) + prompt for prompt, _ in batch])
        mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt, _ in batch])
        model.generate(
            ids,
            attention_mask=mask,
            max_new_tokens=output,
            min_new_tokens=output,
            do_sample=False,
            pad_token_id=0,
        )
    return sum(output for _, output in workload) / (time.perf_counter() - start)


def generate_batch(model: Any, workload: Workload) -> float:
    """The same by transformers' continuous batching, whose cache has room for all; the clock starts after warm-up.

    Through the manager beneath `generate_batch`, because that one gives every request the same max_new_tokens.
    """
    from transformers import GenerationConfig
    from transformers.generation import ContinuousBatchingConfig

    pages = sum(-(-(len(prompt) + output) // PAGE) for prompt, output in workload)
    # No token has the id -1: nothing ends before its max_new_tokens.
    generation = GenerationConfig(max_new_tokens=1024, do_sample=False, eos_token_id=-1, pad_token_id=0)
    batching = ContinuousBatchingConfig(page_size=PAGE, num_blocks=pages + 8, max_batch_tokens=512)
    with model.continuous_batching_context_manager(
        generation_config=generation, continuous_batching_config=batching, block=True, timeout=5
    ) as manager:
        start = time.perf_counter()
        for prompt, output in workload:
            manager.add_request(prompt, max_new_tokens=output)
        tokens = ended = 0
        while ended < len(workload):
            result = manager.get_result(timeout=1)
            if result is not None and result.is_finished():
                tokens += len(result.generated_tokens)
                ended += 1
            elif result is None and not manager.is_running():
                raise RuntimeError("its generation thread ended")
        seconds = time.perf_counter() - start
    expected = sum(output for _, output in workload)
    if tokens != expected:
        raise RuntimeError(f"it gave {tokens} tokens instead of {expected}")
    return tokens / seconds


class Clock:
    """A streamer of transformers that only notes when something came: the prompt first, then every token."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def put(self, value: object) -> None:
        self.times.append(time.perf_counter())

    def end(self) -> None:
        """Nothing is held back."""


def one_request(model: Any, prompt: list[int], output: int) -> dict[str, float]:
    """What a single user of `generate` waits for, under the names of the benchmarks' table."""
    clock = Clock()
    ids = torch.tensor([prompt])
    start = time.perf_counter()
    model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=output,
        min_new_tokens=output,
        do_sample=False,
        pad_token_id=0,
        streamer=clock,
    )
    seconds, tokens = time.perf_counter() - start, clock.times[1:]
    gaps = [later - before for before, later in pairwise(tokens)]
    return {
        "one user: output tok/s": len(tokens) / seconds,
        "one user: TTFT p50, s": tokens[0] - start,
        "one user: ITL p50, ms": 1e3 * percentile(gaps, 0.5),
        "one user: ITL p95, ms": 1e3 * percentile(gaps, 0.95),
    }


PEERS: dict[str, Callable[[Any, Workload], float]] = {"generate": generate, "generate_batch": generate_batch}


def load(path: str, dtype: str, threads: int) -> Any:
    """The model as transformers runs it, from a folder of this machine."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    torch.set_num_threads(threads)
    return AutoModelForCausalLM.from_pretrained(path, dtype=getattr(torch, dtype)).eval()


def measure(path: str, dtype: str, workload: Workload, threads: int) -> dict[str, float | str]:
    """Output tokens a second of every peer by name, or why there are none."""
    try:
        model = load(path, dtype, threads)
    except Exception as error:  # whatever keeps a peer from running is a row of the table, not our end
        return dict.fromkeys(PEERS, f"{type(error).__name__}: {error}")
    return {name: attempt(model, run, workload) for name, run in PEERS.items()}


def attempt(model: Any, run: Callable[[Any, Workload], float], workload: Workload) -> float | str:
    try:
        with torch.inference_mode():
            run(model, [(prompt[:16], 4) for prompt, _ in workload[:2]])  # warm
            return run(model, workload)
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def main(argv: list[str] | None = None) -> int:
    """Equal requests, all at once, and one alone; every figure is written as soon as it is known."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=str(MODEL_DIR))
    parser.add_argument("--dtype", choices=["bfloat16", "float32"], default="bfloat16")
    parser.add_argument("--requests", type=int, default=16)
    parser.add_argument("--prompt", type=int, default=560, help="tokens")
    parser.add_argument("--output", type=int, default=64, help="tokens")
    parser.add_argument("--json", help="write the figures here as well")
    args = parser.parse_args(argv or [])
    rng = random.Random(0)
    workload: Workload = [
        ([rng.randrange(1000, 21000) for _ in range(args.prompt)], args.output) for _ in range(args.requests)
    ]
    found: dict[str, float | str] = {"dtype": args.dtype}

    def tell(figures: dict[str, Any]) -> None:
        found.update(figures)
        for name, value in figures.items():
            print(
                f"  transformers, {name}: {value:.4g}" if isinstance(value, float) else f"  {name}: {value}", flush=True
            )
        if args.json:
            Path(args.json).write_text(json.dumps(found))

    try:
        model = load(args.model, args.dtype, len(os.sched_getaffinity(0)))
    except Exception as error:
        tell({"loading": f"{type(error).__name__}: {error}"})
        return 1
    tell({"generate": attempt(model, lambda model, work: generate(model, work, len(work)), workload)})
    try:
        with torch.inference_mode():
            tell(one_request(model, *workload[0]))
    except Exception as error:
        tell({"one user": f"{type(error).__name__}: {error}"})
    tell({"generate_batch": attempt(model, generate_batch, workload)})
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
