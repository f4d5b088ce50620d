"""An accepted answer's way to Redis: reserved and saved in one transaction, charged, queued, marked.

Whatever stops it on the way undoes all of it, as if it had never been asked; what dies in between, the reaper finishes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

import msgspec
import redis.exceptions
import structlog
from django.conf import settings
from django.db import transaction
from django.utils import timezone

from chatapp.audit.source import source
from chatapp.chat import recorder
from chatapp.chat.models import UNFINISHED, Generation, State
from chatapp.chat.text import plain
from chatapp.errors import IdempotencyMismatch, Overloaded, TooMany
from chatapp.ids import new_id
from chatapp.limits import budget
from chatapp.limits.admission import Admission
from chatapp.limits.budget import QuotaUsedUp, RateLimited
from chatapp.limits.warning import note_refused
from chatapp.streaming import finished
from chatapp.streaming.cancel import cancel, is_cancelled
from chatapp.streaming.submit import QueueFull, check_room, enqueue
from chatapp.tenants.access import Access
from engine import protocol, tracing
from engine.protocol import Request

log = structlog.get_logger(__name__)

MOST_CAUGHT_UP = 32
LONGEST_KEY = 200
WITHOUT_ANSWER = (State.CANCELLED, State.TIMEOUT, State.INTERRUPTED, State.FAILED)

Accepted = TypeVar("Accepted")
P = ParamSpec("P")


def says_length(params: Mapping[str, Any] | None) -> bool:
    return bool(params) and params.get("max_tokens") is not None  # type: ignore[union-attr]


def known(access: Access, idempotency_key: str | None, digest: str) -> Generation | None:
    """The generation that this key has already started."""
    if idempotency_key is None:
        return None
    plain(idempotency_key, param="idempotency_key", longest=LONGEST_KEY)
    found = Generation.objects.filter(
        tenant=access.tenant, principal=access.principal, idempotency_key=idempotency_key
    ).first()
    if found is not None and found.digest != digest:
        raise IdempotencyMismatch(
            "This idempotency key was used for another request; use a new one.", param="idempotency_key"
        )
    return found


def without_answer(generation: Generation) -> bool:
    """It has ended, or is about to, and nobody has an answer of it: cancelled, out of time, or stopped by a fault."""
    if not generation.unfinished:
        return generation.state in WITHOUT_ANSWER
    try:
        return finished.state(str(generation.pk)) in WITHOUT_ANSWER or is_cancelled(str(generation.pk))
    except redis.exceptions.RedisError:
        return False


def release(generations: Sequence[Generation]) -> None:
    """Their idempotency keys may be used again."""
    Generation.objects.filter(pk__in=[generation.pk for generation in generations]).update(idempotency_key=None)


def new_generation(
    access: Access, model: str, idempotency_key: str | None, digest: str, deadline: datetime | None = None
) -> Generation:
    """A row that nobody has written yet. `deadline` None: as long as somebody waits for an answer."""
    return Generation(
        id=new_id(),
        tenant=access.tenant,
        principal=access.principal,
        model=model,
        idempotency_key=idempotency_key,
        digest=digest,
        deadline=deadline or timezone.now() + timedelta(seconds=settings.OCTAVO_ANSWER_TIMEOUT_S),
    )


def accepted(access: Access, accept: Callable[[], Accepted]) -> Accepted:
    """Run the transaction that accepts generations. Answers under way that have ended meanwhile are written first."""
    check_room()
    try:
        try:
            return accept()
        except RateLimited as refusal:
            if not (refusal.under_way and _catch_up(access)):
                raise
            return accept()
    except QuotaUsedUp as refusal:
        if refusal.team:
            note_refused(access.tenant)
        raise


def _catch_up(access: Access) -> int:
    """Write those of the team's answers that have ended in Redis and not in the database yet; returns how many."""
    unfinished = Generation.objects.filter(tenant=access.tenant, state__in=UNFINISHED).order_by("created_at")
    written = 0
    try:
        for generation_id in unfinished.values_list("pk", flat=True)[:MOST_CAUGHT_UP]:
            state = finished.state(str(generation_id))
            if state is not None and state not in protocol.LIVE_STATES:
                written += recorder.record(str(generation_id))
    except redis.exceptions.RedisError:
        return 0
    return written


def submitting(accept: Callable[Concatenate[Access, P], Accepted]) -> Callable[Concatenate[Access, P], Accepted]:
    """A function that accepts and queues: a part of the request's trace; the engine's and the recorder's follow it."""

    @wraps(accept)
    def traced(access: Access, /, *args: P.args, **kwargs: P.kwargs) -> Accepted:
        came = source()
        with tracing.span(
            "submit",
            kind="producer",
            parent="" if tracing.current() else came.traceparent,
            octavo__tenant=str(access.tenant.pk),
            octavo__request_id=came.request_id,
        ):
            return accept(access, *args, **kwargs)

    return traced


def reserved(admission: Admission, generation: Generation, request: Request, said: bool) -> Request:
    """The request with the length of answer that was reserved for it."""
    longest = request.params.max_tokens
    assert longest is not None, "answers have a length"
    length = admission.reserve(
        generation=generation.pk,
        deadline=generation.deadline,
        request=request,
        least_output=None if said else max(1, request.params.min_tokens),
    )
    if length == longest:
        return request
    return msgspec.structs.replace(request, params=msgspec.structs.replace(request.params, max_tokens=length))


def queue_all(generations: Sequence[Generation], admission: Admission) -> None:
    """Hand them to Redis and mark their rows. Without Redis a row waits for the reaper; a full queue, an
    overloaded machine or used up tokens of this minute undo all of them."""
    try:
        admission.charge()
    except RateLimited:
        _undo(generations, charged=False)
        raise
    queued: list[Generation] = []
    for generation in generations:
        assert generation.request is not None
        generation.standings = admission.standings
        try:
            enqueue(protocol.decode_request(bytes(generation.request)), admission.limits.queue_length)
        except QueueFull as full:
            _stop(queued)
            _undo(generations)
            raise TooMany(
                f"Your team has {full.queued - len(queued)} requests waiting already. "
                f"Try again in {full.retry_after_s} s.",
                retry_after_s=full.retry_after_s,
            ) from None
        except Overloaded:
            _stop(queued)
            _undo(generations)
            raise
        except redis.exceptions.RedisError as error:
            log.warning("generation.not_queued", generation=str(generation.pk), error=type(error).__name__)
            continue
        queued.append(generation)
    for generation in queued:
        mark_queued(generation)
        log.info("generation.queued", generation=str(generation.pk), model=generation.model)
    tracing.note(octavo__generation=",".join(str(generation.pk) for generation in queued[:8]))


def _stop(queued: Sequence[Generation]) -> None:
    """Those before one that found the queue full: their rows go, so their ends find nothing to write."""
    for generation in queued:
        with suppress(redis.exceptions.RedisError):
            cancel(str(generation.pk))


def mark_queued(generation: Generation) -> None:
    if Generation.objects.filter(pk=generation.pk, state=State.ACCEPTED).update(state=State.QUEUED):
        generation.state = State.QUEUED


@transaction.atomic
def _undo(generations: Sequence[Generation], *, charged: bool = True) -> None:
    """As if it had never been asked: the caller still has the text and is told to try again."""
    for generation in generations:
        conversation = generation.conversation
        budget.settle(generation.pk, tokens=0, charged=charged)
        generation.delete()
        for message in reversed(generation.added):
            message.delete()
        if conversation is not None and not conversation.messages.exists():
            conversation.delete()
