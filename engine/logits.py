"""What a request's settings do to its logits before a draw, and what is told of the distribution.

Owns `LogitEdits`, one per sequence that asks for any: logit_bias, min_tokens, and the penalties with their counts of
tokens, which grow by one entry a token and are never rebuilt from a step to the next. Edits of all rows are applied
together, element by element, so no row's result depends on another's. A sequence without edits costs nothing.

The order is vLLM's: bias, repetition penalty, frequency and presence penalty; what min_tokens forbids stays forbidden.
Logprobs are those of the model itself, before all of this and before temperature and filters (vLLM's default, "raw"):
they mean the same at any settings, and at temperature 0 they are not all 0.
"""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.sampling_params import SamplingParams, TokenLogprobs


class LogitEdits:
    """The edits of one sequence: `follow` its tokens, then `edit`.

    Where it stands in the schedule does not matter: after a preemption a new one, shown all tokens, is the same.
    """

    def __init__(self, params: SamplingParams, prompt_len: int, stop_ids: frozenset[int], vocab_size: int) -> None:
        self.params = params
        self.prompt_len = prompt_len
        inside = {token: value for token, value in params.logit_bias.items() if token < vocab_size}
        self.bias_ids = np.fromiter(inside.keys(), np.int64, len(inside))
        self.bias = np.fromiter(inside.values(), np.float32, len(inside))
        self.stop_ids = np.array(sorted(token for token in stop_ids if 0 <= token < vocab_size), np.int64)
        # Only the repetition penalty looks at the prompt.
        self._known = 0 if params.repetition_penalty != 1.0 else prompt_len
        self._place: dict[int, int] = {}
        self._ids = np.zeros(64, np.int64)
        self._counts = np.zeros(64, np.float32)

    @staticmethod
    def wanted(params: SamplingParams) -> bool:
        return bool(params.logit_bias or params.min_tokens or params.penalised)

    @property
    def counts(self) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """The distinct tokens so far, and how often each came in the output."""
        size = len(self._place)
        return self._ids[:size], self._counts[:size]

    def follow(self, token_ids: SequenceOf[int]) -> None:
        """Count the tokens that are new since the last call."""
        if not self.params.penalised:
            return
        for token in token_ids[self._known : self.prompt_len]:
            self._at(token)
        for token in token_ids[max(self._known, self.prompt_len) :]:
            place = self._at(token)  # before the array is looked at, which this may replace
            self._counts[place] += 1.0
        self._known = len(token_ids)

    def _at(self, token: int) -> int:
        place = self._place.get(token)
        if place is None:
            place = self._place[token] = len(self._place)
            if place == len(self._ids):
                self._ids = np.concatenate([self._ids, np.zeros_like(self._ids)])
                self._counts = np.concatenate([self._counts, np.zeros_like(self._counts)])
            self._ids[place] = token
        return place


def edit(logits: Tensor, rows: SequenceOf[tuple[int, LogitEdits, int]]) -> None:
    """Edit logits float32 [R, V], contiguous, in place: `rows` are (row, its edits, output tokens before its draw)."""
    flat, vocabulary = logits.view(-1), logits.shape[1]

    def places(parts: list[tuple[int, NDArray[np.int64]]]) -> Tensor:
        return _tensor(np.concatenate([row * vocabulary + ids for row, ids in parts]), logits)

    biased = [(row, edits) for row, edits, _ in rows if len(edits.bias_ids)]
    if biased:
        where = places([(row, edits.bias_ids) for row, edits in biased])
        flat[where] += _tensor(np.concatenate([edits.bias for _, edits in biased]), logits)
    penalised = [(row, edits) for row, edits, _ in rows if edits.params.penalised]
    if penalised:
        counted = [edits.counts for _, edits in penalised]
        where = places([(row, ids) for (row, _), (ids, _) in zip(penalised, counted, strict=True)])
        sizes = [len(ids) for ids, _ in counted]
        repetition, frequency, presence = (
            _tensor(np.repeat(np.array([getattr(e.params, name) for _, e in penalised], np.float32), sizes), logits)
            for name in ("repetition_penalty", "frequency_penalty", "presence_penalty")
        )
        counts = _tensor(np.concatenate([counts for _, counts in counted]), logits)
        scores = flat[where]
        scores = torch.where(scores > 0, scores / repetition, scores * repetition)
        flat[where] = scores - frequency * counts - presence * (counts > 0)
    too_early = [(row, edits.stop_ids) for row, edits, said in rows if said < edits.params.min_tokens]
    if too_early:
        flat[places(too_early)] = -torch.inf


def logprobs(logits: Tensor, tokens: SequenceOf[int], most: SequenceOf[int]) -> list[TokenLogprobs]:
    """One for each row of logits, float32 [R, V]: of its token, and of the likeliest `most` tokens."""
    every = logits.log_softmax(dim=-1)
    own = every.gather(1, torch.tensor(tokens, device=every.device)[:, None])[:, 0].tolist()
    width = min(max(most, default=0), every.shape[1])
    values, ids = every.topk(width, dim=-1)
    tops = zip(ids.tolist(), values.tolist(), most, strict=True)
    return [
        TokenLogprobs(token, logprob, list(zip(top_ids[:count], top_values[:count], strict=True)))
        for token, logprob, (top_ids, top_values, count) in zip(tokens, own, tops, strict=True)
    ]


def _tensor(array: NDArray[np.int64] | NDArray[np.float32], like: Tensor) -> Tensor:
    return torch.from_numpy(array).to(like.device)
