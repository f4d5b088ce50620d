"""Carries batches on, one worker a batch at a time: checked, answered when there is room, written, over.

It is the team's lowest priority: through the same queue and the same limits as its chats, a few answers at once, the
next one only while nothing of the team waits and half of its answers at once are free. Everything stands in rows
(models), so a worker that is killed leaves a lease that ends, and the next one goes on; nothing is done twice, because
an item's generation is linked with it in the transaction that accepts it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import redis.exceptions
import structlog
from django.conf import settings
from django.db import IntegrityError, transaction
from django.utils import timezone

from chatapp.batches import results, validation
from chatapp.batches.endpoints import ENDPOINTS
from chatapp.batches.models import (
    UNFINISHED,
    Batch,
    BatchAnswer,
    BatchItem,
    ItemState,
    Status,
    parse_batch_id,
)
from chatapp.batches.starting import start
from chatapp.chat.models import Generation
from chatapp.errors import Conflict, IdempotencyMismatch, Refusal, TooMany, Unavailable
from chatapp.files import services as files
from chatapp.files.models import StoredFile
from chatapp.limits.selectors import limits_of, under_way
from chatapp.limits.values import least
from chatapp.logs import cause
from chatapp.scope import tenant_scope, unscoped
from chatapp.streaming import cancel as streaming_cancel
from chatapp.streaming import workers
from chatapp.tenants.access import Access, BadKey, access_of_job

log = structlog.get_logger(__name__)

LEASE = timedelta(seconds=60)
SLICE_S = 10.0  # of work in one go: others wait for the same worker
ROWS = 500
MOST_STARTED = 200
KEPT = timedelta(days=90)
# How long results wait for room, behind the batch's own time.
PATIENCE = timedelta(days=7)
# How long until somebody looks again at what could not go on.
PAUSES = {"no_room": 1.0, "queue_away": 5.0, "insufficient_quota": 60.0, "invalid_api_key": 60.0, "storage": 60.0}
LONGEST_PAUSE_S = 300.0


def advance(batch_id: str) -> None:
    """Go on with a batch that nobody else is at, for a while."""
    key = parse_batch_id(batch_id)
    with unscoped("batches"):
        batch = _lease(key)
    if batch is None:
        return
    again = False
    with tenant_scope(batch.tenant_id):
        try:
            end = time.monotonic() + SLICE_S
            while (step := STEPS.get(Status(batch.status))) is not None and step(batch):
                if time.monotonic() > end:
                    again = True
                    break
                batch.refresh_from_db()
            if not batch.unfinished and batch.has_items:
                _tidy(batch)
        except redis.exceptions.RedisError:
            _pause(batch, "queue_away", "The queue cannot be reached right now.")
        finally:
            Batch.objects.filter(pk=batch.pk).update(lease_until=None)
        # What has ended meanwhile found the lease taken.
        if again or _has_room_again(batch):
            start(batch.pk)


def tend() -> int:
    """Start what has something to do and has nobody at it; returns how many. Idempotent."""
    now = timezone.now()
    with unscoped("batches"):
        rows = Batch.objects.filter(tenant__suspended_at=None).exclude(lease_until__gt=now).order_by("created_at")
        due = rows.filter(status__in=UNFINISHED).exclude(next_at__gt=now)
        untidy = rows.exclude(status__in=UNFINISHED).filter(has_items=True)
        found = [*due.values_list("pk", flat=True)[:MOST_STARTED], *untidy.values_list("pk", flat=True)[:ROWS]]
    for key in found:
        start(key)
    return len(found)


def forget_old() -> int:
    """What is known of batches that ended long ago; their files are files of their own."""
    with unscoped("batches"):
        old = Batch.objects.filter(created_at__lt=timezone.now() - KEPT, has_items=False).exclude(status__in=UNFINISHED)
        return old.delete()[1].get("batches.Batch", 0)


# --- steps: each says whether there is more to do at once -----------------------------------------------------------


def _validate(batch: Batch) -> bool:
    """From the beginning, should a former worker have died at it."""
    access = _access(batch)
    if access is None:
        return False
    stored = StoredFile.objects.filter(pk=batch.input_file).first()
    try:
        opened = files.open_file(stored) if stored is not None else None
    except FileNotFoundError:
        opened = None
    if opened is None:
        return _refuse(batch, [validation.Complaint("file_not_found", "The input file has been deleted.")])
    _drop_items(batch)
    complaints: list[validation.Complaint] = []
    rows: list[BatchItem] = []
    total = 0
    with opened as file:
        endpoint = ENDPOINTS[batch.endpoint]
        for found in validation.read(file, address=batch.endpoint, endpoint=endpoint, access=access):
            if isinstance(found, validation.Complaint):
                complaints.append(found)
            elif not complaints:
                found.tenant_id, found.batch_id = batch.tenant_id, batch.pk
                rows.append(found)
                total += 1
            if len(rows) >= ROWS:
                BatchItem.objects.bulk_create(rows)
                rows.clear()
                if not _renew(batch, Status.VALIDATING):
                    return True  # cancelled meanwhile
    if complaints:
        return _refuse(batch, complaints)
    BatchItem.objects.bulk_create(rows)
    now = timezone.now()
    checked = Batch.objects.filter(pk=batch.pk, status=Status.VALIDATING)
    checked.update(status=Status.IN_PROGRESS, total=total, in_progress_at=now, next_at=None)
    return True


def _answer(batch: Batch) -> bool:
    """Begin what there is room for. It is over when nothing waits any more, or its time is."""
    if timezone.now() >= batch.expires_at:
        return _end(batch, Status.EXPIRED)
    pending = batch.items.filter(state=ItemState.PENDING)
    if not pending.exists():
        return _end(batch, Status.COMPLETED)
    waiting = pending.filter(answers=None).order_by("line")
    if not waiting.exists():
        return False
    access = _access(batch)
    if access is None:
        return False
    if not _has_room(access):
        _pause(batch, "no_room", "")
        return False
    item = waiting.first()
    return item is not None and _begin(batch, item, access)


def _finalize(batch: Batch) -> bool:
    if batch.in_progress_at is None:
        _drop_items(batch)  # cancelled before all of its file had been read
    if _stop_running(batch):
        _pause(batch, "no_room", "")
        return False
    try:
        results.write(batch, lambda: _renew(batch, Status(batch.status)))
    except Refusal as refusal:  # the team's room for files is used up
        if timezone.now() > batch.expires_at + PATIENCE:
            return _give_up(batch, validation.Complaint(refusal.code, refusal.message))
        _pause(batch, "storage", f"The results cannot be kept. {refusal.message}", code=refusal.code)
        return False
    return True


STEPS: dict[Status, Callable[[Batch], bool]] = {
    Status.VALIDATING: _validate,
    Status.IN_PROGRESS: _answer,
    Status.FINALIZING: _finalize,
    Status.CANCELLING: _finalize,
}


# --- parts --------------------------------------------------------------------------------------------------------


def _lease(key: Any) -> Batch | None:
    now = timezone.now()
    free = Batch.objects.filter(pk=key, tenant__suspended_at=None).exclude(lease_until__gt=now)
    if not free.update(lease_until=now + LEASE):
        return None
    return Batch.objects.select_related("tenant", "key").get(pk=key)


def _renew(batch: Batch, status: Status) -> bool:
    rows = Batch.objects.filter(pk=batch.pk, status=status)
    return bool(rows.update(lease_until=timezone.now() + LEASE))


def _pause(batch: Batch, kind: str, because: str, *, code: str = "", seconds: float | None = None) -> None:
    until = timezone.now() + timedelta(seconds=min(LONGEST_PAUSE_S, seconds or PAUSES[kind]))
    Batch.objects.filter(pk=batch.pk).update(
        next_at=until, paused_code=(code or kind) if because else "", paused_because=because[:400]
    )


def _access(batch: Batch) -> Access | None:
    """The rights of whoever began it, as they are now. Without any it waits for them until its time is over."""
    try:
        if batch.key is None:
            raise BadKey("The API key that this batch was begun with has been deleted.")
        return access_of_job(batch.key)
    except BadKey as bad:
        if timezone.now() < batch.expires_at:
            _pause(batch, "invalid_api_key", bad.message, code=bad.code)
        elif batch.status == Status.VALIDATING:
            _refuse(batch, [validation.Complaint(bad.code, bad.message)])
        return None


def _refuse(batch: Batch, complaints: list[validation.Complaint]) -> bool:
    with transaction.atomic():
        row = Batch.objects.select_for_update().get(pk=batch.pk)
        if row.status != Status.VALIDATING:
            return True
        row.errors = [complaint.as_json() for complaint in complaints]
        results.finish(row, Status.FAILED)
    batch.refresh_from_db()
    return False


def _give_up(batch: Batch, complaint: validation.Complaint) -> bool:
    """Nobody has made room for the results in all this time."""
    with transaction.atomic():
        row = Batch.objects.select_for_update().get(pk=batch.pk)
        row.errors = [complaint.as_json()]
        results.finish(row, Status.FAILED)
    batch.refresh_from_db()
    return False


def _end(batch: Batch, status: Status) -> bool:
    Batch.objects.filter(pk=batch.pk, status=Status.IN_PROGRESS).update(
        status=Status.FINALIZING, ending=status, finalizing_at=timezone.now(), next_at=None
    )
    return True


def _has_room(access: Access) -> bool:
    """Chats first. Raises RedisError."""
    tenant = access.tenant
    running = BatchAnswer.objects.filter(tenant=tenant, kept=None).count()
    if running >= settings.OCTAVO_BATCH_AT_ONCE:
        return False
    limits = limits_of(access)
    most = least(limits.team.concurrent_answers, limits.own.concurrent_answers)
    if most is not None:
        of_team, of_key = under_way(tenant, access.principal)
        if 2 * max(of_team, of_key) >= most and running:
            return False
        if max(of_team, of_key) >= most:
            return False
    return not workers.waits(str(tenant.pk), tenant.models)


def _has_room_again(batch: Batch) -> bool:
    row = Batch.objects.filter(pk=batch.pk).first()
    if row is None or row.status != Status.IN_PROGRESS or (row.next_at is not None and row.next_at > timezone.now()):
        return False
    running = BatchAnswer.objects.filter(tenant=row.tenant_id, kept=None).count()
    pending = row.items.filter(state=ItemState.PENDING)
    return not pending.exists() or (running < settings.OCTAVO_BATCH_AT_ONCE and pending.filter(answers=None).exists())


def _begin(batch: Batch, item: BatchItem, access: Access) -> bool:
    endpoint = ENDPOINTS[batch.endpoint]
    try:
        body = _body(batch, item)
    except FileNotFoundError:
        refusal = Refusal("The input file was deleted before this request was begun.", code="file_not_found")
        _fail(item, refusal, endpoint.refused(refusal))
        return True

    place = 0

    def link(generation: Generation) -> None:
        """In the transaction that accepts it."""
        nonlocal place
        taken = BatchItem.objects.filter(pk=item.pk, state=ItemState.PENDING, attempts=item.attempts)
        if not taken.update(body=body) or Batch.objects.filter(pk=batch.pk, status=Status.IN_PROGRESS).count() == 0:
            raise Conflict("This item is somebody else's, or its batch is not going on.", code="batch_item_taken")
        BatchAnswer.objects.create(generation=generation, tenant_id=batch.tenant_id, item=item, place=place)
        place += 1

    try:
        endpoint.begin(access, body, idempotency_key=item.idempotency_key, deadline=batch.expires_at, within=link)
    except TooMany as refusal:
        if refusal.retryable:
            _pause(batch, "no_room", "", seconds=refusal.retry_after_s)
            return False
        if refusal.code == "insufficient_quota":
            _pause(batch, "insufficient_quota", refusal.message, code=refusal.code)
            return False
        _fail(item, refusal, endpoint.refused(refusal))
    except (Conflict, IdempotencyMismatch, IntegrityError) as clash:
        code = getattr(clash, "code", "")
        if code != "batch_item_taken":
            # A generation of this very key that is not ours: the next attempt has another.
            BatchItem.objects.filter(pk=item.pk, attempts=item.attempts).update(attempts=item.attempts + 1)
        return False
    except Unavailable as refusal:
        _pause(batch, "queue_away", refusal.message, seconds=refusal.retry_after_s)
        return False
    except Refusal as refusal:
        _fail(item, refusal, endpoint.refused(refusal))
    except redis.exceptions.RedisError:
        raise
    except Exception as error:
        log.error("batch.item_failed", batch=str(batch.pk), line=item.line, cause=cause(error))
        ours = Refusal("Something went wrong on our side.", code="internal")
        ours.status = 500
        _fail(item, ours, endpoint.refused(ours))
    else:
        if not item.answers.exists():
            # The key was known already, to a generation that is none of ours.
            BatchItem.objects.filter(pk=item.pk, attempts=item.attempts).update(attempts=item.attempts + 1)
    if batch.paused_because:
        Batch.objects.filter(pk=batch.pk).update(paused_code="", paused_because="", next_at=None)
    return True


def _body(batch: Batch, item: BatchItem) -> bytes:
    if item.body is not None:
        return bytes(item.body)
    stored = StoredFile.objects.filter(pk=batch.input_file).first()
    if stored is None:
        raise FileNotFoundError
    with files.open_file(stored) as file:
        return validation.body_at(file, item.offset, item.length)


def _fail(item: BatchItem, refusal: Refusal, body: bytes) -> None:
    BatchItem.objects.filter(pk=item.pk, state=ItemState.PENDING, answers=None).update(
        state=ItemState.FAILED, status_code=refusal.status, refusal=body
    )


def _stop_running(batch: Batch) -> bool:
    """Whether some are still being answered; they are told to stop. Raises RedisError."""
    running = list(BatchAnswer.objects.filter(item__batch=batch, kept=None).values_list("pk", flat=True))
    for generation_id in running:
        streaming_cancel.cancel(str(generation_id))
    return bool(running)


def _drop_items(batch: Batch) -> None:
    while keys := list(batch.items.order_by().values_list("pk", flat=True)[:ROWS]):
        with transaction.atomic():
            BatchAnswer.objects.filter(item__in=keys).delete()
            BatchItem.objects.filter(pk__in=keys).delete()


def _tidy(batch: Batch) -> None:
    """The results are in files: what they were made of goes."""
    _drop_items(batch)
    Batch.objects.filter(pk=batch.pk).update(has_items=False)
