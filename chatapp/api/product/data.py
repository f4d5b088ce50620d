"""Retention, exports and the deletion of a team by HTTP. All of it is the owners'; a key cannot be one."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from uuid import UUID

from ninja import Field, Query, Router, Schema, Status

from chatapp.api.product.base import AccessRequest, ErrorAnswer, needs
from chatapp.data import deletion, exports, retention
from chatapp.data.models import LEAST_USAGE_DAYS, LONGEST_DAYS, USAGE_DAYS
from chatapp.tenants.permissions import Permission

router = Router(tags=["data"])
OWNERS = needs(Permission.MANAGE_DATA)


class Rule(Schema):
    """`days` null: chats are kept until somebody deletes them."""

    days: int | None = Field(None, ge=1, le=LONGEST_DAYS)
    keep_starred: bool = True
    usage_days: int = Field(USAGE_DAYS, ge=LEAST_USAGE_DAYS, le=LONGEST_DAYS)


class MemberShare(Schema):
    name: str
    conversations: int
    messages: int


class Preview(Schema):
    """`usage_rows`: answers whose figures would go; of their days the sums stay."""

    days: int
    keep_starred: bool
    usage_days: int
    conversations: int
    messages: int
    starred_kept: int
    oldest: datetime | None
    newest: datetime | None
    members: list[MemberShare]
    usage_rows: int


class Export(Schema):
    id: UUID
    state: str
    percent: int
    size: int
    sha256: str
    error: str
    requested_by_name: str
    created_at: datetime
    finished_at: datetime | None
    expires_at: datetime | None


class Exports(Schema):
    items: list[Export]


class Confirmation(Schema):
    """`confirm`: the team's slug."""

    confirm: str = Field(max_length=254)


class Deletion(Schema):
    id: UUID
    state: str
    requested_at: datetime
    due_at: datetime


@router.get("/t/{slug}/retention", response=Rule, auth=OWNERS)
def read_retention(request: AccessRequest, slug: str) -> Any:
    return retention.retention_of(request.auth.tenant)


@router.put("/t/{slug}/retention", response={200: Rule, 400: ErrorAnswer}, auth=OWNERS)
def change_retention(request: AccessRequest, slug: str, rule: Rule) -> Any:
    return retention.set_retention(access=request.auth, **rule.dict())


@router.get("/t/{slug}/retention/preview", response={200: Preview, 400: ErrorAnswer}, auth=OWNERS)
def preview_retention(
    request: AccessRequest,
    slug: str,
    days: int = Query(30, ge=1, le=LONGEST_DAYS),
    keep_starred: bool = True,
    usage_days: int | None = Query(None, ge=LEAST_USAGE_DAYS, le=LONGEST_DAYS),
) -> Any:
    """What a rule would delete now. Without `usage_days` figures are kept as long as now. Nothing is changed."""
    access = request.auth
    return retention.preview(access=access, days=days, keep_starred=keep_starred, usage_days=usage_days)


@router.get("/t/{slug}/exports", response=Exports, auth=OWNERS)
def list_exports(request: AccessRequest, slug: str) -> Any:
    return {"items": exports.exports_of(request.auth)}


@router.post("/t/{slug}/exports", response={202: Export, 409: ErrorAnswer}, auth=OWNERS)
def make_export(request: AccessRequest, slug: str) -> Any:
    """Its file is at the address of the data page, /t/{slug}/admin/data/exports/{id}, once its state is "done"."""
    return Status(202, exports.request_export(access=request.auth))


@router.get("/t/{slug}/exports/{uuid:export_id}", response={200: Export, 404: ErrorAnswer}, auth=OWNERS)
def read_export(request: AccessRequest, slug: str, export_id: UUID) -> Any:
    return exports.export_of(request.auth, export_id)


@router.delete("/t/{slug}/exports/{uuid:export_id}", response={200: Export, 404: ErrorAnswer}, auth=OWNERS)
def remove_export(request: AccessRequest, slug: str, export_id: UUID) -> Any:
    """Stop it, or delete its file."""
    return exports.cancel_export(access=request.auth, export_id=export_id)


@router.post("/t/{slug}/deletion", response={202: Deletion, 400: ErrorAnswer, 409: ErrorAnswer}, auth=OWNERS)
def delete_team(request: AccessRequest, slug: str, confirmation: Confirmation) -> Any:
    """The team is closed at once and deleted after its grace period; until then an owner can undo it."""
    access = request.auth
    return Status(202, deletion.request_own_deletion(access=access, confirm=confirmation.confirm))
