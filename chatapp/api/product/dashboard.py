"""A team's dashboard by HTTP: the figures of its first page, its tables as files, what runs now, and stopping that."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from uuid import UUID

from django.http import HttpResponseBase
from django.utils import timezone
from ninja import Query, Router, Schema

from chatapp.api.product.base import AccessRequest, ErrorAnswer, needs
from chatapp.api.product.usage import Days, Item
from chatapp.chat import running
from chatapp.downloads import download
from chatapp.insight import export, tables
from chatapp.insight.tables import Table
from chatapp.tenants.access import Access
from chatapp.tenants.permissions import Permission
from chatapp.tenants.selectors import people_in
from chatapp.usage import periods, selectors
from chatapp.usage.export import format_of
from chatapp.usage.selectors import GroupBy

router = Router(tags=["dashboard"])
MOST = 100


class Failure(Schema):
    state: str
    error_code: str
    answers: int
    last_at: datetime


class Cost(Schema):
    """`title` is told to whoever owns the conversation alone; `principal` and `who` are its owner."""

    conversation_id: UUID
    title: str
    own: bool
    principal: str
    who: str
    answers: int
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    tokens: int
    last_at: datetime


class Version(Schema):
    """`saved_s`: seconds of prefill that its cached tokens saved, about; null while nothing has been measured."""

    version_id: UUID
    assistant_id: UUID
    assistant: str
    number: int | None
    in_force: bool
    answers: int
    prompt_tokens: int
    cached_tokens: int
    hit_rate: float | None
    saved_s: float | None


class Limit(Schema):
    name: str
    title: str
    unit: str
    limit: float | None
    used: int | None
    reserved: int
    percent: int | None
    resets_at: datetime | None


class Dashboard(Schema):
    """Tables hold at most `limit` rows, the largest first; null are those that the caller may not read. `times` has all
    slots of the period: its days, or the hours of one day."""

    start: datetime
    end: datetime
    zone: str
    people: int
    running: int
    slots: GroupBy
    today: Item
    total: Item
    times: list[Item]
    assistants: list[Item] | None
    members: list[Item] | None
    keys: list[Item] | None
    models: list[Item] | None
    errors: list[Failure] | None
    conversations: list[Cost] | None
    versions: list[Version] | None
    limits: list[Limit] | None


class Running(Schema):
    """`state`: waiting, answering or stopping; empty while it is not known. `principal` and `who` are empty for those
    who may not read usage."""

    id: UUID
    asked_at: datetime
    state: str
    kind: str
    principal: str
    who: str
    assistant: str
    model: str


class RunningAnswer(Schema):
    """`total`: how many there are; `items`: the oldest of them."""

    total: int
    items: list[Running]


class Stopped(Schema):
    """The state after it: cancelled; cancelling, if its worker still has to hear of it; or the one it had ended in."""

    id: UUID
    status: str


@router.get(
    "/t/{slug}/dashboard",
    response={200: Dashboard, 400: ErrorAnswer},
    auth=needs(Permission.READ_DASHBOARD),
)
def dashboard(
    request: AccessRequest,
    slug: str,
    asked: Query[Days],
    limit: int = Query(10, ge=1, le=MOST),
) -> Any:
    """All of the dashboard at once. Figures come from sums that are at most a minute old."""
    access: Access = request.auth
    period = asked.read_period()
    today = periods.period_of({"period": "today"}, now=timezone.now(), zone=period.zone)
    may = tables.readable(access)
    return {
        "start": period.start,
        "end": period.end,
        "zone": period.zone.key,
        "people": people_in(access.tenant),
        "running": running.count(access),
        "slots": selectors.slots_of(period),
        "today": Item.of(selectors.total(access.tenant.pk, today)),
        "total": Item.of(selectors.total(access.tenant.pk, period)),
        **{table.value: tables.read(access, table, period, limit) if table in may else None for table in Table},
    }


@router.get("/t/{slug}/dashboard/export", response={400: ErrorAnswer}, auth=needs(Permission.READ_DASHBOARD))
def dashboard_export(
    request: AccessRequest,
    slug: str,
    asked: Query[Days],
    what: str | None = None,
    format: str | None = None,
) -> HttpResponseBase:
    """One table as a file, whole: times, assistants, members, keys, models, errors, conversations, versions or limits;
    `format` csv or json. It is in the audit log."""
    access: Access = request.auth
    period = asked.read_period()
    table, form = tables.table_of(what), format_of(format)
    parts = export.export(access=access, period=period, what=table, form=form)
    return download(request, parts, export.file_name(access, period, table, form))


@router.get("/t/{slug}/running", response=RunningAnswer, auth=needs(Permission.READ_DASHBOARD))
def running_now(request: AccessRequest, slug: str) -> Any:
    """Answers that wait or are being given, the oldest first, 50 at most."""
    access: Access = request.auth
    return {"total": running.count(access), "items": running.running_now(access)}


@router.post(
    "/t/{slug}/running/{answer_id}/stop",
    response={200: Stopped, 404: ErrorAnswer, 503: ErrorAnswer},
    auth=needs(Permission.STOP_ANSWERS),
)
def stop(request: AccessRequest, slug: str, answer_id: UUID) -> Any:
    """Stops an answer of the team, whoever asked for it. What it has said so far is kept. It is in the audit log."""
    return {"id": answer_id, "status": running.stop(access=request.auth, answer_id=answer_id)}
