"""From rows of logits to what each sequence of a step gets: edits, draws, accepted draft tokens, logprobs.

Owns what is kept for each running sequence between steps: its sampling settings, the token that it drew last, and, for
those few that ask for more than a token, its edits and wishes; grammars are the sequences' own. Promises: a row's token
depends on its own logits, on (seed, choice index, position) and on its own history alone; a draft changes how many
tokens a step gives, never which. `launch` does not wait for the device where nothing but tokens is asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.device import Fetched, upload
from engine.flat_batch import FlatBatch
from engine.grammar import GrammarState, apply_masks
from engine.logits import LogitEdits, edit, logprobs
from engine.sampler import Drawn, Sample, SamplingRows, draw
from engine.scheduler import Batch
from engine.sequence import Sequence

SCORED_ROWS = 64
"""Prompt rows whose logits are in memory at once: 12 MiB for a vocabulary of 49,152."""


@dataclass(slots=True)
class _Wishes:
    """What a sequence wants beyond a token."""

    sequence: Sequence
    edits: LogitEdits | None
    logprobs: int | None


class Drawing:
    """`sample`: who draws, with the signature of engine.sampler.sample; None: its own `draw`, on the logits' device."""

    def __init__(
        self,
        max_num_seqs: int,
        vocab_size: int,
        sample: Sample | None = None,
        *,
        device: torch.device | str = "cpu",
    ) -> None:
        self._sample = sample
        self.last = torch.zeros(max_num_seqs, dtype=torch.int64, device=device)
        """The token that each row drew last: the next step reads it where the host does not know it yet."""
        self._settings = SamplingRows(max_num_seqs)
        self._vocab_size = vocab_size
        self._wishes: dict[int, _Wishes] = {}  # by row; a row without any has no entry

    def enter(self, batch: Batch) -> None:
        """Take up the settings of the sequences that have come into their rows. Call before their tables are copied."""
        for sequence in batch:
            if sequence.num_synced == 0:
                params = sequence.params
                self._settings.set(sequence.row, params, sequence.index)
                edits = None
                if LogitEdits.wanted(params):
                    edits = LogitEdits(params, sequence.prompt_len, sequence.stop_ids, self._vocab_size)
                if edits is not None or params.logprobs is not None or sequence.grammar is not None:
                    self._wishes[sequence.row] = _Wishes(sequence, edits, params.logprobs)

    def input_ids(self, flat: FlatBatch) -> NDArray[np.int64]:
        """The step's tokens, for a runner on the CPU: with those that an earlier step drew since it was scheduled."""
        if flat.late is None:
            return flat.input_ids
        return np.where(flat.late < 0, flat.input_ids, self.last.numpy()[flat.late])

    def launch(self, flat: FlatBatch, logits_of: Callable[[slice], Tensor]) -> Callable[[], dict[Sequence, Drawn]]:
        """As `draw`, which the function returned finishes: where only tokens are wanted, it is what waits for them."""
        rows, positions = _places(flat)
        if flat.scored or flat.draws is not None or (self._wishes and self._wishes_at(rows.tolist())):
            drawn = self.draw(flat, logits_of)
            return lambda: drawn
        tokens = self.last[:0]
        if flat.drawing:
            tokens, bad = self._tokens(flat, logits_of(slice(flat.num_draws)), rows, positions)
            tokens = torch.where(bad, -1, tokens)
        fetched = Fetched(tokens)

        def result() -> dict[Sequence, Drawn]:
            found = zip(flat.drawing, fetched.get().tolist(), strict=True)
            return {s: Drawn([token]) if token >= 0 else Drawn([], bad=True) for s, token in found}

        return result

    def draw(self, flat: FlatBatch, logits_of: Callable[[slice], Tensor]) -> dict[Sequence, Drawn]:
        """`logits_of(part)`: logits float32 [R, V] for `flat.rows[part]`; may be changed in place."""
        drawn = self._draw(flat, logits_of(slice(flat.num_draws))) if flat.drawing else {}
        at = flat.num_draws
        for sequence, position, count in flat.scored:
            most = sequence.params.prompt_logprobs or 0
            told = []
            for first in range(0, count, SCORED_ROWS):
                size = min(SCORED_ROWS, count - first)
                start = position + first + 1  # a row's logits are about the token behind it
                tokens = sequence.token_ids[start : start + size]
                part = slice(at + first, at + first + size)
                told += logprobs(logits_of(part), tokens, [most] * size)
            drawn.setdefault(sequence, Drawn([])).prompt_logprobs = told
            at += count
        return drawn

    def _tokens(
        self, flat: FlatBatch, logits: Tensor, rows: NDArray[np.int64], positions: NDArray[np.int64]
    ) -> tuple[Tensor, Tensor]:
        tokens, bad = draw(logits, self._settings, rows, positions)
        if flat.draws is None:  # behind drafts nothing is computed before the host has seen them
            self.last.index_copy_(0, upload(rows, self.last.device), tokens)
        return tokens, bad

    def _listed(
        self, flat: FlatBatch, logits: Tensor, rows: NDArray[np.int64], positions: NDArray[np.int64]
    ) -> tuple[list[int], list[int]]:
        """As lists: tokens, and the rows that are unusable."""
        if self._sample is None:
            tokens, bad = self._tokens(flat, logits, rows, positions)
            return tokens.tolist(), bad.nonzero()[:, 0].tolist()
        found, unusable = self._sample(logits, self._settings, rows, positions)
        if flat.draws is None:
            self.last.numpy()[rows] = np.maximum(found, 0)
        return found, unusable

    def _draw(self, flat: FlatBatch, logits: Tensor) -> dict[Sequence, Drawn]:
        sequences = flat.drawing
        rows, positions = _places(flat)
        wishes = self._wishes_at(rows.tolist()) if self._wishes else []
        told = [(row, wish.logprobs) for row, wish in wishes if wish.logprobs is not None]
        raw = logits[[row for row, _ in told]] if told else None
        states = _grammars(wishes, positions)
        if states:
            apply_masks(logits, list(states), list(states.values()))
        edits = []
        for row, wish in wishes:
            if wish.edits is not None:
                wish.edits.follow(wish.sequence.token_ids)
                said = int(positions[row]) - wish.sequence.prompt_len
                if row in states and said < wish.edits.params.min_tokens and states[row].must_end:
                    said = wish.edits.params.min_tokens  # or nothing would be left to draw
                edits.append((row, wish.edits, said))
        if edits:
            edit(logits, edits)
        tokens, bad = self._listed(flat, logits, rows, positions)
        # A model's fault is NaN or infinity, which no edit takes away; that nothing at all is left is its request's.
        edited = {row for row, wish in wishes if wish.edits is not None or wish.sequence.grammar is not None}
        emptied = {row for row in bad if row in edited and float(logits[row].amax()) == -np.inf}
        if flat.draws is None:
            drawn = {s: Drawn([token]) for s, token in zip(sequences, tokens, strict=True)}
            for row in bad:
                drawn[sequences[row]] = Drawn([], bad=True, by_settings=row in emptied)
        else:
            drawn = _accepted(sequences, flat.draws.tolist(), tokens, set(bad), emptied)
        if raw is not None:
            about = logprobs(raw, [tokens[row] for row, _ in told], [most for _, most in told])
            for (row, _), one in zip(told, about, strict=True):
                mine = drawn[self._wishes[int(rows[row])].sequence]
                mine.logprobs = mine.logprobs or []
                if len(mine.logprobs) < len(mine.tokens):
                    mine.logprobs.append(one)
        return drawn

    def _wishes_at(self, rows: list[int]) -> list[tuple[int, _Wishes]]:
        """(row of logits, wishes) of those that have any; forgets those whose sequence has left its row."""
        for row in [row for row, wish in self._wishes.items() if wish.sequence.row != row]:
            del self._wishes[row]
        return [(i, wish) for i, row in enumerate(rows) if (wish := self._wishes.get(row)) is not None]


def _places(flat: FlatBatch) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Of each row that something is drawn from: its sequence's row, and the position that the drawn token will have."""
    rows = np.fromiter((sequence.row for sequence in flat.drawing), np.int64, len(flat.drawing))
    if flat.draws is not None:
        rows = np.repeat(rows, flat.draws)
    return rows, flat.positions[flat.rows[: flat.num_draws]] + 1


def _grammars(wishes: list[tuple[int, _Wishes]], positions: NDArray[np.int64]) -> dict[int, GrammarState]:
    """The state of each row that has a grammar; behind draft tokens, what it will be if these are accepted."""
    states: dict[int, GrammarState] = {}
    for row, wish in wishes:
        sequence, state = wish.sequence, wish.sequence.grammar
        if state is not None:
            drafted = int(positions[row]) - len(sequence.token_ids)
            if drafted:
                state = states[row - 1].copy()
                state.accept(sequence.draft[drafted - 1])
            states[row] = state
    return states


def _accepted(
    sequences: list[Sequence], draws: list[int], tokens: list[int], bad: set[int], emptied: set[int]
) -> dict[Sequence, Drawn]:
    """The draft tokens that equal what was drawn in their place, and the token drawn behind them.

    What is drawn behind a draft token that was not drawn means nothing: its context is not the answer's.
    """
    drawn: dict[Sequence, Drawn] = {}
    at = 0
    for sequence, count in zip(sequences, draws, strict=True):
        end = at
        while end < at + count - 1 and end not in bad and tokens[end] == sequence.draft[end - at]:
            end += 1
        drawn[sequence] = Drawn([], bad=True, by_settings=end in emptied) if end in bad else Drawn(tokens[at : end + 1])
        at += count
    return drawn


def merge(earlier: dict[Sequence, Drawn], later: dict[Sequence, Drawn]) -> None:
    """Add to `earlier` what a later part of the same step drew. Only the prompt of a sequence is ever in two parts."""
    for sequence, drawn in later.items():
        before = earlier.get(sequence)
        if before is not None and before.prompt_logprobs is not None:
            drawn.prompt_logprobs = before.prompt_logprobs + (drawn.prompt_logprobs or [])
        earlier[sequence] = drawn
