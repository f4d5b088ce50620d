"""Guesses at a sequence's next tokens, out of its own text; and whether checking them pays.

Prompt look-up decoding (Saxena, "Prompt Lookup Decoding", 2023): answers repeat what the prompt or the answer already
says, so what followed the last occurrence of the newest n-gram is likely to follow it again. The model checks all
guesses in one step, as rows of a prompt chunk; those up to the first wrong one are tokens won. Promises:

- a proposal is a function of the tokens and of how earlier proposals of the same sequence fared: nothing is random;
- every call is O(drafts), the index included; a long prompt is indexed over several calls; memory is bounded;
- drafts are proposed only where they are expected to raise the tokens a second of the whole batch. What was given up
  is tried again now and then.

A wrong guess costs time and never changes an answer: who verifies sees to that. Knows neither models nor the scheduler.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as SequenceOf

LONGEST, SHORTEST = 4, 2
"""Tokens of the n-grams looked up, longest first: one token is too common a context, more than four match seldom."""
MAX_DRAFTS = 8
INDEX_TOKENS = 8192
"""The newest tokens that are surely indexed; twice as many at most. A token takes about 0.3 KB."""
INDEX_AT_ONCE = 512
"""Tokens indexed in one call, some 0.5 ms: so a long prompt does not hold up the step of all the others."""

PAYS = 1.25
"""A draft must be expected to win so many times what it costs: the estimates of both are rough."""
RETRY_AFTER = 48
"""Proposals withheld before one is tried again: when nothing is ever right, that costs 2 % of the drafts' price."""
FORGET = 0.9
"""Weight of the past at each verdict, so some ten verdicts count."""
STALE = 0.25
"""Weight of the past when a retry begins, so that a text that has begun to repeat itself shows after one or two."""
HOPE = 0.6
"""The acceptance assumed before the first verdict, with the weight of one token."""


class NgramIndex:
    """Where each n-gram of one sequence was last followed by something. Reads the caller's tokens, keeps no copy."""

    __slots__ = ("_at_once", "_indexed", "_limit", "_new", "_old")

    def __init__(self, limit: int = INDEX_TOKENS, at_once: int = INDEX_AT_ONCE) -> None:
        # Two generations instead of an order of age: the older one is dropped as a whole when the newer one is full.
        # Keys are hashes: two n-grams with one hash make a wrong guess, no wrong answer.
        self._new: dict[int, int] = {}
        self._old: dict[int, int] = {}
        self._limit = limit * (LONGEST - SHORTEST + 1)
        self._at_once = at_once
        self._indexed = SHORTEST  # positions before this one are known as followers

    def __len__(self) -> int:
        return len(self._new) + len(self._old)

    def extend(self, token_ids: SequenceOf[int]) -> None:
        """Index what is new in `token_ids`, the sequence's tokens so far, but at most `at_once` tokens."""
        end = min(len(token_ids), self._indexed + self._at_once)
        for position in range(self._indexed, end):
            if len(self._new) >= self._limit:
                self._old, self._new = self._new, {}
            for size in range(SHORTEST, min(LONGEST, position) + 1):
                self._new[hash(tuple(token_ids[position - size : position]))] = position
        self._indexed = max(self._indexed, end)

    def find(self, token_ids: SequenceOf[int]) -> tuple[int, int]:
        """(position behind the last earlier occurrence of the tokens' tail, length of that tail); (0, 0) for none."""
        end = len(token_ids)
        for size in range(min(LONGEST, end), SHORTEST - 1, -1):
            tail = hash(tuple(token_ids[end - size :]))
            position = self._new.get(tail) or self._old.get(tail)
            if position:
                return position, size
        return 0, 0


class Drafter:
    """The drafts of one sequence: its index, and how its drafts have fared, by the length of the n-gram found."""

    __slots__ = ("_accepted", "_size", "_tried", "_withheld", "index")

    def __init__(self, index: NgramIndex | None = None) -> None:
        self.index = index or NgramIndex()
        self._accepted = [HOPE] * (LONGEST + 1)
        self._tried = [1.0] * (LONGEST + 1)
        self._size = 0  # of the n-gram behind the drafts that await their verdict
        self._withheld = 0

    def acceptance(self, size: int) -> float:
        """The estimated chance that a draft behind an n-gram of `size` is right, given that those before it were."""
        return self._accepted[size] / self._tried[size]

    def propose(self, token_ids: SequenceOf[int], least: float, room: int = MAX_DRAFTS) -> list[int]:
        """At most `room` tokens that may follow `token_ids`; none where they are not expected to pay.

        `least` is the chance of being right from which a draft pays: `DraftPolicy.least_chance`.
        """
        if least >= 1.0 or room < 1:
            return []
        self.index.extend(token_ids)
        position, size = self.index.find(token_ids)
        if not size:
            return []
        acceptance, chance, count = self.acceptance(size), 1.0, 0
        while count < min(room, MAX_DRAFTS) and (chance := chance * acceptance) >= least:
            count += 1
        if not count:
            self._withheld += 1
            if self._withheld < RETRY_AFTER:
                return []
            count = 1
            self._accepted[size] *= STALE
            self._tried[size] *= STALE
        self._withheld = 0
        self._size = size
        period = len(token_ids) - position  # what repeats itself up to here is expected to go on repeating
        return [token_ids[position + offset % period] for offset in range(count)]

    def verdict(self, proposed: int, accepted: int) -> None:
        """Of the `proposed` tokens of the last proposal that were checked, the first `accepted` were right."""
        if not proposed:
            return
        size = self._size
        self._accepted[size] = self._accepted[size] * FORGET + accepted
        self._tried[size] = self._tried[size] * FORGET + min(accepted + 1, proposed)


class DraftPolicy:
    """What a draft has to be worth at a batch size. `step_s(prompt tokens, decodes)`: seconds, `StepPacer.step_s`."""

    __slots__ = ("_step_s",)

    def __init__(self, step_s: Callable[[int, int], float]) -> None:
        self._step_s = step_s

    def least_chance(self, decodes: int) -> float:
        """The chance of being right from which one more draft raises the batch's tokens a second; 1.0: none does.

        A step of D decodes gives D tokens in t seconds. A draft adds c seconds and, with chance q, a token: that is
        more a second if q / c > D / t. While nothing is known of the machine, none pays.
        """
        alone = self._step_s(0, decodes)
        if not decodes or not alone > 0:
            return 1.0
        cost = self._step_s(1, decodes) - alone
        return min(1.0, PAYS * cost * decodes / alone)
