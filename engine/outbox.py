"""What a worker has said of the generations that it runs, until it is known to be in their logs.

Owns the events and their numbering; turns replies of the wire into what to send again, what to end and what to drop.
Promises that nothing said is forgotten before it is acknowledged, and that an ended generation is remembered for
REMEMBER_S more, in case that Redis loses its end. Knows neither Redis nor the engine.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Protocol, TypeAlias

import structlog

from engine.protocol import AnyTerminal, CountRequest, Delta, PublishedPrompt, Started, Taken, Tell, Told, Watch

log = structlog.get_logger(__name__)

REMEMBER_S = 5.0
PIPELINE_EVENTS = 512  # after an outage: bounds what one call keeps Redis busy with

Said: TypeAlias = tuple[str, int, Started | Delta | AnyTerminal, float]
"""(generation, attempt, event, cost charged to the tenant); the event's seq is its place in the log."""


class Listener(Protocol):
    """Who hears of what arrives; called in the bus's threads, so it must be quick."""

    def taken(self, taken: Taken) -> None: ...

    def cancelled(self, generation_id: str) -> None:
        """End it as cancelled."""

    def expired(self, generation_id: str) -> None:
        """End it as timed out."""

    def dropped(self, generation_id: str) -> None:
        """It is not ours any more: forget it, and say nothing."""

    def published(self, prompt: PublishedPrompt) -> None:
        """A tenant has published this prompt: it will be asked for soon."""

    def forget(self, tenant: str) -> None:
        """The tenant is being deleted: drop all that is its own."""

    def released(self, prompt: str, version: str) -> None:
        """A prompt is published no longer."""

    def counting(self, request: CountRequest) -> None:
        """Somebody wants to know how long a text is; the answer goes to `Bus.answer`."""

    def watched(self, watches: list[Watch]) -> None:
        """These are the chats whose memory somebody looks at, from now on."""

    def drained(self, on: bool) -> None:
        """An operator wants this worker to take nothing new; False: to take again."""

    def broken(self, error: Exception) -> None:
        """The bus has failed for good."""

    def hung(self, for_s: float) -> None:
        """The engine has work and has made no step for so long."""


class Generation:
    """What we have said of one generation. `events[i]` has the seq `base + i`; those before `logged` are in the log."""

    def __init__(self, taken: Taken, tenant: str) -> None:
        self.id = taken.id
        self.tenant = tenant
        self.attempt = taken.attempt
        self.base = taken.seq + 1
        self.events: list[tuple[Started | Delta, float]] = []
        self.logged = 0
        self.terminal: AnyTerminal | None = None
        self.forget_at: float | None = None
        self.cancel_known = False
        self.left = False
        """Somebody else is to go on with it; what has been said so far still goes out."""

    def unsent(self) -> list[Tell]:
        return [Tell(self.id, self.attempt, event, cost) for event, cost in self.events[self.logged :]]


class Outbox:
    """Used by one thread; `listener` is called in it. Only `hear_cancel` may be called from another one."""

    def __init__(self, listener: Listener) -> None:
        self.active: dict[str, Generation] = {}
        self._ended: dict[str, Generation] = {}
        self._first = 0  # the place among the active at which the next call begins
        self._listener = listener

    def add(self, taken: Taken, tenant: str) -> None:
        self._ended.pop(taken.id, None)
        self.active[taken.id] = Generation(taken, tenant)

    def has_unsent(self) -> bool:
        return any(g.terminal or g.logged < len(g.events) for g in self.active.values())

    def unsent(self) -> tuple[list[Tell], list[Generation]]:
        """Events for the logs, in order, and the generations whose terminal event goes out behind them."""
        tells: list[Tell] = []
        ending: list[Generation] = []
        generations = [*self.active.values()]
        first, self._first = self._first % max(1, len(generations)), 0
        for place in range(first, first + len(generations)):
            if len(tells) >= PIPELINE_EVENTS:
                # Those that were left out come first the next time: they would never be heard beside steps that fill
                # a call as fast as Redis takes it.
                self._first = place
                break
            generation = generations[place % len(generations)]
            tells += generation.unsent()
            if generation.terminal is not None:
                ending.append(generation)
        return tells, ending

    def note(self, said: Iterable[Said]) -> None:
        for generation_id, attempt, event, cost in said:
            generation = self.active.get(generation_id)
            if generation is None or generation.attempt != attempt:
                continue  # it was dropped meanwhile
            if isinstance(event, Started | Delta):
                assert event.seq == generation.base + len(generation.events), "a seq was left out"
                generation.events.append((event, cost))
            else:
                generation.terminal = event

    def leave(self, generation_id: str) -> None:
        """Say nothing more of it than has been said: another worker goes on where its log will end."""
        generation = self.active.get(generation_id)
        if generation is not None:
            generation.left = True

    def told_one(self, tell: Tell, told: Told) -> None:
        generation = self.active.get(tell.id)
        if generation is None:
            return
        if told.outcome == "stale":
            self._drop(generation)
        elif told.outcome == "behind":
            self._step_back(generation, told.last)
        else:
            generation.logged = max(generation.logged, tell.event.seq + 1 - generation.base)
            if told.outcome == "cancelled":
                self._cancel(generation)

    def finished(self, generation: Generation, told: Told) -> None:
        if generation.id not in self.active:
            return
        if told.outcome == "stale":
            self._drop(generation)
        elif told.outcome == "behind":
            self._step_back(generation, told.last)
        else:
            generation.logged = len(generation.events)
            generation.forget_at = time.monotonic() + REMEMBER_S
            self._ended[generation.id] = self.active.pop(generation.id)

    def _step_back(self, generation: Generation, last: int) -> None:
        """Redis has lost what came after `last`; send it again."""
        log.warning("wire.behind", generation=generation.id, last=last)
        if last + 1 < generation.base:
            self.give_up(generation, LookupError("the log lost events of an earlier attempt"))
        else:
            generation.logged = last + 1 - generation.base

    def _cancel(self, generation: Generation) -> None:
        if not generation.cancel_known and generation.terminal is None:
            generation.cancel_known = True
            self._listener.cancelled(generation.id)

    @property
    def done(self) -> bool:
        """Nothing is to be said any more."""
        return all(generation.left for generation in self.active.values()) and not self.has_unsent()

    def _drop(self, generation: Generation) -> None:
        log.warning("wire.stale", generation=generation.id, attempt=generation.attempt)
        del self.active[generation.id]
        self._listener.dropped(generation.id)

    def give_up(self, generation: Generation, error: Exception) -> None:
        """Redis refuses what we say of it: nobody can be told anything, so stop working on it."""
        log.error("wire.refused", generation=generation.id, error=str(error))
        self._drop(generation)

    def hear_cancel(self, generation_id: str) -> None:
        generation = self.active.get(generation_id)
        if generation is not None:
            self._cancel(generation)

    def compare(self, held: dict[str, str]) -> set[str]:
        """Put right what differs from what Redis says that we hold (id -> flag); returns the ids that are not ours."""
        now = time.monotonic()
        for generation in [g for g in self._ended.values() if g.forget_at is not None and g.forget_at < now]:
            del self._ended[generation.id]
        for generation in [g for g in self.active.values() if g.id not in held and g.terminal is None]:
            self._drop(generation)
        unknown = set()
        for generation_id, flag in held.items():
            active = self.active.get(generation_id)
            if active is not None:
                if flag == "cancelled":
                    self._cancel(active)
                elif flag == "timeout" and active.terminal is None:
                    self._listener.expired(generation_id)
            elif generation_id in self._ended:
                # Redis lost its end with its tail: say it again.
                self.active[generation_id] = self._ended.pop(generation_id)
            else:
                unknown.add(generation_id)
        return unknown
