"""Keys and values in eight bits in the torch runner: close to the full ones, the same answers however they are had."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from engine import LLMEngine, SamplingParams
from engine.runner import Runner
from tests.engine.test_llm_engine import collect, prompts, tokens_of
from tests.engine.tiny import VOCAB

Make = Callable[..., LLMEngine]
KINDS = pytest.mark.parametrize("kv_dtype", ["int8", "fp8"])
GREEDY = SamplingParams(max_tokens=16, temperature=0.0, ignore_eos=True)


def scores(engine: LLMEngine) -> torch.Tensor:
    """The logprobs of a prompt's tokens."""
    prompt = [3 + i * i % (VOCAB - 3) for i in range(120)]
    params = SamplingParams(max_tokens=1, temperature=0.0, prompt_logprobs=0)
    engine.add_request("r", prompt, params)
    found: list[float] = []
    for output in collect(engine)["r"]:
        for about in output.prompt_logprobs or []:
            found.append(about.logprob)
    assert len(found) >= 119
    return torch.tensor(found)


@pytest.mark.parametrize(("kv_dtype", "most"), [("int8", 0.03), ("fp8", 0.12)])
def test_what_a_model_says_of_a_text_hardly_changes(tiny_engine: Make, kv_dtype: str, most: float) -> None:
    """Beside how much it differs from token to token; this model's logits are wild."""
    full = scores(tiny_engine())
    close = (scores(tiny_engine(kv_dtype=kv_dtype)) - full).abs() / full.std()
    assert 0 < close.mean() < most
    assert close.max() < 10 * most


@KINDS
@pytest.mark.parametrize(
    ("settings", "happens"),
    [
        ({}, ("cached_tokens",)),
        ({"block_size": 4, "num_blocks": 1024, "token_budget": 13, "max_num_seqs": 12}, ("cached_tokens",)),
        ({"num_blocks": 16, "max_num_seqs": 8}, ("preemptions", "evictions")),
        ({"batch_invariant": True}, ("cached_tokens",)),
    ],
    ids=str,
)
def test_chunks_copied_blocks_batches_and_preemption_change_no_answer(
    tiny_engine: Make, kv_dtype: str, settings: dict[str, Any], happens: tuple[str, ...]
) -> None:
    """I3, with what a block's copy has to take along."""
    alone = tiny_engine(kv_dtype=kv_dtype, prefix_caching=False, max_num_seqs=1)
    wanted = [alone.generate([prompt], GREEDY)[0].token_ids for prompt in prompts()]
    engine = tiny_engine(kv_dtype=kv_dtype, **settings)
    assert isinstance(engine.runner, Runner)
    assert engine.runner._kv.scales is not None
    for number, prompt in enumerate(prompts()):
        engine.add_request(str(number), prompt, GREEDY)
    outputs = collect(engine)
    assert [tokens_of(outputs[str(number)]) for number in range(len(wanted))] == wanted
    for counter in happens:
        assert engine.counters()[counter] > 0


@KINDS
def test_a_pool_of_so_much_memory_holds_more_tokens(tiny_engine: Make, kv_dtype: str) -> None:
    full = tiny_engine(num_blocks=None, kv_memory_bytes=1 << 20, dtype="bfloat16")
    half = tiny_engine(num_blocks=None, kv_memory_bytes=1 << 20, dtype="bfloat16", kv_dtype=kv_dtype)
    assert half.num_blocks == int(full.num_blocks * 2 * 16 / (16 + 4)), "heads of 16 and a scale"
    assert full.runner.kv_layout != half.runner.kv_layout
