"""Delivers what is due: one sender an endpoint at a time, a few endpoints of a team, and many teams side by side.

A sender leases an endpoint, sends what is due for it in order, and stops at the first failure: whoever is slow or
broken holds up nobody else, and a sender that is killed leaves a lease that ends. An attempt is noted once it has been
made, so one that dies in between is made again: receivers tell repetitions by the message's id.
"""

from __future__ import annotations

import json
import random
import threading
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta

import structlog
from django.db import connection, transaction
from django.db.models import Exists, OuterRef
from django.utils import timezone

from chatapp.audit.services import SYSTEM, record
from chatapp.ids import parse_id
from chatapp.logs import cause
from chatapp.scope import tenant_scope, unscoped
from chatapp.sealing import Unreadable
from chatapp.webhooks import posting, signing
from chatapp.webhooks.keeping import secrets_of
from chatapp.webhooks.models import DeliveryState, WebhookDelivery, WebhookEndpoint
from chatapp.webhooks.outbox import start

log = structlog.get_logger(__name__)

# Seconds from a failed attempt to the next: eight attempts within about a day, each wait up to a fifth off, so that
# what failed together does not come back together.
SCHEDULE = (5, 5 * 60, 30 * 60, 2 * 3600, 5 * 3600, 10 * 3600, 10 * 3600)
JITTER = 0.2
# Nothing has been taken for so long: nobody will miss it.
GIVEN_UP_AFTER = timedelta(days=3)
KEPT = timedelta(days=14)
# Longer than an attempt can take: the resolver's own patience (up to 30 s), and posting.TOTAL_S.
LEASE = timedelta(seconds=75)
SLICE_S = 30.0
MOST_OF_A_TEAM = 3
THREADS = 16
# Of these, what endpoints may have that took nothing the last time: one that hangs has a sender for a quarter of a
# minute at each attempt, and those that work must not wait for it.
MOST_FAILING_OF_A_TEAM = 1
MOST_FAILING = 12
MOST_STARTED = 500
BATCH = 1000

SWITCHED_OFF = "The webhook was switched off."


def drain(endpoint_id: str) -> int:
    """Send what is due at an endpoint that nobody else is at; how many attempts were made."""
    with unscoped("webhooks"):
        endpoint = _lease(parse_id(endpoint_id))
    if endpoint is None:
        return 0
    attempts, broken = 0, False
    end = time.monotonic() + SLICE_S
    with tenant_scope(endpoint.tenant_id):
        try:
            while not broken and time.monotonic() < end and (delivery := _next(endpoint)) is not None:
                WebhookEndpoint.objects.filter(pk=endpoint.pk).update(lease_until=timezone.now() + LEASE)
                broken = not attempt(endpoint, delivery)
                attempts += 1
        finally:
            WebhookEndpoint.objects.filter(pk=endpoint.pk).update(lease_until=None)
        # What came while the lease was held found it taken.
        if attempts and not broken and _next(endpoint) is not None:
            start(endpoint.pk)
    return attempts


def attempt(endpoint: WebhookEndpoint, delivery: WebhookDelivery) -> bool:
    """One POST, and what came of it is written down. Whether the endpoint has taken it."""
    body = json.dumps(delivery.payload, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")
    now = timezone.now()
    try:
        keys = secrets_of(endpoint, now)
    except Unreadable:
        outcome = posting.Outcome(None, "Its secret cannot be read any more; rotate it.", 0)
    else:
        headers = {
            "content-type": "application/json",
            "user-agent": "Octavo-Webhooks/1",
            **signing.headers(message_id=delivery.message_id, at=int(now.timestamp()), body=body, keys=keys),
        }
        outcome = posting.post(endpoint.url, headers=headers, body=body)
    _note(endpoint, delivery, outcome)
    return outcome.ok


def tend() -> int:
    """Start what is due and has nobody at it; returns how many endpoints. Idempotent."""
    now = timezone.now()
    with unscoped("webhooks"):
        due = WebhookDelivery.objects.filter(endpoint=OuterRef("pk"), next_attempt_at__lte=now)
        endpoints = WebhookEndpoint.objects.filter(Exists(due), enabled=True, tenant__suspended_at=None)
        idle = endpoints.exclude(lease_until__gt=now).order_by("?")
        found = list(idle.values_list("pk", flat=True)[:MOST_STARTED])
    for endpoint_id in found:
        start(endpoint_id)
    return len(found)


def forget_old() -> int:
    """Deliveries that have ended are kept for KEPT."""
    with unscoped("webhooks"):
        old = WebhookDelivery.objects.filter(created_at__lt=timezone.now() - KEPT).exclude(state=DeliveryState.PENDING)
        gone = 0
        while keys := list(old.order_by("created_at").values_list("pk", flat=True)[:BATCH]):
            gone += WebhookDelivery.objects.filter(pk__in=keys).delete()[0]
        return gone


def switch_off(endpoint: WebhookEndpoint, because: str = "") -> None:
    """What waits for it will not be sent. Call it inside a transaction."""
    WebhookEndpoint.objects.filter(pk=endpoint.pk).update(enabled=False, disabled_because=because, failing_since=None)
    WebhookDelivery.objects.filter(endpoint=endpoint, state=DeliveryState.PENDING).update(
        state=DeliveryState.FAILED, next_attempt_at=None, error=SWITCHED_OFF
    )


# --- parts --------------------------------------------------------------------------------------------------------


@transaction.atomic
def _lease(endpoint_id: uuid.UUID) -> WebhookEndpoint | None:
    now = timezone.now()
    usable = WebhookEndpoint.objects.filter(enabled=True, tenant__suspended_at=None)
    endpoint = usable.filter(pk=endpoint_id).first()
    if endpoint is None:
        return None
    of_team = WebhookEndpoint.objects.filter(tenant=endpoint.tenant_id, lease_until__gt=now)
    if of_team.count() >= MOST_OF_A_TEAM:
        return None
    if endpoint.failing_since is not None:
        failing = WebhookEndpoint.objects.filter(lease_until__gt=now).exclude(failing_since=None)
        if failing.filter(tenant=endpoint.tenant_id).count() >= MOST_FAILING_OF_A_TEAM:
            return None
        if failing.count() >= MOST_FAILING:
            return None
    free = WebhookEndpoint.objects.filter(pk=endpoint_id).exclude(lease_until__gt=now)
    return endpoint if free.update(lease_until=now + LEASE) else None


def _next(endpoint: WebhookEndpoint) -> WebhookDelivery | None:
    due = WebhookDelivery.objects.filter(endpoint=endpoint, endpoint__enabled=True, next_attempt_at__lte=timezone.now())
    return due.order_by("next_attempt_at", "id").first()


@transaction.atomic
def _note(endpoint: WebhookEndpoint, delivery: WebhookDelivery, outcome: posting.Outcome) -> None:
    now = timezone.now()
    # The endpoint's row first, as those do who switch it off.
    row = WebhookEndpoint.objects.select_for_update().filter(pk=endpoint.pk).first()
    found = WebhookDelivery.objects.select_for_update().filter(pk=delivery.pk, state=DeliveryState.PENDING).first()
    if row is None or found is None:
        return  # deleted, or switched off meanwhile
    found.attempts += 1
    found.attempted_at = now
    found.response_status, found.took_ms, found.error = outcome.status, outcome.took_ms, outcome.error
    found.next_attempt_at = None if outcome.ok else next_attempt(found.attempts, now)
    if found.next_attempt_at is None:
        found.state = DeliveryState.DELIVERED if outcome.ok else DeliveryState.FAILED
    found.save()
    if outcome.ok:
        if row.failing_since is not None:
            WebhookEndpoint.objects.filter(pk=row.pk).update(failing_since=None)
    elif outcome.status == 410:
        _give_up(row, outcome.error)
    elif row.failing_since is None:
        WebhookEndpoint.objects.filter(pk=row.pk).update(failing_since=now)
    elif now - row.failing_since >= GIVEN_UP_AFTER:
        _give_up(row, f"Nothing has been taken for {GIVEN_UP_AFTER.days} days. The last time: {outcome.error}")


def next_attempt(made: int, now: datetime) -> datetime | None:
    """When to try again behind so many attempts; None: not any more."""
    if made > len(SCHEDULE):
        return None
    return now + timedelta(seconds=SCHEDULE[made - 1] * random.uniform(1 - JITTER, 1 + JITTER))


def _give_up(endpoint: WebhookEndpoint, because: str) -> None:
    switch_off(endpoint, because[:200])
    details = {"because": because}
    record("webhook.given_up", actor=SYSTEM, tenant=endpoint.tenant, on=endpoint, details=details)
    transaction.on_commit(lambda: _mail_soon(str(endpoint.pk)), robust=True)


def _mail_soon(endpoint_id: str) -> None:
    from chatapp.limits.tasks import mail_can_be_sent
    from chatapp.webhooks.tasks import mail_given_up

    if mail_can_be_sent():
        try:
            mail_given_up.apply_async(args=[endpoint_id], retry=False)
        except Exception as error:  # the log and the page say it as well
            log.warning("webhook.mail_not_queued", error=type(error).__name__)


# --- threads ------------------------------------------------------------------------------------------------------


class Senders:
    """Threads of their own in the Celery worker, whose few are for others too. An endpoint waits here once."""

    def __init__(self, threads: int = THREADS, work: Callable[[str], int] = drain) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="webhooks")
        self._work = work
        self._waiting: set[str] = set()
        self._lock = threading.Lock()

    def add(self, endpoint_id: str) -> None:
        with self._lock:
            if endpoint_id in self._waiting:
                return
            self._waiting.add(endpoint_id)
        self._pool.submit(self._run, endpoint_id)

    def _run(self, endpoint_id: str) -> None:
        with self._lock:
            self._waiting.discard(endpoint_id)
        try:
            self._work(endpoint_id)
        except Exception as error:  # `tend` comes by again
            log.error("webhook.failed", endpoint=endpoint_id, cause=cause(error))
        finally:
            connection.close()
