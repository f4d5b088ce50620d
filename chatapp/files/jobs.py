"""Files are read by Celery: taken by one worker at a time, again when that one dies, and never for ever.

The row is the job. Whatever dies in between, `tend` finds it (Celery beat). Reading a PDF takes a process and some
hundred megabytes at most, so no more than AT_ONCE are read by one worker process; others come back a little later, and
keep no thread of the worker from its seconds.
"""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import Any

import redis.exceptions
import structlog
from django.db import transaction
from django.db.models import F, Q
from django.utils import timezone

from chatapp.files import contents, reading
from chatapp.files.kinds import Unreadable
from chatapp.files.models import Reading, ReadingState, StoredFile
from chatapp.files.prompt import block
from chatapp.ids import parse_id
from chatapp.logs import cause
from chatapp.scope import tenant_scope, unscoped
from chatapp.streaming import prompts
from engine import protocol

log = structlog.get_logger(__name__)

AT_ONCE = 2
BUSY_S = 0.5
# Longer than the longest reading (pdf.WALL_S) and the count of its tokens.
LEASE = timedelta(seconds=100)
LOST_AFTER = timedelta(seconds=10)
MOST_ATTEMPTS = 3
COUNT_WITHIN_S = 5.0
GIVEN_UP = "This file could not be read: reading it failed several times. Save it in another form and try again."
GONE = "The bytes of this file are gone. Attach it again."

_places = threading.BoundedSemaphore(AT_ONCE)


def request(file: StoredFile) -> Reading:
    """Have a file read; once is enough. Call it inside the transaction that makes the file, or later."""
    found, made = Reading.objects.get_or_create(file=file)
    if made:
        transaction.on_commit(lambda: _start(file.pk))
    return found


def run(file_id: str) -> float | None:
    """Read a file that waits for it. Seconds until it should be tried again, where this worker has enough to do."""
    if not _places.acquire(blocking=False):
        return BUSY_S
    try:
        taken = _take(file_id)
        if taken is not None:
            with tenant_scope(taken.file.tenant_id):
                _read(taken)
    finally:
        _places.release()
    return None


def _take(file_id: str) -> Reading | None:
    with unscoped("data jobs"):
        rows = Reading.objects.filter(pk=parse_id(file_id))
        lease = timezone.now() + LEASE
        if not rows.filter(state=ReadingState.QUEUED).update(
            state=ReadingState.RUNNING, attempt=F("attempt") + 1, lease_until=lease
        ):
            return None
        return rows.select_related("file__tenant").get()


def _read(taken: Reading) -> None:
    file = taken.file
    try:
        with contents.read(file.content) as source:
            found = reading.read(source)
    except Unreadable as refused:
        _end(taken, state=ReadingState.FAILED, error_code=refused.code, error=refused.message)
        return
    except FileNotFoundError:
        _end(taken, state=ReadingState.FAILED, error_code="gone", error=GONE)
        return
    except Exception as error:
        log.error("file.reading_failed", file=str(file.pk), cause=cause(error))
        if taken.attempt >= MOST_ATTEMPTS:
            _end(taken, state=ReadingState.FAILED, error_code="failed", error=GIVEN_UP)
        else:
            _end(taken, state=ReadingState.QUEUED)  # `tend` comes by
        return
    taken.text, taken.pages, taken.kind = found.text, found.pages, found.kind
    model = file.tenant.model
    tokens = count(taken, model)
    _end(
        taken,
        state=ReadingState.READY,
        text=found.text,
        pages=found.pages,
        kind=found.kind,
        tokens={} if tokens is None else {model: tokens},
    )


def _end(taken: Reading, **values: Any) -> None:
    mine = Reading.objects.filter(pk=taken.pk, state=ReadingState.RUNNING, attempt=taken.attempt)
    mine.update(**values, lease_until=None)


def count(of: Reading, model: str) -> int | None:
    """What an engine of the model says that the file takes in a prompt; None: no engine says anything now."""
    if not model:
        return None
    try:
        text = block(of.file.name, of.text, of.pages)
        return prompts.count([text], model=model, within_s=COUNT_WITHIN_S).own_tokens
    except (prompts.NoWorker, prompts.NoAnswer, redis.exceptions.RedisError):
        return None


def tokens_of(of: Reading, model: str) -> int | None:
    """The same, remembered: what was counted once is not counted again."""
    if of.state != ReadingState.READY:
        return None
    known = of.tokens.get(model)
    if known is None:
        known = count(of, model)
        if known is not None:
            of.tokens = {**of.tokens, model: known}
            Reading.objects.filter(pk=of.pk).update(tokens=of.tokens)
    return known


def tend() -> None:
    """Start again what was cut short, and what was not heard of. Idempotent."""
    now = timezone.now()
    with unscoped("data jobs"):
        cut = Reading.objects.filter(state=ReadingState.RUNNING, lease_until__lt=now)
        cut.filter(attempt__gte=MOST_ATTEMPTS).update(
            state=ReadingState.FAILED, error_code="failed", error=GIVEN_UP, lease_until=None
        )
        cut.update(state=ReadingState.QUEUED, lease_until=None)
        lost = Q(queued_at__lt=now - LOST_AFTER) | Q(attempt__gt=0)
        waiting = Reading.objects.filter(lost, state=ReadingState.QUEUED)
        for file_id in list(waiting.order_by("queued_at").values_list("pk", flat=True)[:100]):
            _start(file_id)


def _start(file_id: Any) -> None:
    from chatapp.files import tasks

    try:
        tasks.read.delay(str(file_id))
    except Exception as error:  # no broker: the row waits, and `tend` comes by
        log.warning("file.not_started", file=str(file_id), error=type(error).__name__)


assert reading.MOST_TEXT < protocol.MOST_COUNT_BYTES
