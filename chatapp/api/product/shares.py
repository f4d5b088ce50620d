"""Conversations that the team may read: the asker's links, and going on from a colleague's."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from uuid import UUID

from django.urls import reverse
from ninja import Field, Router, Schema, Status

from chatapp.api.product.base import LIMIT, AccessRequest, ErrorAnswer, needs
from chatapp.shares import services
from chatapp.shares.models import Share as Row
from chatapp.tenants.permissions import Permission

router = Router(tags=["chat"])
CHAT = needs(Permission.CHAT)
REFUSALS = {400: ErrorAnswer, 401: ErrorAnswer, 403: ErrorAnswer, 404: ErrorAnswer}


class Wish(Schema):
    """`leaf_id`: the last message of the branch that is meant; the newest one's without. `days`: how long the link
    holds; null: until it is revoked."""

    leaf_id: UUID | None = None
    days: int | None = Field(None, ge=1, le=services.LONGEST_DAYS)


class Share(Schema):
    """`url`: the page that the team reads it on."""

    id: UUID
    conversation_id: UUID
    title: str
    url: str
    created_at: datetime
    expires_at: datetime | None


class Shares(Schema):
    items: list[Share]
    next: str | None


class GoneOn(Schema):
    conversation_id: UUID


@router.get("/t/{slug}/shares", response={200: Shares, **REFUSALS}, auth=CHAT, summary="What one shares")
def listed(request: AccessRequest, slug: str, cursor: str = "", limit: int = LIMIT) -> Any:
    rows, following = services.own(request.auth, cursor, limit)
    return {"items": [_present(slug, row) for row in rows], "next": following}


@router.post(
    "/t/{slug}/conversations/{uuid:conversation_id}/shares", response={201: Share, 409: ErrorAnswer, **REFUSALS},
    auth=CHAT, summary="Share a conversation",
)  # fmt: skip
def share(request: AccessRequest, slug: str, conversation_id: UUID, body: Wish) -> Any:
    """One branch as it is now; what is said later is not in it."""
    made = services.share(access=request.auth, conversation_id=conversation_id, leaf_id=body.leaf_id, days=body.days)
    return Status(201, _present(slug, made))


@router.delete("/t/{slug}/shares/{uuid:share_id}", response={204: None, **REFUSALS}, auth=CHAT, summary="Revoke a link")
def revoke(request: AccessRequest, slug: str, share_id: UUID) -> Any:
    services.revoke(access=request.auth, share_id=share_id)
    return Status(204, None)


@router.post(
    "/t/{slug}/shares/{uuid:share_id}/continue", response={201: GoneOn, **REFUSALS}, auth=CHAT,
    summary="Go on in a conversation of one's own",
)  # fmt: skip
def go_on(request: AccessRequest, slug: str, share_id: UUID) -> Any:
    return Status(201, {"conversation_id": services.go_on(access=request.auth, share_id=share_id).pk})


def _present(slug: str, row: Row) -> dict[str, Any]:
    return {
        "id": row.pk,
        "conversation_id": row.conversation_id,
        "title": row.title,
        "url": reverse("shared", args=[slug, row.pk]),
        "created_at": row.created_at,
        "expires_at": row.expires_at,
    }
