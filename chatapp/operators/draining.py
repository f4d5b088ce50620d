"""Operators let a worker take nothing new, and take again. The wish is Redis's; that somebody had it is in the log."""

from __future__ import annotations

from dataclasses import dataclass

from django.db import transaction

from chatapp.accounts.models import User
from chatapp.audit.services import operator, record
from chatapp.errors import Conflict, NotFound, Unavailable
from chatapp.streaming import draining, fleet
from chatapp.streaming.connection import AWAY
from chatapp.streaming.fleet import Seen

LAST = "last_worker"
GONE = "There is no such worker any more."
NO_REDIS = "Redis does not answer, so no worker can be told anything."


def _look() -> list[Seen]:
    try:
        return fleet.workers()
    except AWAY:
        raise Unavailable(NO_REDIS) from None


def find(worker: str) -> Seen:
    """Raises NotFound for one that does not live, and Unavailable."""
    for one in _look():
        if one.details.id == worker and one.alive:
            return one
    raise NotFound(GONE)


@dataclass(frozen=True)
class Loss:
    """What nobody takes requests for once a worker drains: its model, or anything."""

    model: bool
    everything: bool


def loss(worker: Seen) -> Loss:
    others = [one.details.model for one in _look() if one.takes and one.details.id != worker.details.id]
    return Loss(worker.takes and worker.details.model not in others, worker.takes and not others)


def drain(*, by: User, worker: str, even_the_last: bool = False) -> None:
    """Raises NotFound, Unavailable, and Conflict `last_worker` unless that is wanted too."""
    found = find(worker)
    if not even_the_last and loss(found).model:
        raise Conflict(f"{worker} is the last worker of {found.details.model}.", code=LAST)
    _tell(by, found, on=True)


def take_again(*, by: User, worker: str) -> None:
    """Raises NotFound, Unavailable."""
    _tell(by, find(worker), on=False)


def _tell(by: User, found: Seen, *, on: bool) -> None:
    """The entry first: neither happens without the other."""
    worker = found.details.id
    with transaction.atomic():
        if found.drain != on:
            details = {"model": found.details.model}
            actor = operator(by)
            record(
                "worker.drained" if on else "worker.taken_back", actor=actor, tenant=None, name=worker, details=details
            )
        try:
            outcome = draining.drain(worker, on=on)
        except AWAY:
            raise Unavailable(NO_REDIS) from None
        if outcome == "gone":
            raise NotFound(GONE)
