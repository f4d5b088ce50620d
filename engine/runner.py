"""One step of the model: a schedule becomes flat arrays, these become logits, and these tokens.

Owns the model, its KV pool's memory, and per-row copies of what changes seldom (block tables, sampling settings), so
that a step of many decoding sequences costs a few array operations and no loop over tokens. It knows sequences, but
changes nothing of them except `num_synced`; neither queues, text nor tenants concern it.
"""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from engine.config import EngineConfig, EngineConfigError, free_host_memory
from engine.models import LoadedModel, load
from engine.sampler import Drawn, SamplingRows, forbid, sample
from engine.scheduler import Batch
from engine.sequence import Sequence
from kernels.api import AttentionMetadata, KVCache


class ModelRunner(Protocol):
    """What the engine needs of a model: its limits, and steps."""

    num_blocks: int
    vocab_size: int
    max_model_len: int
    window: int | None
    """Tokens beyond which no layer looks back; None when one sees all. Blocks wholly behind it are not read again."""
    revision: str
    eos_token_ids: frozenset[int]

    def run(self, batch: Batch) -> dict[Sequence, Drawn]:
        """Compute the batch. Gives the next tokens of every sequence that has no token left to compute behind it."""
        ...

    def copy_blocks(self, pairs: SequenceOf[tuple[int, int]]) -> None:
        """Copy the KV of whole blocks, (source, destination), one after the other in this order."""
        ...


@dataclass(slots=True)
class FlatBatch:
    """A step's T tokens of S sequences in one row; numpy arrays as `kernels.api.AttentionMetadata` describes them.

    `drawing`: the sequences that get a token, in order; `last_rows` int64: the row of the last token of each.
    """

    input_ids: NDArray[np.int64]
    positions: NDArray[np.int64]
    slot_mapping: NDArray[np.int64]
    block_tables: NDArray[np.int32]
    query_starts: NDArray[np.int32]
    seq_lens: NDArray[np.int32]
    max_query_len: int
    max_seq_len: int
    drawing: list[Sequence]
    last_rows: NDArray[np.int64]


class BlockTableRows:
    """Copies of the running sequences' block tables, one row each, brought up to date as a step needs them."""

    def __init__(self, max_num_seqs: int, max_model_len: int, block_size: int) -> None:
        self.block_size = block_size
        self.tables = np.zeros((max_num_seqs, -(-max_model_len // block_size)), np.int32)

    def flatten(self, batch: Batch) -> FlatBatch:
        size = len(batch)
        for sequence in batch:
            known, table = sequence.num_synced, sequence.block_table
            if known < len(table):
                self.tables[sequence.row, known : len(table)] = table[known:]
                sequence.num_synced = len(table)
        rows = np.fromiter((sequence.row for sequence in batch), np.int64, size)
        counts = np.fromiter(batch.values(), np.int64, size)
        starts = np.fromiter((sequence.num_computed for sequence in batch), np.int64, size)
        ends = starts + counts
        query_starts = np.zeros(size + 1, np.int32)
        np.cumsum(counts, out=query_starts[1:])
        longest = int(ends.max())
        tables = self.tables[rows, : -(-longest // self.block_size)]
        if int(query_starts[-1]) == size:  # every sequence has one token
            input_ids = np.fromiter((s.token_ids[s.num_computed] for s in batch), np.int64, size)
            positions, which = starts, np.arange(size)
        else:
            input_ids = np.fromiter(
                (token for s, count in batch.items() for token in s.token_ids[s.num_computed : s.num_computed + count]),
                np.int64,
                int(query_starts[-1]),
            )
            which = np.repeat(np.arange(size), counts)
            positions = np.arange(len(which)) - query_starts[which] + starts[which]
        block, offset = np.divmod(positions, self.block_size)
        drawing = [s for s, end in zip(batch, ends.tolist(), strict=True) if end == len(s.token_ids)]
        if len(drawing) == size:
            last_rows = query_starts[1:].astype(np.int64) - 1
        else:
            complete = np.fromiter((len(s.token_ids) for s in batch), np.int64, size) == ends
            last_rows = query_starts[1:][complete].astype(np.int64) - 1
        return FlatBatch(
            input_ids=input_ids,
            positions=positions,
            slot_mapping=tables[which, block].astype(np.int64) * self.block_size + offset,
            block_tables=tables,
            query_starts=query_starts,
            seq_lens=ends.astype(np.int32),
            max_query_len=int(counts.max()),
            max_seq_len=longest,
            drawing=drawing,
            last_rows=last_rows,
        )


class Runner:
    """Runs a model through torch over a paged KV pool on one device."""

    def __init__(self, loaded: LoadedModel, config: EngineConfig) -> None:
        shape = loaded.config
        if config.threads is not None:
            torch.set_num_threads(config.threads)
        self.device = loaded.device
        self.dtype = loaded.dtype
        self.revision = loaded.revision
        self.vocab_size = shape.vocab_size
        self.eos_token_ids = frozenset(shape.eos_token_ids)
        self.max_model_len = context_length(config, shape.max_position)
        self.window = shape.window
        block_bytes = config.block_size * shape.kv_bytes_per_token(loaded.dtype.itemsize)
        on_gpu = self.device.type == "cuda"
        free = torch.cuda.mem_get_info(self.device)[0] if on_gpu else free_host_memory()
        self.num_blocks = config.pool_blocks(block_bytes, free, self.max_model_len, on_gpu=on_gpu)
        self._model = loaded.model
        self._kv = KVCache(
            shape.num_layers,
            self.num_blocks,
            config.block_size,
            shape.num_kv_heads,
            shape.head_dim,
            dtype=loaded.dtype,
            device=self.device,
        )
        self._tables = BlockTableRows(config.max_num_seqs, self.max_model_len, config.block_size)
        self._settings = SamplingRows(config.max_num_seqs)

    @classmethod
    def load(cls, config: EngineConfig) -> Runner:
        """Load the model that `config` names. Raises ModelError or EngineConfigError, each of one line."""
        device = config.device
        if device == "auto":
            device = "cuda" if torch.cuda.is_available() else "cpu"
        return cls(load(config.model, config.dtype, device), config)

    @torch.inference_mode()
    def run(self, batch: Batch) -> dict[Sequence, Drawn]:
        for sequence in batch:
            if sequence.num_synced == 0:  # it has come into its row since the last step
                self._settings.set(sequence.row, sequence.params, sequence.index)
        flat = self._tables.flatten(batch)
        hidden = self._model(
            self._to_device(flat.input_ids),
            self._to_device(flat.positions),
            self._kv,
            AttentionMetadata(
                slot_mapping=self._to_device(flat.slot_mapping),
                block_tables=self._to_device(flat.block_tables),
                query_starts=self._to_device(flat.query_starts),
                seq_lens=self._to_device(flat.seq_lens),
                max_query_len=flat.max_query_len,
                max_seq_len=flat.max_seq_len,
            ),
        )
        if not flat.drawing:
            return {}
        logits = self._model.logits(hidden[self._to_device(flat.last_rows)])
        return draw(logits, flat.drawing, self._settings)

    @torch.inference_mode()
    def copy_blocks(self, pairs: SequenceOf[tuple[int, int]]) -> None:
        # One by one: a destination may be a later pair's source, or be given out again. There are few.
        for source, destination in pairs:
            self._kv.data[:, :, destination] = self._kv.data[:, :, source]

    def _to_device(self, array: NDArray[np.int64] | NDArray[np.int32]) -> torch.Tensor:
        tensor = torch.from_numpy(array)
        return tensor if self.device.type == "cpu" else tensor.to(self.device, non_blocking=True)


def draw(logits: torch.Tensor, sequences: list[Sequence], settings: SamplingRows) -> dict[Sequence, Drawn]:
    """The next token of each sequence from its row of logits, float32 [R, V]."""
    size = len(sequences)
    for row, sequence in enumerate(sequences):
        if sequence.num_output < sequence.params.min_tokens:
            forbid(logits, row, [*sequence.stop_ids])
    rows = np.fromiter((sequence.row for sequence in sequences), np.int64, size)
    positions = np.fromiter((len(sequence.token_ids) for sequence in sequences), np.int64, size)
    tokens, bad = sample(logits, settings, rows, positions)
    drawn = {s: Drawn([token]) for s, token in zip(sequences, tokens, strict=True)}
    for row in bad:
        drawn[sequences[row]] = Drawn([], bad=True)
    return drawn


def context_length(config: EngineConfig, max_position: int) -> int:
    """Tokens of prompt and answer together: the model's own, or what the settings cut it to."""
    if config.max_model_len is not None and config.max_model_len > max_position:
        raise EngineConfigError(
            f"max_model_len {config.max_model_len} is beyond the model's own {max_position} tokens; lower it."
        )
    return config.max_model_len or max_position
