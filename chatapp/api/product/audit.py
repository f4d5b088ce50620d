"""The audit log by HTTP."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from uuid import UUID

from ninja import Query, Router, Schema

from chatapp.api.product.base import needs
from chatapp.audit.export import export
from chatapp.audit.selectors import Filters, entries
from chatapp.tenants.permissions import Permission

router = Router(tags=["audit"])
PAGE = 100


class Entry(Schema):
    id: UUID
    at: datetime
    actor_kind: str
    actor_id: str
    actor_name: str
    action: str
    title: str
    object_kind: str
    object_id: str
    object_name: str
    details: dict[str, Any]
    address: str | None
    request_id: str


class Entries(Schema):
    """`next`: the cursor of what comes behind, null at the end."""

    items: list[Entry]
    next: str | None


class Wanted(Schema):
    """`action` is one, or a topic with its dot ("key."); `since` counts, `until` does not any more."""

    text: str = ""
    actor: str = ""
    actor_kind: str = ""
    action: str = ""
    object: str = ""
    address: str = ""
    since: datetime | None = None
    until: datetime | None = None


@router.get("/t/{slug}/audit", response=Entries, auth=needs(Permission.READ_AUDIT), summary="Read the audit log")
def list_entries(
    request: Any, slug: str, data: Query[Wanted], cursor: str = "", limit: int = Query(PAGE, ge=1, le=PAGE)
) -> Any:
    found = entries(Filters(**data.dict()), cursor=cursor, limit=limit)
    return {"items": list(found.items), "next": found.next}


@router.get("/t/{slug}/audit/export", auth=needs(Permission.READ_AUDIT), summary="Export the audit log as CSV or JSON")
def export_entries(request: Any, slug: str, data: Query[Wanted], format: str = "csv") -> Any:
    access = request.auth
    filters = Filters(**data.dict())
    return export(actor=access.actor, tenant=access.tenant, slug=access.tenant.slug, filters=filters, format=format)
