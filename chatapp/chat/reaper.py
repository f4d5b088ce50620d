"""Finishes what a crash left between database and Redis. Idempotent; runs every few seconds.

- accepted rows that were not queued within GRACE are queued now;
- queued rows that Redis does not know have been lost with it: they end interrupted, and can be tried again;
- rows that have ended in Redis and were not recorded are recorded now, whatever became of the recorder's entry;
- rows past their deadline end as timed out, with or without workers.
"""

from __future__ import annotations

from collections import Counter
from datetime import timedelta

import redis.exceptions
import structlog
from django.db import InterfaceError, OperationalError
from django.utils import timezone

from chatapp.chat import recorder
from chatapp.chat.models import UNFINISHED, Generation, State
from chatapp.chat.queueing import mark_queued
from chatapp.errors import Overloaded
from chatapp.limits.selectors import limits_of_team
from chatapp.logs import cause
from chatapp.scope import unscoped
from chatapp.streaming import finished
from chatapp.streaming.submit import QueueFull, enqueue
from engine import protocol
from engine.protocol import Failed, Interrupted, Terminal, TimedOut

log = structlog.get_logger(__name__)

GRACE = timedelta(seconds=5)

LOST = "This answer was lost in a restart. Try again."
LATE = "The answer did not end in time. Try again."
UNREADABLE = "The answer's record cannot be read. Try again."


@unscoped("reaper")
def reap() -> Counter[str]:
    """One round; says how many rows were queued, recorded, interrupted, timed_out or failed."""
    done: Counter[str] = Counter()
    now = timezone.now()
    old = Generation.objects.filter(state__in=UNFINISHED, created_at__lt=now - GRACE).order_by("created_at")
    for generation in list(old.defer("request")):
        try:
            outcome = _reap(generation, late=generation.deadline + GRACE < now)
        except (redis.exceptions.RedisError, OperationalError, InterfaceError):
            raise  # one of the two is away: the next round goes on
        except Exception as error:
            log.error("generation.not_reaped", generation=str(generation.pk), cause=cause(error))
            continue
        if outcome:
            done[outcome] += 1
            log.info("generation.reaped", generation=str(generation.pk), outcome=outcome)
    return done


def _reap(generation: Generation, *, late: bool) -> str | None:
    key = str(generation.pk)
    state = finished.state(key)
    if state in protocol.LIVE_STATES:
        if late:
            finished.end(key, TimedOut(code="deadline", message=LATE, retryable=True))
            return "timed_out"
        if generation.state == State.ACCEPTED:
            mark_queued(generation)
        return None
    if state is not None:
        return _record(generation, late=late)
    if late:
        _write_end(generation, TimedOut(code="deadline", message=LATE, retryable=True), State.TIMEOUT)
        return "timed_out"
    if generation.state == State.QUEUED:
        _write_end(generation, Interrupted(code="redis_lost_it", message=LOST, retryable=True), State.INTERRUPTED)
        return "interrupted"
    return _queue(generation)


def _queue(generation: Generation) -> str | None:
    if generation.request is None:
        return None
    try:
        enqueue(protocol.decode_request(bytes(generation.request)), limits_of_team(generation.tenant).queue_length)
    except (QueueFull, Overloaded):
        return None  # the next round tries again, until the deadline
    mark_queued(generation)
    return "queued"


def _record(generation: Generation, *, late: bool) -> str | None:
    """Redis says that it has ended. Past the deadline it ends here too, even where its log cannot be read."""
    try:
        return "recorded" if recorder.record(str(generation.pk)) else None
    except (redis.exceptions.RedisError, OperationalError, InterfaceError):
        raise
    except Exception as error:
        if not late:
            return None  # the recorder is at it, and says why it fails
        log.error("generation.unreadable", generation=str(generation.pk), cause=cause(error))
        answer = recorder.Answer(terminal=Failed(code="unreadable", message=UNREADABLE, retryable=True))
        recorder.write(generation, answer, State.FAILED)
        return "failed"


def _write_end(generation: Generation, event: Terminal, state: State) -> None:
    answer = recorder.rebuild(finished.read_log(str(generation.pk)))
    answer.terminal = event
    recorder.write(generation, answer, state)
