"""Hand a generation to the engine. Idempotent: the same id is queued once, and never after it was cancelled."""

from __future__ import annotations

import random
import time

import redis.exceptions
import structlog
from django.conf import settings

from chatapp.errors import Overloaded
from chatapp.metrics import figures
from chatapp.streaming import connection
from engine import protocol

log = structlog.get_logger(__name__)

# Long enough for a short answer to end and make room; clients add their own jitter.
RETRY_AFTER_S = 5
# Of an overloaded machine, where all are refused at once: they are told to come back at different times.
SPREAD_S = 10
# What Redis has said of its memory counts for so long, so that a flood of refusals costs neither it nor the database.
REMEMBERED_S = 1.0

FULL = "This server has as much to do as it can hold"
NO_WORKER = "No engine has been running for the model {model} for {seconds} s"

_short_until = 0.0
_said_at = 0.0


class QueueFull(Exception):
    """The tenant has as many requests waiting as it may have."""

    def __init__(self, tenant: str, queued: int, retry_after_s: int = RETRY_AFTER_S) -> None:
        super().__init__(f"{queued} requests of this tenant are waiting already; try again in {retry_after_s} s.")
        self.tenant = tenant
        self.queued = queued
        self.retry_after_s = retry_after_s


def enqueue(request: protocol.Request, max_queued: int = protocol.MAX_QUEUED) -> int:
    """Queue it and return its position in the tenant's queue (1 is next; 0: it does not wait any more).
    `max_queued`: how many of the tenant's requests may wait.

    Raises QueueFull; Overloaded where there is no room for anybody's; and redis.exceptions.RedisError when Redis does
    not answer: whether it was queued is unknown then, and calling again is safe.
    """
    call = protocol.enqueue(
        request,
        max_queued,
        max_in_all=settings.OCTAVO_QUEUE_IN_ALL,
        max_unserved_s=settings.OCTAVO_UNSERVED_S,
    )
    try:
        result = protocol.parse_enqueued(connection.call(call))
    except redis.exceptions.OutOfMemoryError:  # it could not even be given the function library
        result = protocol.Enqueued("overloaded", "memory", 100)
    figures.submissions.labels(result.outcome if result.outcome in ("full", "overloaded") else "accepted").inc()
    if result.outcome == "full":
        raise QueueFull(request.tenant, result.position)
    if result.outcome == "overloaded":
        _note(request.model, result)
        raise _overloaded(request.model, result)
    return result.position


def check_room() -> None:
    """Raises Overloaded where Redis had no room a moment ago: before anything is written for a request."""
    if time.monotonic() < _short_until:
        figures.submissions.labels("overloaded").inc()
        raise _overloaded("", protocol.Enqueued("overloaded", "memory", 0))


def _note(model: str, result: protocol.Enqueued) -> None:
    """For the next ones, and once a second for whoever reads logs."""
    global _short_until, _said_at
    now = time.monotonic()
    if result.state == "memory":
        _short_until = now + REMEMBERED_S
    if now - _said_at > 1.0:
        _said_at = now
        log.warning("queue.overloaded", model=model, by=result.state, figure=result.position)


def _overloaded(model: str, result: protocol.Enqueued) -> Overloaded:
    wait = RETRY_AFTER_S + random.randrange(SPREAD_S)
    if result.state == "no_worker":
        why = NO_WORKER.format(model=model, seconds=result.position)
        return Overloaded(f"{why}. Try again in {wait} s.", code="no_engine", retry_after_s=wait)
    return Overloaded(f"{FULL}. Try again in {wait} s.", retry_after_s=wait)
