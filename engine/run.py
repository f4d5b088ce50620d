"""A generation that a worker owns: where it stands in its log, its counts and times, and how it will end.

Of one that another worker began, counts and times are those of the whole, as if nothing had happened between.
"""

from __future__ import annotations

import time
from typing import Any

import msgspec

from engine.continuation import begun
from engine.protocol import AnyTerminal, Part, Request, Taken, Timing, Usage


class Run:
    """A generation that this worker owns: where it stands, and what its last event will need."""

    __slots__ = (
        "added_at", "attempt", "begun", "cached", "deadline", "ending", "first_at", "heard_at", "id", "last_at", "left",
        "outputs", "parts", "prompt", "reason", "request", "scheduled_at", "seq", "several", "shared", "taken_at",
        "waited_s",
    )  # fmt: skip

    def __init__(self, taken: Taken) -> None:
        self.id = taken.id
        self.attempt = taken.attempt
        self.seq = taken.seq + 1
        self.request: Request | None = None
        self.heard_at = self.taken_at = time.monotonic()
        self.waited_s = taken.waited_ms / 1000
        self.deadline: float | None = None
        self.added_at: float | None = None  # the scheduler has it
        self.scheduled_at: float | None = None  # the first step with a part of it begins
        self.first_at: float | None = None  # its first token is there
        self.last_at = self.taken_at
        self.prompt = self.cached = self.shared = 0  # tokens; `shared`: of what others share, whether cached or not
        self.outputs: dict[int, int] = {}  # choice -> its tokens
        self.several = False  # choices
        self.left = 0  # of them that have not ended
        self.reason: str | None = None  # why the first choice ended by itself
        self.parts: list[Part] = []  # what this step has added
        self.ending: AnyTerminal | None = None  # what it ends with, once the engine has let go of it
        self.begun = begun(taken.log)
        self._resume(taken)

    def _resume(self, taken: Taken) -> None:
        """Take over the counts and times of those who ran it before."""
        before = self.begun
        if before.started is None:
            return
        self.prompt, self.cached = before.started.prompt_tokens, before.started.cached_tokens
        self.shared = before.started.shared_tokens
        self.outputs = {index: len(choice.token_ids) for index, choice in before.choices.items()}
        self.reason = before.choice(0).finish_reason
        self.taken_at -= (taken.now_ms - taken.taken_ms) / 1000
        if taken.first_ms:
            self.first_at = self.last_at - (taken.now_ms - taken.first_ms) / 1000

    @property
    def engine_id(self) -> str:
        """The engine may still have to tell the end of an earlier attempt when we are given the next one."""
        return f"{self.id}/{self.attempt}"

    @property
    def usage(self) -> Usage:
        tokens = sum(self.outputs.values())
        return Usage(
            prompt_tokens=self.prompt,
            cached_tokens=self.cached,
            shared_tokens=min(self.cached, self.shared),
            completion_tokens=tokens,
        )

    @property
    def timing(self) -> Timing:
        first = self.first_at if self.first_at is not None else self.last_at
        # Also in the engine it may wait for a place, for its tenant's turn, or for a twin that computes its prompt.
        admitted = min(self.scheduled_at, first) if self.scheduled_at is not None else self.taken_at
        return Timing(
            queue_s=round(self.waited_s + admitted - self.taken_at, 4),
            prefill_s=round(first - admitted, 4),
            decode_s=round(self.last_at - first, 4),
        )


class Prompt(msgspec.Struct, frozen=True):
    """A rendered prompt, ready for the engine."""

    taken: Taken
    token_ids: list[int]
    regions: list[Any]
    stored: Any = None
    """The KV of its published part, where this worker does not have it and the disk does."""
    grammar: Any = None
