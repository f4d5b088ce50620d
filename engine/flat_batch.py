"""A schedule as flat arrays: all tokens of a step in one row, and which of these rows need logits.

Owns copies of the running sequences' block tables, one row each, so that a step of many decoding sequences costs a few
array operations and no loop over tokens. Knows sequences, but changes nothing of them except `num_synced`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from engine.scheduler import Batch
from engine.sequence import Sequence


@dataclass(slots=True)
class FlatBatch:
    """A step's T tokens of S sequences in one row; numpy arrays as `kernels.api.AttentionMetadata` describes them.

    drawing: the sequences that get tokens, in order. rows int64 [R]: the rows whose logits are wanted: first the
    `num_draws` that something is drawn from, then those of prompts that are scored. draws int64 [len(drawing)]: how
    many of them each drawing sequence has, its last token's and one for each draft token; None: one each. scored:
    (sequence, position of the first row, number of rows), in order. late int64 [T]: for a token that the step in flight
    is still to draw, the row (of a running sequence) that draws it, and -1 for the others; None where all are known.
    lineup: the same for two steps that have the same sequences in the same order, whose block tables have at most grown
    in between; None where nothing is known of that.
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
    rows: NDArray[np.int64]
    num_draws: int
    draws: NDArray[np.int64] | None = None
    scored: list[tuple[Sequence, int, int]] = field(default_factory=list)
    late: NDArray[np.int64] | None = None
    lineup: tuple[int, ...] | None = None


NOTHING: Batch = {}


class BlockTableRows:
    """Copies of the running sequences' block tables, one row each, brought up to date as a step needs them."""

    def __init__(self, max_num_seqs: int, max_model_len: int, block_size: int) -> None:
        self.block_size = block_size
        self.tables = np.zeros((max_num_seqs, -(-max_model_len // block_size)), np.int32)
        self._filled = [0] * max_num_seqs  # entries of each row
        self._changes = 0  # how often some that were there became others

    def flatten(self, batch: Batch, behind: Batch = NOTHING) -> FlatBatch:
        """`behind`: the step in flight. What it computes of a sequence, and the token that it may draw, come first."""
        size = len(batch)
        starts = np.fromiter((sequence.num_computed for sequence in batch), np.int64, size)
        if behind:
            starts += np.fromiter((behind.get(sequence, 0) for sequence in batch), np.int64, size)
        return self._flatten(list(batch), starts, np.fromiter(batch.values(), np.int64, size))

    def parts(self, batch: Batch, most_rows: int, behind: Batch = NOTHING) -> Iterator[FlatBatch]:
        """The batch in as few parts as have at most `most_rows` rows of logits each; nearly always one.

        Run in this order they compute the same: only a prompt that is scored is ever cut, and a part sees the K and V
        of those before it. `most_rows` must be enough for what is drawn for any one sequence.
        """
        starts = {sequence: sequence.num_computed + behind.get(sequence, 0) for sequence in batch}
        if sum(batch.values()) <= most_rows or sum(_rows(s, starts[s], n) for s, n in batch.items()) <= most_rows:
            yield self.flatten(batch, behind)
            return
        part: list[tuple[Sequence, int, int]] = []
        room = most_rows
        for sequence, count in batch.items():
            start, end = starts[sequence], starts[sequence] + count
            while start < end:
                take = end - start
                if _rows(sequence, start, take) > room and sequence.needs_all_rows:
                    take = max(0, min(room, sequence.prompt_len - 1 - start))  # what is drawn stays in one part
                rows = _rows(sequence, start, take)
                if take and rows <= room:
                    part.append((sequence, start, take))
                    start, room = start + take, room - rows
                else:
                    yield self._part(part)
                    part, room = [], most_rows
        yield self._part(part)

    def _part(self, part: list[tuple[Sequence, int, int]]) -> FlatBatch:
        sequences, starts, counts = zip(*part, strict=True)
        return self._flatten(list(sequences), np.array(starts, np.int64), np.array(counts, np.int64))

    def _flatten(self, batch: list[Sequence], starts: NDArray[np.int64], counts: NDArray[np.int64]) -> FlatBatch:
        size = len(batch)
        ends = starts + counts
        rows: list[int] = []
        tokens: list[int] = []
        lengths: list[int] = []
        drawing: list[Sequence] = []
        late: list[tuple[int, int]] = []
        for sequence, start, end in zip(batch, starts.tolist(), ends.tolist(), strict=True):  # one pass: it shows
            table, known = sequence.block_table, sequence.token_ids
            if sequence.num_synced < len(table):
                self._changes += sequence.num_synced < self._filled[sequence.row]
                self._filled[sequence.row] = len(table)
                self.tables[sequence.row, sequence.num_synced : len(table)] = table[sequence.num_synced :]
                sequence.num_synced = len(table)
            rows.append(sequence.row)
            length = len(known)
            if end - start == 1 and start < length:
                tokens.append(known[start])
            elif start < length:
                tokens += _tokens(sequence, start, end)
            else:  # the step in flight draws it
                late.append((len(tokens), sequence.row))
                tokens.append(0)
                length = end
            lengths.append(length)
            if end >= length:
                drawing.append(sequence)
        query_starts = np.zeros(size + 1, np.int32)
        np.cumsum(counts, out=query_starts[1:])
        total = int(query_starts[-1])
        longest = int(ends.max())
        tables = self.tables[rows, : -(-longest // self.block_size)]
        input_ids = np.array(tokens, np.int64)
        if total == size:  # every sequence has one token
            positions, which = starts, np.arange(size)
        else:
            which = np.repeat(np.arange(size), counts)
            positions = np.arange(total) - query_starts[which] + starts[which]
        block, offset = np.divmod(positions, self.block_size)
        last_rows = query_starts[1:].astype(np.int64) - 1
        flat = FlatBatch(
            input_ids=input_ids,
            positions=positions,
            slot_mapping=tables[which, block].astype(np.int64) * self.block_size + offset,
            block_tables=tables,
            query_starts=query_starts,
            seq_lens=ends.astype(np.int32),
            max_query_len=int(counts.max()),
            max_seq_len=longest,
            drawing=drawing,
            rows=last_rows,
            num_draws=size,
            lineup=(self._changes, *rows),
        )
        if late:
            flat.late = np.full(total, -1, np.int64)
            places, sources = zip(*late, strict=True)
            flat.late[list(places)] = sources
        if total > size or len(drawing) < size:
            self._choose_rows(flat, batch, starts, ends, np.array(lengths, np.int64))
        return flat

    @staticmethod
    def _choose_rows(
        flat: FlatBatch,
        batch: list[Sequence],
        starts: NDArray[np.int64],
        ends: NDArray[np.int64],
        known: NDArray[np.int64],
    ) -> None:
        """Which rows need logits where not every sequence, of `known` tokens, has one token and draws from it."""
        complete = ends >= known
        rows, drafts = flat.rows[complete], (ends - known)[complete]
        if drafts.any():
            flat.draws = drafts + 1
            firsts = np.cumsum(flat.draws) - flat.draws
            rows = np.repeat(rows - drafts - firsts, flat.draws) + np.arange(int(flat.draws.sum()))
        flat.num_draws = len(rows)
        scored = [rows]
        for i in np.flatnonzero(~complete | (ends - starts > 1)).tolist():
            sequence = batch[i]
            if sequence.needs_all_rows:
                start = int(starts[i])
                first, count = _scored(sequence, start, int(ends[i]))
                if count:
                    flat.scored.append((sequence, first, count))
                    scored.append(int(flat.query_starts[i]) + first - start + np.arange(count))
        flat.rows = np.concatenate(scored)


def _tokens(sequence: Sequence, start: int, end: int) -> list[int]:
    """Tokens start .. end of a sequence and its draft behind it."""
    tokens = sequence.token_ids[start:end]
    more = end - len(sequence.token_ids)
    return tokens + sequence.draft[:more] if more > 0 else tokens


def _scored(sequence: Sequence, start: int, end: int) -> tuple[int, int]:
    """The rows start .. end whose logits tell of a prompt token that has not been told of: (first, how many)."""
    first = max(start, sequence.num_scored)
    return first, max(0, min(end, sequence.prompt_len - 1) - first)


def _rows(sequence: Sequence, start: int, count: int) -> int:
    """How many rows of logits are wanted of `count` tokens."""
    end = start + count
    known = max(len(sequence.token_ids), start + 1)  # where it starts behind them, the step in flight draws one more
    drawn = max(0, end - known + 1)
    return drawn + (_scored(sequence, start, end)[1] if sequence.needs_all_rows else 0)


def tiles(flat: FlatBatch, rows: int) -> Iterator[tuple[FlatBatch, int]]:
    """The tokens of a step in tiles of so many rows, the last one padded, and how many rows of each are real.

    In order, so that the K and V a token looks back at are there. Nothing is drawn from a tile.
    """
    total = len(flat.input_ids)
    for first in range(0, total, rows):
        last = min(first + rows, total)
        padding = (0, first + rows - last)
        start, stop = np.searchsorted(flat.query_starts, (first, last - 1), side="right") - 1
        starts = np.clip(flat.query_starts[start : stop + 2], first, last)
        seq_lens = flat.positions[starts[1:] - 1] + 1
        yield (
            FlatBatch(
                input_ids=np.pad(flat.input_ids[first:last], padding),
                positions=np.pad(flat.positions[first:last], padding),
                slot_mapping=np.pad(flat.slot_mapping[first:last], padding, constant_values=-1),
                block_tables=flat.block_tables[start : stop + 1],
                query_starts=starts - np.int32(first),
                seq_lens=seq_lens.astype(np.int32),
                max_query_len=int(np.diff(starts).max()),
                max_seq_len=int(seq_lens.max()),
                drawing=[],
                rows=np.zeros(0, np.int64),
                num_draws=0,
                late=None if flat.late is None else np.pad(flat.late[first:last], padding, constant_values=-1),
            ),
            last - first,
        )
