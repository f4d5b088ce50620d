"""The native decoder gives what transformers' own forward gives: logits within 1e-4, greedy answers token for token."""

from __future__ import annotations

import random
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.models import LoadedModel, load
from kernels.api import AttentionMetadata, KVCache
from tests.engine.tiny import make_tiny

LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 64}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama"},
    "llama, untied, one KV head, head_dim apart from hidden size": {
        "model_type": "llama",
        "tie_word_embeddings": False,
        "hidden_size": 96,
        "num_attention_heads": 6,
        "num_key_value_heads": 1,
        "head_dim": 24,
    },
    "llama with every bias, no GQA": {
        "model_type": "llama",
        "attention_bias": True,
        "mlp_bias": True,
        "num_key_value_heads": 4,
    },
    "llama with llama3 rope scaling": {"model_type": "llama", "rope_scaling": LLAMA3, "rope_theta": 10000.0},
    "llama with llama3 rope scaling, as transformers 5 writes it": {"model_type": "llama", "rope_parameters": LLAMA3},
    "qwen2": {"model_type": "qwen2"},
    "qwen2, untied, seven query heads a KV head": {
        "model_type": "qwen2",
        "tie_word_embeddings": False,
        "num_attention_heads": 14,
        "num_key_value_heads": 2,
    },
    "qwen2 whose last layers have a window": {
        "model_type": "qwen2",
        "num_hidden_layers": 3,
        "use_sliding_window": True,
        "sliding_window": 24,
        "max_window_layers": 1,
    },
    "qwen3": {"model_type": "qwen3", "head_dim": 24},
    "qwen3 with every bias, untied": {"model_type": "qwen3", "attention_bias": True, "tie_word_embeddings": False},
    "qwen3 with layer types": {
        "model_type": "qwen3",
        "use_sliding_window": True,
        "sliding_window": 33,
        "layer_types": ["sliding_attention", "full_attention"],
    },
    "mistral without a window": {"model_type": "mistral", "sliding_window": None, "head_dim": 32},
    "mistral with a window beyond its context": {"model_type": "mistral", "sliding_window": 4096},
    "mistral with a window": {"model_type": "mistral", "sliding_window": 32},
    "smollm3": {"model_type": "smollm3", "num_hidden_layers": 4},
    "smollm3 with layers chosen, biases": {
        "model_type": "smollm3",
        "no_rope_layers": [0, 1],
        "attention_bias": True,
        "mlp_bias": True,
    },
    "llama with yarn": {"model_type": "llama", "rope_scaling": YARN},
    "qwen2 with yarn, its context said as trained": {
        "model_type": "qwen2",
        "max_position_embeddings": 64,
        "rope_scaling": {"type": "yarn", "factor": 4.0},
    },
    "qwen3 with yarn and every option of it": {
        "model_type": "qwen3",
        "rope_parameters": {**YARN, "beta_fast": 16, "beta_slow": 2, "truncate": False, "mscale": 1.0}
        | {"mscale_all_dim": 0.7},
    },
    "mistral with yarn, an attention factor": {
        "model_type": "mistral",
        "sliding_window": None,
        "rope_parameters": {**YARN, "attention_factor": 1.3},
    },
}


class Paged:
    """Feeds sequences to a native model through a cache whose block tables are shuffled."""

    def __init__(self, loaded: LoadedModel, num_blocks: int = 64, block_size: int = 16, seed: int = 0) -> None:
        config = loaded.config
        self.model, self.block_size = loaded.model, block_size
        shape = (config.num_layers, num_blocks, block_size, config.num_kv_heads, config.head_dim)
        self.kv = KVCache(*shape, dtype=loaded.dtype)
        self.kv.data.fill_(float("nan"))
        self.free = list(range(num_blocks))
        random.Random(seed).shuffle(self.free)
        self.tables: dict[int, list[int]] = {}
        self.lengths: dict[int, int] = {}

    def step(self, batch: dict[int, list[int]]) -> dict[int, torch.Tensor]:
        """Run the given new tokens of each sequence; logits [n, vocabulary] of each."""
        ids, positions, slots, starts, lengths = [], [], [], [0], []
        for sequence, tokens in batch.items():
            table = self.tables.setdefault(sequence, [])
            done = self.lengths.get(sequence, 0)
            while len(table) * self.block_size < done + len(tokens):
                table.append(self.free.pop())
            for i, token in enumerate(tokens, done):
                ids.append(token)
                positions.append(i)
                slots.append(table[i // self.block_size] * self.block_size + i % self.block_size)
            starts.append(len(ids))
            self.lengths[sequence] = done + len(tokens)
            lengths.append(done + len(tokens))
        width = max(len(self.tables[s]) for s in batch)
        tables = [self.tables[s] + [10**6] * (width - len(self.tables[s])) for s in batch]
        meta = AttentionMetadata(
            slot_mapping=torch.tensor(slots),
            block_tables=torch.tensor(tables, dtype=torch.int32),
            query_starts=torch.tensor(starts, dtype=torch.int32),
            seq_lens=torch.tensor(lengths, dtype=torch.int32),
            max_query_len=max(len(tokens) for tokens in batch.values()),
            max_seq_len=max(lengths),
        )
        hidden = self.model(torch.tensor(ids), torch.tensor(positions), self.kv, meta)
        logits = self.model.logits(hidden)
        return {s: logits[starts[i] : starts[i + 1]] for i, s in enumerate(batch)}


def theirs(path: str | Path) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(str(path), dtype=torch.float32, local_files_only=True).eval()


def their_logits(model: Any, tokens: list[int]) -> torch.Tensor:
    with torch.inference_mode():
        return model(torch.tensor([tokens])).logits[0].float()


def is_greedy(model: Any, prompt: list[int], answer: list[int]) -> bool:
    """Whether each token of the answer is the one that transformers finds likeliest after everything before it."""
    logits = their_logits(model, prompt + answer[:-1])
    return logits[len(prompt) - 1 :].argmax(-1).tolist() == answer


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_equal_those_of_transformers_for_a_chunked_prefill(family: str, tmp_path: Path) -> None:
    path = make_tiny(tmp_path / "m", **FAMILIES[family], seed=3)
    loaded = load(path, "float32")
    tokens = torch.randint(3, loaded.config.vocab_size, (150,), generator=torch.Generator().manual_seed(1)).tolist()
    expected = their_logits(theirs(path), tokens)
    paged = Paged(loaded)
    got, cuts = [], [0, 1, 40, 41, 107, 150]
    for start, stop in pairwise(cuts):
        got.append(paged.step({0: tokens[start:stop]})[0])
    torch.testing.assert_close(torch.cat(got), expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_answers_equal_those_of_transformers_in_one_mixed_batch(family: str, tmp_path: Path) -> None:
    path = make_tiny(tmp_path / "m", **FAMILIES[family], seed=4)
    loaded, reference = load(path, "float32"), theirs(path)
    prompts = [torch.randint(3, loaded.config.vocab_size, (n,)).tolist() for n in (1, 7, 33, 80)]
    paged = Paged(loaded, block_size=8)
    answers: list[list[int]] = [[] for _ in prompts]
    queue = [list(p) for p in prompts]
    # Prompts go in by chunks of 20 while the shorter ones already decode: prefill and decode share a batch.
    while any(len(a) < 12 for a in answers):
        batch = {s: [queue[s].pop(0) for _ in range(min(20, len(queue[s])))] for s in range(len(prompts))}
        for s, logits in paged.step(batch).items():
            if not queue[s]:
                answers[s].append(int(logits[-1].argmax()))
                queue[s] = answers[s][-1:]
    for prompt, answer in zip(prompts, answers, strict=True):
        assert is_greedy(reference, prompt, answer)


def test_smollm2_answers_as_transformers_does(model_path: str) -> None:
    loaded, reference = load(model_path, "float32"), theirs(model_path)
    generator = torch.Generator().manual_seed(0)
    first = torch.randint(20, 49152, (90,), generator=generator).tolist()
    second = torch.randint(20, 49152, (41,), generator=generator).tolist()
    paged = Paged(loaded, num_blocks=32)
    expected = their_logits(reference, first)
    got = [paged.step({0: first[:50]})[0]]
    mixed = paged.step({0: first[50:], 1: second})
    got.append(mixed[0])
    torch.testing.assert_close(torch.cat(got), expected, atol=1e-3, rtol=1e-4)
    answers = {0: [int(mixed[0][-1].argmax())], 1: [int(mixed[1][-1].argmax())]}
    for _ in range(15):
        for s, logits in paged.step({s: answers[s][-1:] for s in answers}).items():
            answers[s].append(int(logits[-1].argmax()))
    assert is_greedy(reference, first, answers[0])
    assert is_greedy(reference, second, answers[1])


def test_bfloat16_stays_close_to_float32(model_path: str) -> None:
    exact, rounded = load(model_path, "float32"), load(model_path, "bfloat16")
    tokens = torch.randint(20, 49152, (64,), generator=torch.Generator().manual_seed(0)).tolist()
    expected = Paged(exact).step({0: tokens})[0].log_softmax(-1)
    got = Paged(rounded).step({0: tokens})[0].log_softmax(-1)
    divergence = (expected.exp() * (expected - got)).sum(-1)
    assert float(divergence.mean()) < 0.02
