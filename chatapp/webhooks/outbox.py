"""Writes what is to be told, in the transaction of the event itself: a delivery for each endpoint that wants it.

What takes time begins behind the commit. Should the process die in between, or Celery be away, `tend` finds the row.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from datetime import UTC
from typing import Any

import structlog
from django.db import transaction
from django.db.models import F
from django.utils import timezone

from chatapp.ids import new_id
from chatapp.scope import tenant_scope
from chatapp.webhooks.kinds import EVENTS
from chatapp.webhooks.models import DeliveryState, WebhookDelivery, WebhookEndpoint

log = structlog.get_logger(__name__)

# For each endpoint; beyond these nothing is kept for it until some have ended.
MOST_PENDING = 1000


def told(sender: object, *, tenant_id: uuid.UUID, kind: str, data: Mapping[str, Any], **more: object) -> None:
    """The receiver of chatapp.events.happened."""
    if kind not in EVENTS:
        log.error("webhook.unknown_event", kind=kind)
        return
    with tenant_scope(tenant_id):
        enabled = WebhookEndpoint.objects.filter(tenant=tenant_id, enabled=True)
        wanting = [endpoint for endpoint in enabled if kind in endpoint.events]
        if not wanting:
            return
        event, payload = new_id(), payload_of(kind, data)
        for endpoint in wanting:
            if full(endpoint):
                WebhookEndpoint.objects.filter(pk=endpoint.pk).update(missed=F("missed") + 1)
            else:
                write(endpoint, event, kind, payload)


def payload_of(kind: str, data: Mapping[str, Any]) -> dict[str, Any]:
    now = timezone.now().astimezone(UTC)
    return {
        "type": kind,
        "timestamp": now.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "data": dict(data),
    }


def full(endpoint: WebhookEndpoint) -> bool:
    return endpoint.deliveries.filter(state=DeliveryState.PENDING).count() >= MOST_PENDING


def write(endpoint: WebhookEndpoint, event: uuid.UUID, kind: str, payload: dict[str, Any]) -> WebhookDelivery:
    """Call it inside a transaction, in the scope of the endpoint's team."""
    delivery = WebhookDelivery.objects.create(
        tenant_id=endpoint.tenant_id, endpoint=endpoint, event=event, kind=kind, payload=payload
    )
    transaction.on_commit(lambda: start(endpoint.pk), robust=True)
    return delivery


def start(endpoint_id: uuid.UUID) -> None:
    from chatapp.webhooks import tasks

    try:
        tasks.drain.apply_async(args=[str(endpoint_id)], retry=False)
    except Exception as error:  # no broker: the row waits, and `tend` comes by
        log.warning("webhook.not_started", endpoint=str(endpoint_id), error=type(error).__name__)
