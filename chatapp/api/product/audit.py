"""The audit log by HTTP."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from uuid import UUID

from django.http import HttpRequest
from ninja import Router, Schema

from chatapp.api.product.base import needs
from chatapp.audit.models import AuditEntry
from chatapp.tenants.permissions import Permission

router = Router(tags=["audit"])
PAGE = 100


class Entry(Schema):
    id: UUID
    at: datetime
    actor_kind: str
    actor_name: str
    action: str
    object_kind: str
    object_id: str
    object_name: str
    details: dict[str, Any]
    address: str | None


class Entries(Schema):
    items: list[Entry]


@router.get("/t/{slug}/audit", response=Entries, auth=needs(Permission.READ_AUDIT))
def entries(request: HttpRequest, slug: str) -> Any:
    return {"items": list(AuditEntry.objects.all()[:PAGE])}
