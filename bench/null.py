"""A model without arithmetic: what remains of a step is the engine's own work.

It flattens every batch as the real runners do, block tables and slots included, and draws a token that follows from
the one before. Nothing is checked here; the tests have a null model of their own that reads back what it wrote.
"""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf

from engine import EngineConfig, LLMEngine
from engine.flat_batch import NOTHING, BlockTableRows
from engine.runner import Pending, Ready
from engine.sampler import Drawn
from engine.scheduler import Batch
from engine.sequence import Sequence

VOCAB = 32_000


class NullRunner:
    """`flatten` False leaves the arrays out too, for a bench of the scheduler's decisions and not of their cost."""

    asynchronous = False

    def __init__(self, config: EngineConfig, *, max_model_len: int = 16_384, flatten: bool = True) -> None:
        assert config.num_blocks is not None
        self.num_blocks = config.num_blocks
        self.num_host_blocks = 0
        self.vocab_size = VOCAB
        self.max_model_len = config.max_model_len or max_model_len
        self.window: int | None = None
        self.revision = "null"
        self.eos_token_ids: frozenset[int] = frozenset()
        self._tables = BlockTableRows(config.max_num_seqs, self.max_model_len, config.block_size) if flatten else None

    def check(self) -> None:
        """Nothing fails here while nothing is computed."""

    def launch(self, batch: Batch, behind: Batch = NOTHING) -> Pending:
        return Ready(self.run(batch, behind))

    def run(self, batch: Batch, behind: Batch = NOTHING) -> dict[Sequence, Drawn]:
        if self._tables is not None:
            drawing = self._tables.flatten(batch, behind).drawing
        else:
            drawing = [s for s, n in batch.items() if s.num_computed + behind.get(s, 0) + n >= len(s.token_ids)]
        return {s: Drawn([(s.token_ids[-1] * 31 + len(s.token_ids)) % VOCAB]) for s in drawing}

    def copy_blocks(self, pairs: SequenceOf[tuple[int, int]]) -> None:
        """There are no blocks to copy."""


def null_engine(*, max_model_len: int = 16_384, flatten: bool = True, **settings: object) -> LLMEngine:
    """An engine over the null model, without a tokenizer; `settings` are EngineConfig's, num_blocks among them."""
    config = EngineConfig(**settings)  # type: ignore[arg-type]
    return LLMEngine(config, runner=NullRunner(config, max_model_len=max_model_len, flatten=flatten))
