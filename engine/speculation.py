"""Gives decoding sequences draft tokens to be checked in the step, where that is expected to pay.

Owns a drafter for each sequence that may be drafted for (`engine.drafts` says how it guesses), and the choice of how
much a step carries: drafts take what the token budget leaves, and never a block that somebody might need. Answers are
the same with and without: the runner keeps only what it would have drawn.

Off by default: on a CPU a row costs as much as it wins unless the text repeats itself.
"""

from __future__ import annotations

from engine.drafts import Drafter, DraftPolicy
from engine.pacer import StepPacer
from engine.sampler import Drawn
from engine.scheduler import Batch, Scheduler
from engine.sequence import Sequence


class Speculation:
    def __init__(self, scheduler: Scheduler, pacer: StepPacer) -> None:
        self._scheduler = scheduler
        self._policy = DraftPolicy(pacer.step_s)
        self._drafters: dict[Sequence, Drafter] = {}
        self.proposed = self.accepted = 0
        """Draft tokens so far."""

    def draft(self, batch: Batch) -> None:
        """Add drafts to the decoding sequences of a schedule."""
        least = self._policy.least_chance(self._scheduler.num_decodes)
        if least >= 1.0:
            return
        budget = self._scheduler.token_budget - sum(batch.values())
        for sequence, count in list(batch.items()):
            if budget <= 0:
                return
            if count > 1 or sequence.prefilling or sequence.params.penalised:
                continue
            drafter = self._drafters.get(sequence) or self._drafters.setdefault(sequence, Drafter())
            # What is drawn behind the drafts is a token too.
            room = min(budget, sequence.max_total - sequence.num_tokens - 1)
            draft = drafter.propose(sequence.token_ids, least, room)
            if not draft:
                continue
            draft = draft[: self._scheduler.make_room_for_draft(sequence, len(draft))]
            sequence.draft = draft
            batch[sequence] = 1 + len(draft)
            budget -= len(draft)

    def judge(self, sequence: Sequence, drawn: Drawn) -> None:
        """What became of a sequence's draft."""
        accepted = max(len(drawn.tokens) - 1, 0)
        self.proposed += len(sequence.draft)
        self.accepted += accepted
        self._drafters[sequence].verdict(len(sequence.draft), accepted)

    def forget(self, sequence: Sequence) -> None:
        """The sequence has ended."""
        self._drafters.pop(sequence, None)
