"""A team's webhooks by HTTP. A secret is in the answer that makes it, and in no other."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any
from uuid import UUID

from ninja import Field, Query, Router, Schema, Status

from chatapp.api.product.base import AccessRequest, ErrorAnswer, needs
from chatapp.tenants.permissions import Permission
from chatapp.webhooks import selectors, services
from chatapp.webhooks.kinds import EVENTS
from chatapp.webhooks.models import LONGEST_DESCRIPTION, LONGEST_URL, WebhookDelivery, WebhookEndpoint

router = Router(tags=["webhooks"])
MANAGER = needs(Permission.MANAGE_WEBHOOKS)
REFUSED: dict[int, Any] = {
    400: ErrorAnswer, 401: ErrorAnswer, 403: ErrorAnswer, 404: ErrorAnswer, 409: ErrorAnswer,
}  # fmt: skip
ONE = "/t/{slug}/webhooks/{uuid:webhook_id}"

Url = Annotated[str, Field(max_length=2 * LONGEST_URL)]
Description = Annotated[str, Field(max_length=2 * LONGEST_DESCRIPTION)]
Events = Annotated[list[str], Field(max_length=100, description=f"Of these: {', '.join(EVENTS)}")]


class Webhook(Schema):
    id: UUID
    url: str
    description: str
    events: list[str]
    enabled: bool
    disabled_because: str
    failing_since: datetime | None
    former_secret_until: datetime | None
    waiting: int
    missed: int
    created_by: str
    created_at: datetime

    @staticmethod
    def resolve_created_by(webhook: WebhookEndpoint) -> str:
        return webhook.created_by_name

    @staticmethod
    def resolve_former_secret_until(webhook: WebhookEndpoint) -> datetime | None:
        return webhook.former_until


class Webhooks(Schema):
    items: list[Webhook]


class NewWebhook(Schema):
    """`secret` is shown here once."""

    webhook: Webhook
    secret: str


class Wanted(Schema):
    url: Url
    events: Events
    description: Description = ""


class Changes(Schema):
    """What is left out stays."""

    url: Url = ""
    events: Events = []
    description: Description = ""
    enabled: bool = True


class Delivery(Schema):
    id: UUID
    message_id: str
    type: str
    state: str
    attempts: int
    created_at: datetime
    attempted_at: datetime | None
    next_attempt_at: datetime | None
    response_status: int | None
    took_ms: int | None
    error: str

    @staticmethod
    def resolve_type(delivery: WebhookDelivery) -> str:
        return delivery.kind


class DeliveryWithPayload(Delivery):
    payload: dict[str, Any]


class Deliveries(Schema):
    items: list[Delivery]
    next: str | None


@router.get("/t/{slug}/webhooks", response={200: Webhooks, **REFUSED}, auth=MANAGER, summary="List webhooks")
def list_webhooks(request: AccessRequest, slug: str) -> Any:
    return {"items": list(selectors.endpoints(request.auth))}


@router.post("/t/{slug}/webhooks", response={201: NewWebhook, **REFUSED}, auth=MANAGER, summary="Add a webhook")
def create_webhook(request: AccessRequest, slug: str, body: Wanted) -> Any:
    """The address has to be public, and https://."""
    access = request.auth
    webhook, secret = services.create(access=access, **body.dict())
    return Status(201, {"webhook": selectors.endpoint(access, webhook.pk), "secret": secret})


@router.get(ONE, response={200: Webhook, **REFUSED}, auth=MANAGER, summary="Read a webhook")
def read_webhook(request: AccessRequest, slug: str, webhook_id: UUID) -> Any:
    return selectors.endpoint(request.auth, webhook_id)


@router.patch(ONE, response={200: Webhook, **REFUSED}, auth=MANAGER, summary="Change a webhook, or switch it off or on")
def change_webhook(request: AccessRequest, slug: str, webhook_id: UUID, body: Changes) -> Any:
    access = request.auth
    services.change(access=access, webhook_id=webhook_id, changes=body.dict(exclude_unset=True))
    return selectors.endpoint(access, webhook_id)


@router.delete(ONE, response={204: None, **REFUSED}, auth=MANAGER, summary="Delete a webhook and its deliveries")
def delete_webhook(request: AccessRequest, slug: str, webhook_id: UUID) -> Any:
    services.delete(access=request.auth, webhook_id=webhook_id)
    return Status(204, None)


@router.post(f"{ONE}/rotate", response={200: NewWebhook, **REFUSED}, auth=MANAGER, summary="Replace a webhook's secret")
def rotate_secret(request: AccessRequest, slug: str, webhook_id: UUID) -> Any:
    """For a day the former secret signs as well."""
    access = request.auth
    _, secret = services.rotate(access=access, webhook_id=webhook_id)
    return {"webhook": selectors.endpoint(access, webhook_id), "secret": secret}


@router.post(f"{ONE}/test", response={202: Delivery, **REFUSED}, auth=MANAGER, summary="Send a test event")
def send_test(request: AccessRequest, slug: str, webhook_id: UUID) -> Any:
    return Status(202, services.send_test(access=request.auth, webhook_id=webhook_id))


@router.get(f"{ONE}/deliveries", response={200: Deliveries, **REFUSED}, auth=MANAGER, summary="List deliveries")
def list_deliveries(
    request: AccessRequest,
    slug: str,
    webhook_id: UUID,
    state: str = selectors.ALL,
    cursor: str = "",
    limit: int = Query(selectors.PAGE, ge=1, le=selectors.PAGE),
) -> Any:
    """Newest first; those that have ended are kept for two weeks. `state`: pending, delivered, failed or all."""
    found = selectors.deliveries(request.auth, webhook_id, state=state, cursor=cursor, limit=limit)
    return {"items": list(found.items), "next": found.next}


@router.get(
    f"{ONE}/deliveries/{{uuid:delivery_id}}",
    response={200: DeliveryWithPayload, **REFUSED},
    auth=MANAGER,
    summary="Read a delivery with its payload",
)
def read_delivery(request: AccessRequest, slug: str, webhook_id: UUID, delivery_id: UUID) -> Any:
    return selectors.delivery(request.auth, webhook_id, delivery_id)


@router.post(
    f"{ONE}/deliveries/{{uuid:delivery_id}}/again",
    response={202: Delivery, **REFUSED},
    auth=MANAGER,
    summary="Send an event again",
)
def send_again(request: AccessRequest, slug: str, webhook_id: UUID, delivery_id: UUID) -> Any:
    return Status(202, services.send_again(access=request.auth, webhook_id=webhook_id, delivery_id=delivery_id))
