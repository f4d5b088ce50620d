"""What can be read of a team's webhooks. Call in the team's scope."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from django.db.models import Count, Max, Q, QuerySet
from django.utils.translation import gettext as _

from chatapp.cursors import behind, cursor_of
from chatapp.errors import BadInput, NotFound
from chatapp.ids import parse_id
from chatapp.tenants.access import Access
from chatapp.tenants.permissions import Permission
from chatapp.webhooks.models import DeliveryState, WebhookDelivery, WebhookEndpoint

PAGE = 50
ALL = "all"
STATES = (ALL, *DeliveryState.values)


@dataclass(frozen=True)
class Page:
    """Newest first. `next` is the cursor of what comes behind, None at the end."""

    items: Sequence[WebhookDelivery]
    next: str | None


def endpoints(access: Access) -> QuerySet[WebhookEndpoint]:
    """With `waiting` (deliveries that wait) and `last_at` (when something was sent last)."""
    access.require(Permission.MANAGE_WEBHOOKS)
    found = WebhookEndpoint.objects.filter(tenant=access.tenant).select_related("created_by")
    return found.annotate(
        waiting=Count("deliveries", filter=Q(deliveries__state=DeliveryState.PENDING)),
        last_at=Max("deliveries__attempted_at"),
    ).order_by("created_at", "id")


def endpoint(access: Access, webhook_id: object) -> WebhookEndpoint:
    found = endpoints(access).filter(pk=parse_id(webhook_id)).first()
    if found is None:
        raise NotFound(_("There is no such webhook."))
    return found


def deliveries(access: Access, webhook_id: object, *, state: str = ALL, cursor: str = "", limit: int = PAGE) -> Page:
    if state not in STATES:
        raise BadInput(
            _("There is no such state; there are %(choices)s.") % {"choices": ", ".join(STATES)}, param="state"
        )
    found = endpoint(access, webhook_id).deliveries.order_by("-created_at", "-id")
    if state != ALL:
        found = found.filter(state=state)
    if cursor:
        found = found.filter(behind(cursor, moment="created_at"))
    items = list(found[: limit + 1])
    more, items = len(items) > limit, items[:limit]
    return Page(items, cursor_of(items[-1].created_at, items[-1].pk) if more else None)


def delivery(access: Access, webhook_id: object, delivery_id: object) -> WebhookDelivery:
    access.require(Permission.MANAGE_WEBHOOKS)
    found = WebhookDelivery.objects.select_related("endpoint").filter(
        tenant=access.tenant, endpoint=parse_id(webhook_id), pk=parse_id(delivery_id)
    )
    row = found.first()
    if row is None:
        raise NotFound(_("There is no such delivery."))
    return row
