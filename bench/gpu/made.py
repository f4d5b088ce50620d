"""Made-up steps: sequences in a paged cache, and models of random weights, all laid out on the device at once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bench.gpu.counts import Shape
from kernels.api import AttentionMetadata

GARBAGE = 2**31 - 1
"""In a block table behind a sequence's blocks."""


@dataclass(frozen=True)
class Steps:
    """Sequences of one step in host memory; tables is NumPy's, as the groups of prefixes are found there."""

    tables: NDArray[np.int32]
    starts: NDArray[np.int32]
    lengths: NDArray[np.int32]
    block_size: int

    def slots(self, seq: int, first: int, last: int) -> NDArray[np.int64]:
        """Where the tokens first .. last of a sequence lie."""
        tokens = np.arange(first, last)
        blocks = self.tables[seq, tokens // self.block_size].astype(np.int64)
        return blocks * self.block_size + tokens % self.block_size

    def metadata(self, device: torch.device) -> AttentionMetadata:
        counts = np.diff(self.starts)
        spans = [self.slots(s, n - c, n) for s, (n, c) in enumerate(zip(self.lengths, counts, strict=True))]

        def on_device(array: NDArray[np.int32] | NDArray[np.int64]) -> Tensor:
            return torch.tensor(array, device=device)  # a copy, also on a CPU: the oracle reads ours

        return AttentionMetadata(
            slot_mapping=on_device(np.concatenate(spans)),
            block_tables=on_device(self.tables),
            query_starts=on_device(self.starts),
            seq_lens=on_device(self.lengths),
            max_query_len=int(counts.max()),
            max_seq_len=int(self.lengths.max()),
        )


def sequences(
    lengths: list[int],
    queries: list[int],
    num_blocks: int,
    block_size: int,
    rng: np.random.Generator,
    *,
    shared: int = 0,
) -> Steps:
    """Sequences with blocks in random order, each block in one place of one sequence while the pool lasts.

    A pool smaller than the sequences need is gone through again and again. shared: leading blocks that all have.
    """
    needed = [-(-length // block_size) for length in lengths]
    total = shared + sum(max(0, n - shared) for n in needed)
    order = np.concatenate([rng.permutation(num_blocks) for _ in range(-(-total // num_blocks))]).astype(np.int32)
    tables = np.full((len(lengths), max(needed) + 2), GARBAGE, np.int32)
    place = shared
    for seq, count in enumerate(needed):
        own = max(0, count - shared)
        tables[seq, : min(shared, count)] = order[: min(shared, count)]
        tables[seq, count - own : count] = order[place : place + own]
        place += own
    starts = np.concatenate(([0], np.cumsum(queries))).astype(np.int32)
    return Steps(tables, starts, np.array(lengths, np.int32), block_size)


def random_like(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device, scale: float = 1.0) -> Tensor:
    """Normal numbers, made on the device in `dtype` itself: a cache of many GiB has no room for another beside it."""
    return torch.empty(shape, dtype=dtype, device=device).normal_(0.0, scale)


def config_data(shape: Shape, max_position: int) -> dict[str, object]:
    """What the model's config.json would have in it."""
    return {
        "model_type": shape.model_type,
        "hidden_size": shape.hidden,
        "intermediate_size": shape.inner,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.dim,
        "vocab_size": shape.vocabulary,
        "max_position_embeddings": max_position,
        "rms_norm_eps": 1e-6,
        "rope_theta": 500_000.0,
        "tie_word_embeddings": shape.tied,
        "eos_token_id": 2,
    }
