"""Invitations to a team by HTTP. Accepting one takes a person and a page."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal
from uuid import UUID

from ninja import Field, Router, Schema, Status

from chatapp.api.product.base import LIMIT, AccessRequest, ErrorAnswer, needs
from chatapp.api.product.members import REFUSALS, RoleName
from chatapp.cursors import keyset
from chatapp.tenants import addresses, invitations, selectors
from chatapp.tenants.access import Access
from chatapp.tenants.models import Invitation
from chatapp.tenants.permissions import Permission

router = Router(tags=["invitations"])


class Shown(Schema):
    id: UUID
    email: str
    role: RoleName
    inviter: str
    sent_at: datetime
    expires_at: datetime
    mailed_at: datetime | None
    expired: bool
    link: str | None = Field(description="To be handed over, where no mail is set up.")


class Listed(Schema):
    """`next`: the cursor of what comes behind, null at the end."""

    items: list[Shown]
    next: str | None
    total: int


class Wanted(Schema):
    emails: list[Annotated[str, Field(max_length=1000)]] = Field(min_length=1, max_length=invitations.MOST_AT_ONCE)
    role: RoleName = "member"


class Result(Schema):
    email: str
    outcome: Literal["invited", "open", "member", "suspended", "invalid"]
    message: str
    invitation: Shown | None


class Results(Schema):
    items: list[Result]


def shown(request: AccessRequest, invitation: Invitation) -> dict[str, Any]:
    access: Access = request.auth
    link = invitations.may_hand_over(access, invitation)
    return {
        "id": invitation.pk,
        "email": invitation.email,
        "role": invitation.role,
        "inviter": invitation.inviter,
        "sent_at": invitation.sent_at,
        "expires_at": invitation.expires_at,
        "mailed_at": invitation.mailed_at,
        "expired": invitation.expired,
        "link": request.build_absolute_uri(invitations.path(invitation)) if link else None,
    }


@router.get("/t/{slug}/invitations", response={200: Listed, **REFUSALS}, auth=needs(Permission.READ_MEMBERS))
def waiting(request: AccessRequest, slug: str, cursor: str = "", limit: int = LIMIT) -> Any:
    """Those that nobody has answered yet, newest first."""
    found = selectors.invitations(request.auth)
    items, behind = keyset(found, "-sent_at", "-pk", cursor=cursor, limit=limit)
    return {"items": [shown(request, invitation) for invitation in items], "next": behind, "total": found.count()}


@router.post("/t/{slug}/invitations", response={200: Results, **REFUSALS}, auth=needs(Permission.MANAGE_MEMBERS))
def invite(request: AccessRequest, slug: str, body: Wanted) -> Any:
    """Each address has its own result: what can be invited is."""
    said = invitations.invite(
        access=request.auth,
        addresses=addresses.parse("\n".join(body.emails)),
        role=body.role,
    )
    items = [
        {
            "email": one.email,
            "outcome": one.outcome,
            "message": one.message,
            "invitation": shown(request, one.invitation) if one.invitation else None,
        }
        for one in said
    ]
    return {"items": items}


@router.post(
    "/t/{slug}/invitations/{uuid:invitation_id}/resend",
    response={200: Shown, 429: ErrorAnswer, **REFUSALS},
    auth=needs(Permission.MANAGE_MEMBERS),
)
def resend(request: AccessRequest, slug: str, invitation_id: UUID) -> Any:
    """A new link for 72 hours more; the former one ends."""
    access = request.auth
    return shown(request, invitations.resend(access=access, invitation_id=invitation_id))


@router.delete(
    "/t/{slug}/invitations/{uuid:invitation_id}",
    response={204: None, **REFUSALS},
    auth=needs(Permission.MANAGE_MEMBERS),
)
def withdraw(request: AccessRequest, slug: str, invitation_id: UUID) -> Any:
    invitations.withdraw(access=request.auth, invitation_id=invitation_id)
    return Status(204, None)
