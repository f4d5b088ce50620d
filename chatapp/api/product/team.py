"""A team's settings by HTTP."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal
from uuid import UUID

from ninja import Field, Router, Schema

from chatapp.api.product.base import AccessRequest, needs
from chatapp.api.product.members import REFUSALS
from chatapp.tenants import team
from chatapp.tenants.models import Accent, Tenant
from chatapp.tenants.permissions import Permission

router = Router(tags=["team"])

AccentName = Literal["teal", "blue", "violet", "plum", "rose", "rust", "ochre", "moss"]
assert set(AccentName.__args__) == set(Accent.values)  # type: ignore[attr-defined]


class Settings(Schema):
    """`model_titles`: the model writes the titles of new conversations; else their first words are it."""

    id: UUID
    slug: str
    name: str
    accent: AccentName
    model: str
    model_titles: bool
    created_at: datetime


class Change(Schema):
    """What is left out stays."""

    name: str | None = Field(None, max_length=1000)
    accent: AccentName | None = None
    model_titles: bool | None = None


def shown(tenant: Tenant) -> dict[str, Any]:
    fields = ("id", "slug", "name", "accent", "model", "model_titles", "created_at")
    return {field: getattr(tenant, field) for field in fields}


@router.get("/t/{slug}/settings", response={200: Settings, **REFUSALS}, auth=needs(Permission.MANAGE_SETTINGS))
def settings(request: AccessRequest, slug: str) -> Any:
    return shown(request.auth.tenant)


@router.patch("/t/{slug}/settings", response={200: Settings, **REFUSALS}, auth=needs(Permission.MANAGE_SETTINGS))
def change(request: AccessRequest, slug: str, body: Change) -> Any:
    access = request.auth
    return shown(team.change_team(access=access, **body.dict()))
