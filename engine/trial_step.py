"""The largest step that a schedule can ask for, made up: run once at the start, it shows what memory a step takes."""

from __future__ import annotations

import numpy as np

from engine.flat_batch import FlatBatch


def trial_step(tokens: int, seqs: int, block_size: int, longest: int) -> tuple[FlatBatch, int]:
    """A step of `tokens` new tokens, cut among `seqs` sequences that all draw, and how many blocks its KV takes.

    No sequence has more than `longest` tokens.
    """
    counts = np.full(seqs, tokens // seqs)
    counts[: tokens % seqs] += 1
    counts = np.minimum(counts, longest)
    starts = np.concatenate(([0], np.cumsum(counts)))
    blocks = -(-counts // block_size)
    firsts = np.cumsum(blocks) - blocks
    positions = np.arange(starts[-1]) - np.repeat(starts[:-1], counts)
    tables = np.minimum(firsts[:, None] + np.arange(blocks.max()), blocks.sum() - 1)
    flat = FlatBatch(
        input_ids=np.zeros(starts[-1], np.int64),
        positions=positions,
        slot_mapping=np.repeat(firsts * block_size, counts) + positions,
        block_tables=tables.astype(np.int32),
        query_starts=starts.astype(np.int32),
        seq_lens=counts.astype(np.int32),
        max_query_len=int(counts.max()),
        max_seq_len=int(counts.max()),
        drawing=[],
        rows=starts[1:] - 1,
        num_draws=seqs,
    )
    return flat, int(blocks.sum())
