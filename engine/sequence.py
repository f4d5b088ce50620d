"""One sequence: its tokens, its block table and where it stands.

A sequence is WAITING, then RUNNING (it has a row and blocks), possibly PREEMPTED and WAITING again, then FINISHED.
There is no prefill state and no decode state: `num_computed` chases `num_tokens`, by one token a step or by many.

Only the scheduler moves a sequence between states and gives it blocks; only the prefix cache changes `num_hashed` and
`last_cached`; only the engine appends tokens.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Sequence as SequenceOf
from enum import Enum
from typing import TYPE_CHECKING, TypeAlias

from engine.occupancy_wire import OWN, PLATFORM, TEAM
from engine.regions import PUBLIC_SALT
from engine.repetition import RepetitionWatch
from engine.sampling_params import SamplingParams

if TYPE_CHECKING:
    from engine.detokenizer import Detokenizer
    from engine.grammar import GrammarState
    from engine.prefix_cache import CachedBlock
    from engine.regions import Region
    from engine.tool_calls import CallParser


Content: TypeAlias = tuple[tuple[str, bytes], ...]
"""Tokens with their salts: runs of (salt, packed 32-bit token ids), no two neighbours with the same salt."""


GONE = -1
"""In a block table: a block behind the model's window that was given back."""


class SequenceState(Enum):
    WAITING = "waiting"
    RUNNING = "running"
    PREEMPTED = "preempted"  # waiting again, and first of its tenant's queue
    FINISHED = "finished"


class Sequence:
    """The tokens of one choice of a request on their way through the engine. Compared and hashed by identity.

    `index`: which choice. `arrival` orders sequences by age. `regions` give the salt of every position; without any,
    blocks are shared within the tenant and with nobody else. `max_total` bounds prompt + output tokens.
    """

    __slots__ = (
        "arrival",
        "block_table",
        "calls",
        "conversation",
        "detokenizer",
        "draft",
        "finish_reason",
        "grammar",
        "index",
        "last_cached",
        "max_total",
        "num_behind",
        "num_cached",
        "num_charged",
        "num_computed",
        "num_hashed",
        "num_scored",
        "num_synced",
        "num_told",
        "params",
        "plain",
        "prefilling",
        "prompt_len",
        "prompt_name",
        "public_until",
        "region_ends",
        "region_salts",
        "repetition",
        "request_id",
        "row",
        "skips",
        "started",
        "state",
        "stop_ids",
        "tenant",
        "token_ids",
        "watched",
    )

    def __init__(
        self,
        request_id: str,
        prompt_token_ids: SequenceOf[int],
        params: SamplingParams,
        *,
        index: int = 0,
        tenant: str = "",
        regions: SequenceOf[Region] = (),
        arrival: int = 0,
        max_total: int | None = None,
        stop_ids: frozenset[int] = frozenset(),
        detokenizer: Detokenizer | None = None,
        grammar: GrammarState | None = None,
        calls: CallParser | None = None,
        conversation: str = "",
    ) -> None:
        self.request_id = request_id
        self.index = index
        self.token_ids = list(prompt_token_ids)
        self.prompt_len = len(self.token_ids)
        self.params = params
        self.tenant = tenant
        self.region_ends = [region.end for region in regions]
        self.region_salts = [region.salt for region in regions] or [f"tenant {tenant}"]
        self.public_until = self._public_until()
        """Where the platform's part of the prompt ends."""
        self.arrival = arrival
        self.max_total = max_total if max_total is not None else 2**62
        self.stop_ids = stop_ids
        self.detokenizer = detokenizer
        self.grammar = grammar
        self.calls = calls
        """Reads the functions that it calls out of its text, behind `detokenizer`."""
        self.conversation = conversation
        """The chat that it is a turn of; empty: of none."""
        self.repetition = None if params.repetition_stop is None else RepetitionWatch(params.repetition_stop)

        self.plain = params.plain and grammar is None
        """Its next token can be drawn before the host knows the last one."""
        self.watched = self.grammar is not None or self.repetition is not None
        """Something besides its text and its length may end it."""
        self.state = SequenceState.WAITING
        self.prompt_name: str | None = None
        """Of a published prompt that is only computed, to be found later, and not answered."""
        self.finish_reason: str | None = None
        self.block_table: list[int] = []
        self.row = -1
        """Its place among the running sequences, 0 .. max_num_seqs - 1; -1 when it does not run."""
        self.num_computed = 0
        """Tokens whose K and V are in the blocks."""
        self.num_hashed = 0
        """Leading blocks of the table that the prefix cache can find; the last one's entry is `last_cached`."""
        self.last_cached: CachedBlock | None = None
        self.num_behind = 0
        """Leading blocks of the table of which some are GONE; then the prefix cache learns nothing more of it."""
        self.num_cached = 0
        """Prompt tokens found in the prefix cache when it first started."""
        self.num_charged = 0
        """Prompt tokens that the tenant has been charged for or got from the cache: recomputing them is free."""
        self.num_synced = 0
        """Leading entries of the table that the runner has copied."""
        self.num_told = 0
        """Those that who follows the block table has been told of; 0 as well when none is the same as before."""
        self.prefilling = False
        """It runs, and there is a token besides the last one that it has not computed since it was admitted."""
        self.num_scored = 0
        """Prompt tokens behind the first that have got their logprobs, where these are asked for."""
        self.draft: list[int] = []
        """Guesses at the tokens behind `token_ids`, for the next step to confirm; none where `params.penalised`."""
        self.started = False
        self.skips = 0
        """Sequences that were admitted past this one because it did not fit."""

    @property
    def blocks(self) -> list[int]:
        """The blocks that it holds, in order."""
        return [block for block in self.block_table if block != GONE] if self.num_behind else self.block_table

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def num_output(self) -> int:
        return len(self.token_ids) - self.prompt_len

    @property
    def output_token_ids(self) -> list[int]:
        return self.token_ids[self.prompt_len :]

    @property
    def needs_all_rows(self) -> bool:
        """Whether logits are still wanted for prompt tokens: then these have to be computed, cached or not."""
        asked = self.params.prompt_logprobs is not None and self.index == 0
        return asked and self.num_scored < self.prompt_len - 1

    @property
    def finished(self) -> bool:
        return self.state is SequenceState.FINISHED

    @property
    def private_from(self) -> int:
        """Where the last region begins, the one that nobody but this conversation shares."""
        return self.region_ends[-2] if len(self.region_ends) > 1 else 0

    def _public_until(self) -> int:
        for place, salt in enumerate(self.region_salts):
            if salt != PUBLIC_SALT:
                return self.region_ends[place - 1] if place else 0
        return 2**62

    def kind(self, place: int, block_size: int) -> int:
        """Whose the block in this place of the table is: PLATFORM, TEAM or OWN, by the most private of its tokens."""
        end = min((place + 1) * block_size, self.max_total - 1)  # from the last token nothing is computed
        return PLATFORM if end <= self.public_until else TEAM if end <= self.private_from else OWN

    def content(self, start: int, end: int) -> Content:
        """The tokens start .. end with their salts; the last region covers everything behind it too."""
        ends, salts = self.region_ends, self.region_salts
        last = len(salts) - 1
        region = min(bisect_right(ends, start), last)
        if region == last or ends[region] >= end:
            return ((salts[region], array("i", self.token_ids[start:end]).tobytes()),)
        runs: list[tuple[str, bytes]] = []
        while start < end:
            stop = end if region == last else min(ends[region], end)
            tokens = array("i", self.token_ids[start:stop]).tobytes()
            if runs and runs[-1][0] == salts[region]:
                runs[-1] = (salts[region], runs[-1][1] + tokens)
            elif tokens:
                runs.append((salts[region], tokens))
            start = max(stop, start)
            region += 1
        return tuple(runs)

    def __repr__(self) -> str:
        return (
            f"<Sequence {self.request_id} of {self.tenant!r}: {self.state.value}, {self.num_computed} of "
            f"{self.num_tokens} tokens computed, {len(self.block_table)} blocks>"
        )
