"""Limits by HTTP: what the team may use and uses, and what its people and keys may at most."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from uuid import UUID

from ninja import Router, Schema, Status

from chatapp.api.product.base import LIMIT, AccessRequest, needs
from chatapp.cursors import keyset
from chatapp.limits import selectors, services
from chatapp.limits.models import LOWER, LowerLimits
from chatapp.tenants.models import Membership
from chatapp.tenants.permissions import Permission

router = Router(tags=["limits"])


class Use(Schema):
    """`limit` None: there is none. `reserved`: by what is under way. `override`: set for this team alone."""

    name: str
    title: str
    unit: str
    limit: float | None
    used: int | None
    reserved: int
    percent: int | None
    resets_at: datetime | None
    override: bool


class Limits(Schema):
    plan: str
    limits: list[Use]


class LowerIn(Schema):
    """For whom (a membership, a key, or neither: every person), and what; None is as the team."""

    member_id: UUID | None = None
    key_id: UUID | None = None
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    concurrent_answers: int | None = None
    context_tokens: int | None = None
    output_tokens: int | None = None
    tokens_per_month: int | None = None


class Lower(LowerIn):
    id: UUID


class LowerPage(Schema):
    """`next`: the cursor of what comes behind, null at the end."""

    items: list[Lower]
    next: str | None


class Set(Schema):
    """None: nothing is limited there any more beyond the team's limits."""

    limits: Lower | None


@router.get("/t/{slug}/limits", response=Limits, auth=needs(Permission.READ_LIMITS))
def limits(request: AccessRequest, slug: str) -> Any:
    tenant = request.auth.tenant
    uses = [
        {
            "name": use.name,
            "title": use.title,
            "unit": use.unit,
            "limit": use.limit,
            "used": use.used,
            "reserved": use.reserved,
            "percent": use.percent,
            "resets_at": use.resets_at,
            "override": use.override is not None,
        }
        for use in selectors.use_of_team(tenant)
    ]
    return {"plan": selectors.ensure(tenant).plan.name, "limits": uses}


@router.get("/t/{slug}/limits/lower", response=LowerPage, auth=needs(Permission.READ_LIMITS))
def lower_limits(request: AccessRequest, slug: str, cursor: str = "", limit: int = LIMIT) -> Any:
    """What holds for every person comes first, where there is such a limit."""
    tenant = request.auth.tenant
    rows, behind = keyset(selectors.lower_limits(tenant), "pk", cursor=cursor, limit=limit)
    default = selectors.default_lower(tenant)
    if not cursor and default is not None:
        rows.insert(0, default)
    members = dict(
        Membership.objects.filter(tenant=tenant, user__in=[row.user_id for row in rows if row.user_id]).values_list(
            "user", "pk"
        )
    )
    return {"items": [_lower(row, members) for row in rows], "next": behind}


@router.put("/t/{slug}/limits/lower", response=Set, auth=needs(Permission.MANAGE_LIMITS))
def set_lower(request: AccessRequest, slug: str, body: LowerIn) -> Any:
    access = request.auth
    found = services.set_lower(
        access=access,
        values={name: getattr(body, name) for name in LOWER},
        member_id=body.member_id,
        key_id=body.key_id,
    )
    if found is None:
        return {"limits": None}
    return {"limits": _lower(found, {found.user_id: body.member_id})}


@router.delete("/t/{slug}/limits/lower/{uuid:lower_id}", response={204: None}, auth=needs(Permission.MANAGE_LIMITS))
def remove_lower(request: AccessRequest, slug: str, lower_id: UUID) -> Any:
    services.remove_lower(access=request.auth, lower_id=lower_id)
    return Status(204, None)


def _lower(row: LowerLimits, members: dict[Any, Any]) -> dict[str, Any]:
    return {
        "id": row.pk,
        "member_id": members.get(row.user_id) if row.user_id else None,
        "key_id": row.key_id,
        **{name: getattr(row, name) for name in LOWER},
    }
