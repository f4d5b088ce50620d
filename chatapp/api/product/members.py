"""The people of a team by HTTP."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal
from uuid import UUID

from django.http import HttpRequest
from ninja import Field, Query, Router, Schema, Status

from chatapp.api.product.base import LIMIT, AccessRequest, ErrorAnswer, needs
from chatapp.cursors import keyset
from chatapp.tenants import members, selectors
from chatapp.tenants.models import Membership, Role
from chatapp.tenants.permissions import OF_ROLE, Permission
from chatapp.tenants.roles import descriptions

router = Router(tags=["members"])

RoleName = Literal["owner", "admin", "editor", "member", "auditor"]
assert set(RoleName.__args__) == set(Role.values)  # type: ignore[attr-defined]
REFUSALS = {400: ErrorAnswer, 401: ErrorAnswer, 403: ErrorAnswer, 404: ErrorAnswer, 409: ErrorAnswer}


class Member(Schema):
    id: UUID
    email: str
    name: str
    role: RoleName
    suspended_at: datetime | None
    last_seen_at: datetime | None
    joined_at: datetime


class Members(Schema):
    """`next`: the cursor of what comes behind, null at the end. `total`: that the filters leave."""

    items: list[Member]
    next: str | None
    total: int


class Filters(Schema):
    q: str = Field("", max_length=200, description="A part of a name or an address.")
    role: RoleName | None = None
    state: Literal["active", "suspended"] | None = None


class RoleChange(Schema):
    role: RoleName


class Transfer(Schema):
    member_id: UUID
    confirm: str = Field(max_length=254, description="The address of the member who becomes the owner.")


class RoleDescription(Schema):
    role: RoleName
    name: str
    description: str
    permissions: list[str]


def shown(member: Membership) -> dict[str, Any]:
    return {
        "id": member.pk,
        "email": member.user.email,
        "name": member.user.name,
        "role": member.role,
        "suspended_at": member.suspended_at,
        "last_seen_at": member.last_seen_at,
        "joined_at": member.created_at,
    }


@router.get("/t/{slug}/roles", response=list[RoleDescription], auth=needs(Permission.READ_MEMBERS))
def roles(request: HttpRequest, slug: str) -> Any:
    """What each role may do."""
    return [
        {
            "role": said.role.value,
            "name": said.name,
            "description": said.may,
            "permissions": sorted(permission.value for permission in OF_ROLE[said.role]),
        }
        for said in descriptions()
    ]


@router.get("/t/{slug}/members", response={200: Members, **REFUSALS}, auth=needs(Permission.READ_MEMBERS))
def listed(request: AccessRequest, slug: str, filters: Query[Filters], cursor: str = "", limit: int = LIMIT) -> Any:
    """By address."""
    found = selectors.members(request.auth, search=filters.q, role=filters.role or "", state=filters.state or "")
    items, behind = keyset(found, "user__email", "pk", cursor=cursor, limit=limit)
    return {"items": [shown(member) for member in items], "next": behind, "total": found.count()}


@router.get(
    "/t/{slug}/members/{uuid:member_id}", response={200: Member, **REFUSALS}, auth=needs(Permission.READ_MEMBERS)
)
def one(request: AccessRequest, slug: str, member_id: UUID) -> Any:
    return shown(selectors.member(request.auth, member_id))


@router.patch(
    "/t/{slug}/members/{uuid:member_id}", response={200: Member, **REFUSALS}, auth=needs(Permission.MANAGE_MEMBERS)
)
def change(request: AccessRequest, slug: str, member_id: UUID, body: RoleChange) -> Any:
    """Only owners make and change owners; the last owner stays one."""
    access = request.auth
    return shown(members.change_role(access=access, membership_id=member_id, role=body.role))


@router.post(
    "/t/{slug}/members/{uuid:member_id}/suspend",
    response={200: Member, **REFUSALS},
    auth=needs(Permission.MANAGE_MEMBERS),
)
def suspend(request: AccessRequest, slug: str, member_id: UUID) -> Any:
    """Open sockets of theirs in this team close within a second."""
    return shown(members.suspend(access=request.auth, membership_id=member_id))


@router.post(
    "/t/{slug}/members/{uuid:member_id}/resume",
    response={200: Member, **REFUSALS},
    auth=needs(Permission.MANAGE_MEMBERS),
)
def resume(request: AccessRequest, slug: str, member_id: UUID) -> Any:
    return shown(members.resume(access=request.auth, membership_id=member_id))


@router.delete(
    "/t/{slug}/members/{uuid:member_id}", response={204: None, **REFUSALS}, auth=needs(Permission.MANAGE_MEMBERS)
)
def remove(request: AccessRequest, slug: str, member_id: UUID) -> Any:
    """Conversations stay the person's own, hidden until they come back or data retention takes them."""
    members.remove(access=request.auth, membership_id=member_id)
    return Status(204, None)


@router.post("/t/{slug}/ownership", response={200: Member, **REFUSALS}, auth=needs(Permission.TRANSFER_OWNERSHIP))
def transfer(request: AccessRequest, slug: str, body: Transfer) -> Any:
    """The member becomes an owner, the caller an admin."""
    access = request.auth
    return shown(members.transfer_ownership(access=access, membership_id=body.member_id, confirm=body.confirm))


@router.post("/t/{slug}/leave", response={204: None, **REFUSALS}, auth=needs(None))
def leave(request: AccessRequest, slug: str) -> Any:
    """The caller's own membership ends. Any role may, but the last owner."""
    members.leave(access=request.auth)
    return Status(204, None)
