"""A rank's part of the native decoder: its heads, its share of the MLP, its rows of the vocabulary.

Embedding and head are divided too: whole ones would cost each rank a GiB or two of a large vocabulary, and the head's
time at every step, which is much of what a rank has left to read. What a rank computes is the same to the bit on all
of them wherever they go on from it, as each sum is made once for everybody.
"""

from __future__ import annotations

from functools import partial
from typing import Protocol

import torch
import torch.nn.functional as F  # noqa: N812  torch's own usual name
from torch import Tensor

from engine.models.config import ModelConfig
from engine.models.linear import Linear
from engine.models.llama import LlamaModel
from engine.models.ranks import Share, config_of_each


class Ranks(Protocol):
    """The ranks that run a model together, seen from one of them. All of them call the same in the same order."""

    share: Share

    def all_reduce(self, x: Tensor) -> Tensor:
        """The sum of all ranks' x, contiguous; the same bits on each. x may be overwritten with it."""
        ...

    def gather(self, x: Tensor) -> Tensor:
        """On rank 0 all ranks' x [R, n] beside each other, [R, size * n]; elsewhere x."""
        ...


class RowLinear(Linear):
    """A Linear whose inputs are spread over the ranks: each has its columns of the weight; the sum is everybody's.

    The bias counts once: it is zero everywhere but on rank 0.
    """

    def __init__(self, ranks: Ranks, inputs: int, outputs: int, bias: bool = False) -> None:
        super().__init__(inputs, outputs, bias=bias)
        self._all_reduce = ranks.all_reduce

    def forward(self, x: Tensor) -> Tensor:
        return self._all_reduce(super().forward(x))


class SplitModel(LlamaModel):
    """As LlamaModel, of which each rank has its part. `config` is the whole model's.

    Hidden states are the same on every rank; logits are on rank 0, what the others get means nothing.
    """

    def __init__(self, config: ModelConfig, ranks: Ranks) -> None:
        self._rows = -(-config.vocab_size // ranks.share.size)
        super().__init__(
            config_of_each(config, ranks.share.size), output_linear=partial(RowLinear, ranks), vocab_rows=self._rows
        )
        self._ranks = ranks

    def embed(self, input_ids: Tensor) -> Tensor:
        rows = input_ids - self._ranks.share.rank * self._rows
        elsewhere = (rows < 0) | (rows >= self._rows)
        x = F.embedding(rows.masked_fill(elsewhere, 0), self.embed_tokens)
        return self._ranks.all_reduce(x.masked_fill_(elsewhere.unsqueeze(1), 0))

    @torch.inference_mode()
    def logits(self, hidden: Tensor) -> Tensor:
        return self._ranks.gather(self.lm_head(hidden))[:, : self.config.vocab_size].float()
