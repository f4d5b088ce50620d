"""Which kernels would be compiled after an engine's start on a GPU; JSON: [keys at the start, the names of later ones].

Run by test_triton_runner in a process where kernels are not interpreted. Launches are noted, not made: what is computed
means nothing, and every token drawn is 5. Arguments: a model's folder, an engine's settings as JSON.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable
from typing import Any

import torch

import kernels.triton
from engine import EngineConfig, LLMEngine, SamplingParams
from engine.models.loader import load
from engine.runner import Runner
from engine.tokenizer import Tokenizer
from kernels import api
from kernels.triton import grouped
from kernels.triton.record import launches


class Gpu:
    on_gpu = True

    def free(self) -> int:
        return 1 << 24

    def peak_of(self, work: Callable[[], object]) -> int:
        work()
        return 0


def main() -> None:
    model, settings = sys.argv[1], json.loads(sys.argv[2])
    pick = kernels.triton.pick

    def pick_5(logits: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        return torch.full_like(pick(logits, rows), 5)

    kernels.triton.pick = pick_5  # type: ignore[assignment]
    api.through_triton = lambda x: True
    grouped.MIN_SAVED = 32
    defaults: dict[str, Any] = {"block_size": 16, "max_num_seqs": 12, "token_budget": 100}
    config = EngineConfig(model=model, dtype="bfloat16", device="cpu", **{**defaults, **settings})

    def record(work: Callable[[], None]) -> Callable[[], None]:
        work()
        return work

    with launches() as started:
        runner = Runner(load(model, "bfloat16", "cpu"), config, Gpu(), record)
    engine = LLMEngine(config, runner=runner, tokenizer=Tokenizer.load(model))
    with launches() as noted:
        rng = random.Random(3)
        shared = rng.choices(range(3, 300), k=200)
        for number in range(40):
            prompt = shared[: rng.choice([0, 100, 200])] + rng.choices(range(3, 300), k=rng.randrange(1, 250))
            params = SamplingParams(
                max_tokens=rng.randrange(1, 30),
                temperature=rng.choice([0.0, 1.0]),
                top_p=0.9,
                ignore_eos=True,
                prompt_logprobs=rng.choice([None, None, 1]),
            )
            engine.add_request(str(number), prompt, params)
            for _ in range(rng.choice([0, 1, 5])):
                engine.step()
        while engine.has_work():
            engine.step()
    known = {launch.key for launch in started}
    later = sorted({launch.key.split()[0] for launch in noted if launch.key not in known})
    print(json.dumps([len(known), len(noted), later]))


if __name__ == "__main__":
    main()
