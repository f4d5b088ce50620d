"""Other engines on our workloads, in the same process and run: transformers' `generate` and `generate_batch`.

A workload is a list of (prompt token ids, output tokens). Everything is greedy and ignores the end token, so that all
produce the same number of tokens. A peer that is not installed, or fails, is named with the reason and left out.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import torch

Workload = list[tuple[list[int], int]]

BATCH = 8
"""Sequences that `generate` runs at once: all wait for the longest, so they are sorted by their output first."""
PAGE = 256  # tokens; what transformers takes by default


def generate(model: Any, workload: Workload) -> float:
    """Output tokens a second of static batches, padded on the left; tokens beyond a request's own end do not count."""
    ordered = sorted(workload, key=lambda request: request[1])
    start = time.perf_counter()
    for at in range(0, len(ordered), BATCH):
        batch = ordered[at : at + BATCH]
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


PEERS: dict[str, Callable[[Any, Workload], float]] = {"generate": generate, "generate_batch": generate_batch}


def measure(path: str, dtype: str, workload: Workload, threads: int) -> dict[str, float | str]:
    """Output tokens a second of every peer by name, or why there are none."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    try:
        from transformers import AutoModelForCausalLM
        from transformers.utils import logging

        logging.set_verbosity_error()
        logging.disable_progress_bar()
        torch.set_num_threads(threads)
        model = AutoModelForCausalLM.from_pretrained(path, dtype=getattr(torch, dtype)).eval()
    except Exception as error:  # whatever keeps a peer from running is a row of the table, not our end
        return dict.fromkeys(PEERS, f"{type(error).__name__}: {error}")
    figures: dict[str, float | str] = {}
    for name, run in PEERS.items():
        try:
            with torch.inference_mode():
                run(model, [(prompt[:16], 4) for prompt, _ in workload[:2]])  # warm
                figures[name] = run(model, workload)
        except Exception as error:
            figures[name] = f"{type(error).__name__}: {error}"
    return figures
