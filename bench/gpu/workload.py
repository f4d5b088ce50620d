"""nano-vllm's benchmark through the engine: 256 requests at once, prompts and outputs of 100 to 1,024 random tokens.

The shape is Qwen3-0.6B's, the weights are random, and no answer ends before its length. Output tokens a second count
from the first request to the last token, prompts included, as there.
"""

from __future__ import annotations

import random
import time
from typing import Any

import torch

from bench.gpu.model import make_engine
from bench.gpu.report import Report
from bench.gpu.sizes import Sizes

NAME = "output tokens a second"


def requests(sizes: Sizes, seed: int) -> list[tuple[list[int], int]]:
    """(prompt, output tokens) of each."""
    rng = random.Random(seed)
    most = min(10_000, sizes.work_shape.vocabulary)
    prompts = [[rng.randrange(most) for _ in range(rng.randint(*sizes.tokens))] for _ in range(sizes.requests)]
    return [(prompt, rng.randint(*sizes.tokens)) for prompt in prompts]


def run(report: Report, sizes: Sizes, device: torch.device, seed: int) -> None:
    torch.manual_seed(seed)
    report.attempt(NAME, lambda: measure(report, sizes, device, seed))


def measure(report: Report, sizes: Sizes, device: torch.device, seed: int) -> None:
    engine = make_engine(
        sizes.work_shape,
        device,
        max_model_len=sizes.max_model_len,
        max_num_seqs=sizes.max_num_seqs,
        token_budget=sizes.token_budget,
        block_size=sizes.block_size,
        **({} if device.type == "cuda" else {"num_blocks": 64}),
    )
    # Once before, with a chunk and decodes beside it, so that every kernel is compiled.
    _drain(report, engine, _add(engine, requests(sizes, seed + 1)[:8], most=8))
    work = requests(sizes, seed)
    start, steps = time.perf_counter(), engine.steps
    live = _add(engine, work)
    tokens = _drain(report, engine, live)
    seconds = time.perf_counter() - start
    wanted = sum(output for _, output in work)
    whole = "" if tokens == wanted else f"; only {tokens:,} of {wanted:,} tokens, then its time was up"
    note = f"{len(work)} requests, {tokens:,} tokens in {seconds:.1f} s and {engine.steps - steps:,} steps{whole}"
    report.row(NAME, tokens / seconds, "tok/s", note=note)
    engine.check_integrity()


def _add(engine: Any, work: list[tuple[list[int], int]], most: int | None = None) -> list[str]:
    from engine import SamplingParams

    for number, (prompt, output) in enumerate(work):
        params = SamplingParams(max_tokens=min(output, most or output), ignore_eos=True, temperature=0.6)
        engine.add_request(str(number), prompt, params)
    return [str(number) for number in range(len(work))]


def _drain(report: Report, engine: Any, names: list[str]) -> int:
    """Run all to their end, or until the part's time is up; the tokens that came."""
    tokens = 0
    while engine.has_work():
        for output in engine.step():
            tokens += len(output.new_token_ids)
            if output.error:
                raise RuntimeError(f"request {output.request_id} failed: {output.error}")
        if report.left() <= 0:
            for name in names:
                engine.abort(name)
    return tokens
