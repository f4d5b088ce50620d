"""Notices an answer that goes round in circles, so that a request may end it (`SamplingParams.repetition_stop`).

An answer goes in circles when its last N tokens are one cycle of tokens, said at least four times without a change:
some period p <= N / 4 with token[i] == token[i - p] for all of them. So N identical tokens do, and a list of N / 4
different short items does not. Exact and incremental: for every period it counts for how long it has held, one array
operation over the N / 4 periods a token; nothing is searched again.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

LEAST_CYCLES = 4
"""A verse or a table row may well come three times."""


class RepetitionWatch:
    def __init__(self, window: int, said: Iterable[int] = ()) -> None:
        """`said`: output tokens from before, when an answer is continued."""
        longest = window // LEAST_CYCLES
        self._wanted = window - np.arange(1, longest + 1)  # for how many tokens each period must have held
        self._held = np.zeros(longest, np.int64)
        # The last `longest` tokens, the newest first, at _at; it moves down, and back up when it is at the start.
        self._recent = np.full(4 * longest, -1, np.int64)
        self._at = 3 * longest
        for token in said:
            self.push(token)

    def push(self, token: int) -> bool:
        """Add a token of the output; whether the answer goes in circles now."""
        longest = len(self._held)
        equal = self._recent[self._at : self._at + longest] == token
        self._held += 1
        self._held *= equal
        if self._at == 0:
            self._recent[-longest:] = self._recent[:longest]
            self._at = len(self._recent) - longest
        self._at -= 1
        self._recent[self._at] = token
        return bool((self._held >= self._wanted).any())
