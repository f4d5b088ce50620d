"""A model whose logits are a hash of the context: exact whatever the batch, so that draws can be compared bit by bit.

Like the null model it reads its context back through the block tables; unlike it, its tokens are drawn for real, by
`engine.drawing`. `speculate` gives an engine's sequences draft tokens, as a proposer would.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable

import numpy as np
import torch

from engine.config import EngineConfig
from engine.drawing import Drawing, merge
from engine.flat_batch import NOTHING, BlockTableRows
from engine.llm_engine import LLMEngine
from engine.runner import Ready
from engine.sampler import Drawn
from engine.scheduler import Batch
from engine.sequence import Sequence

VOCAB = 61
EOS = 0


def logits_after(context: list[int], spread: float = 3.0) -> np.ndarray:
    """Float32 [VOCAB]: what the model says to a context."""
    seed = zlib.crc32(np.array([*context[-12:], len(context)], np.int32).tobytes())
    return np.random.default_rng(seed).standard_normal(VOCAB).astype(np.float32) * np.float32(spread)


class HashRunner:
    asynchronous = False

    def __init__(self, config: EngineConfig, *, most_rows: int = 1 << 20, spread: float = 3.0) -> None:
        assert config.num_blocks is not None
        self.num_blocks = config.num_blocks
        self.num_host_blocks = config.host_blocks(1, 1 << 20)  # host_kv_memory_bytes counts blocks here
        self.vocab_size = VOCAB
        self.max_model_len = config.max_model_len or 512
        self.window = None
        self.revision = "hash"
        self.kv_layout = f"hash [{config.block_size}]"
        self.block_bytes = config.block_size * 8
        self.eos_token_ids = frozenset({EOS})
        self.parts = 0
        self._most_rows, self._spread = most_rows, spread
        self._tables = BlockTableRows(config.max_num_seqs, self.max_model_len, config.block_size)
        self._drawing = Drawing(config.max_num_seqs, VOCAB)
        self._tokens = np.full((self.num_blocks + self.num_host_blocks) * config.block_size, -1)

    def check(self) -> None:
        """Nothing fails here while nothing is computed."""

    def launch(self, batch: Batch, behind: Batch = NOTHING) -> Ready:
        return Ready(self.run(batch, behind))

    def run(self, batch: Batch, behind: Batch = NOTHING) -> dict[Sequence, Drawn]:
        self._drawing.enter(batch)
        drawn: dict[Sequence, Drawn] = {}
        for flat in self._tables.parts(batch, self._most_rows, behind):
            self.parts += 1
            assert len(flat.rows) <= self._most_rows
            self._tokens[flat.slot_mapping] = self._drawing.input_ids(flat)
            logits = np.zeros((len(flat.rows), VOCAB), np.float32)
            size = self._tables.block_size
            for i, row in enumerate(flat.rows.tolist()):
                s = int(np.searchsorted(flat.query_starts, row, side="right")) - 1
                length = int(flat.positions[row]) + 1
                blocks = flat.block_tables[s, : -(-length // size)].astype(np.int64)
                slots = (blocks[:, None] * size + np.arange(size)).reshape(-1)[:length]
                logits[i] = logits_after(self._tokens[slots].tolist(), self._spread)
            merge(drawn, self._drawing.draw(flat, torch.from_numpy(logits).__getitem__))
        return drawn

    def read_blocks(self, blocks: list[int], tokens: int) -> np.ndarray:
        kv = self._tokens.reshape(-1, self._tables.block_size)[blocks]
        kv.reshape(-1)[tokens:] = 0
        return kv.view(np.uint8)

    def write_blocks(self, blocks: list[int], data: np.ndarray) -> None:
        self._tokens.reshape(-1, self._tables.block_size)[blocks] = data.view(np.int64)

    def copy_blocks(self, pairs: list[tuple[int, int]]) -> None:
        size = self._tables.block_size
        for source, destination in pairs:
            self._tokens[destination * size :][:size] = self._tokens[source * size :][:size]


def hash_engine(*, most_rows: int = 1 << 20, spread: float = 3.0, **settings: object) -> LLMEngine:
    defaults = {"block_size": 4, "max_num_seqs": 4, "token_budget": 16, "num_blocks": 64}
    config = EngineConfig(**{**defaults, **settings})  # type: ignore[arg-type]
    return LLMEngine(config, runner=HashRunner(config, most_rows=most_rows, spread=spread))


def speculate(engine: LLMEngine, propose: Callable[[Sequence], list[int]]) -> None:
    """From now on every sequence that draws is given what `propose` guesses, where budget and pool have room."""
    plain = engine.scheduler.schedule

    def schedule(prefill_cap: object = None, behind: Batch | None = None) -> Batch:
        batch = plain()
        for sequence, count in list(batch.items()):
            start = sequence.num_computed
            if start + count < sequence.num_tokens or sequence.params.penalised:
                continue
            room = min(engine.config.token_budget - sum(batch.values()), sequence.max_total - sequence.num_tokens)
            slots = (len(sequence.block_table) + engine.pool.num_available) * engine.block_size
            draft = propose(sequence)[: max(0, min(room, slots - start - count))]
            missing = -(-(start + count + len(draft)) // engine.block_size) - len(sequence.block_table)
            if missing > 0:
                sequence.block_table += engine.pool.allocate(missing, sequence.tenant)
            sequence.draft = draft
            batch[sequence] = count + len(draft)
        return batch

    engine.scheduler.schedule = schedule  # type: ignore[method-assign]


def knowing(answers: dict[str, list[int]], right: float, seed: int = 0) -> Callable[[Sequence], list[int]]:
    """A proposer that knows the answers, and guesses each token right with this probability."""
    chance = random.Random(seed)

    def propose(sequence: Sequence) -> list[int]:
        coming = answers[sequence.request_id][sequence.num_output :][: chance.randint(0, 6)]
        return [token if chance.random() < right else chance.randrange(1, VOCAB) for token in coming]

    return propose
