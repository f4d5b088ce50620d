"""How a native decoder is divided among ranks that run it together, each with its own heads (tensor parallel).

The split of Shoeybi et al. (arXiv 1909.08053, section 3): the matrices that make heads and the MLP's inner values are
cut by columns, those that take them in by rows, so that a layer needs two sums over the ranks. Says who has what and
which numbers of ranks fit a model; knows neither processes nor tensors. Loads no torch.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from engine.models.config import ModelConfig


@dataclass(frozen=True)
class Share:
    """What one rank of `size` has. The default is the whole model in one process."""

    rank: int = 0
    size: int = 1

    def part(self, count: int, unit: int = 1) -> slice:
        """This rank's of `count` things, `unit` rows each. Fewer things than ranks: neighbours have the same one."""
        first = self.rank * count // self.size
        return slice(first * unit, (first + of_each(count, self.size)) * unit)

    def tokens(self, vocab_size: int) -> slice:
        """This rank's of the vocabulary: as many as every other's, but fewer at its end."""
        each = -(-vocab_size // self.size)
        return slice(min(self.rank * each, vocab_size), min((self.rank + 1) * each, vocab_size))


def of_each(count: int, ranks: int) -> int:
    return max(1, count // ranks)


def config_of_each(config: ModelConfig, ranks: int) -> ModelConfig:
    """The decoder that each rank runs. The vocabulary's size stays that of the whole."""
    return replace(
        config,
        num_heads=config.num_heads // ranks,
        num_kv_heads=of_each(config.num_kv_heads, ranks),
        intermediate_size=config.intermediate_size // ranks,
    )


def why_not(config: ModelConfig, ranks: int) -> str | None:
    """None when so many ranks can share the model, else the reason, with the numbers that do fit."""
    for name, count in (("query heads", config.num_heads), ("values within its MLP", config.intermediate_size)):
        if count % ranks:
            return f"its {count} {name} do not divide by {ranks}; {_fitting(config)}"
    if not kv_heads_fit(config.num_kv_heads, ranks):
        return f"its {config.num_kv_heads} KV heads do not go with {ranks} ranks; {_fitting(config)}"
    return None


def kv_heads_fit(kv_heads: int, ranks: int) -> bool:
    """Each rank has as many whole ones, or each KV head is on as many ranks."""
    return kv_heads % ranks == 0 or ranks % kv_heads == 0


def _fitting(config: ModelConfig) -> str:
    sizes = [
        str(n)
        for n in range(1, config.num_heads + 1)
        if config.num_heads % n == config.intermediate_size % n == 0 and kv_heads_fit(config.num_kv_heads, n)
    ]
    return f"use {' or '.join([', '.join(sizes[:-1]), sizes[-1]])}" if len(sizes) > 1 else "run it in one process"
