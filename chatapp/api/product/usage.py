"""Usage by HTTP: figures out of the roll-ups, and exports."""

from __future__ import annotations

import base64
import binascii
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

from django.http import HttpResponseBase
from django.utils import timezone
from ninja import Field, Query, Router, Schema

from chatapp.api.product.base import AccessRequest, ErrorAnswer, needs
from chatapp.downloads import download
from chatapp.errors import BadInput
from chatapp.tenants.access import Access
from chatapp.tenants.permissions import Permission
from chatapp.usage import export, periods, selectors
from chatapp.usage.periods import Period
from chatapp.usage.selectors import Figures, GroupBy

router = Router(tags=["usage"])
MOST = 1000
UTC = ZoneInfo("UTC")


class Days(Schema):
    """`from` and `to` are days of `zone`, both included. Figures are kept by whole UTC hours."""

    period: str | None = Field(None, description="today, 7d (default), 30d, month, last_month or custom")
    first: str | None = Field(None, alias="from", description="YYYY-MM-DD; with period custom")
    last: str | None = Field(None, alias="to", description="YYYY-MM-DD; with period custom")
    zone: str | None = Field(None, description="An IANA zone such as Europe/Berlin; UTC by default")

    def read_period(self) -> Period:
        zone = periods.zone_of(self.zone or "UTC")
        if zone is None:
            raise BadInput("zone must be an IANA zone such as Europe/Berlin.", param="zone")
        params = {"period": self.period, "from": self.first, "to": self.last}
        return periods.period_of(params, now=timezone.now(), zone=zone)


class Asked(Days):
    principal: str | None = Field(None, description="user:<id> or key:<id>")
    assistant: str | None = Field(None, description="An assistant's id, or none")
    model: str | None = None
    kind: str | None = Field(None, description="chat or api")

    def read(self) -> tuple[Period, dict[str, str]]:
        return self.read_period(), selectors.filters_of(self.dict())


class Item(Schema):
    id: str
    name: str
    requests: int
    finished: int
    cancelled: int
    refused: int
    failed: int
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    tokens: int
    first_token_p50_s: float | None
    first_token_p95_s: float | None
    between_tokens_p50_s: float | None
    between_tokens_p95_s: float | None

    @staticmethod
    def of(figures: Figures) -> Item:
        fields = {name: getattr(figures, name) for name in Item.model_fields if hasattr(figures, name)}
        return Item(
            **fields,
            first_token_p50_s=figures.first_token_s(0.5),
            first_token_p95_s=figures.first_token_s(0.95),
            between_tokens_p50_s=figures.between_tokens_s(0.5),
            between_tokens_p95_s=figures.between_tokens_s(0.95),
        )


class UsageAnswer(Schema):
    start: datetime
    end: datetime
    zone: str
    group_by: GroupBy
    total: Item
    items: list[Item]
    next: str | None


@router.get(
    "/t/{slug}/usage",
    response={200: UsageAnswer, 400: ErrorAnswer},
    auth=needs(Permission.READ_USAGE),
)
def usage(
    request: AccessRequest,
    slug: str,
    asked: Query[Asked],
    group_by: str | None = None,
    cursor: str | None = None,
    limit: int = Query(100, ge=1, le=MOST),
) -> Any:
    """Sums of a period and of its groups: by day or hour in their order, by everything else most tokens first.

    `next` is the cursor of the following page. Percentiles are at most 4.5 % off.
    """
    access: Access = request.auth
    period, filters = asked.read()
    by = selectors.group_of(group_by)
    groups = selectors.grouped(access.tenant.pk, period, by, filters)
    begin = _offset(cursor)
    items = groups[begin : begin + limit]
    more = len(groups) > begin + limit
    return {
        "start": period.start,
        "end": period.end,
        "zone": period.zone.key,
        "group_by": by,
        "total": Item.of(selectors.total(access.tenant.pk, period, filters)),
        "items": [Item.of(group) for group in items],
        "next": _cursor(begin + limit) if more else None,
    }


@router.get("/t/{slug}/usage/export", response={400: ErrorAnswer}, auth=needs(Permission.READ_USAGE))
def usage_export(
    request: AccessRequest, slug: str, asked: Query[Asked], what: str | None = None, format: str | None = None
) -> HttpResponseBase:
    """A file: `what` is rows (one a generation), hours or days; `format` csv or json. It is in the audit log."""
    access: Access = request.auth
    period, filters = asked.read()
    kind, form = export.what_of(what), export.format_of(format)
    parts = export.export(access=access, period=period, filters=filters, what=kind, form=form)
    return download(request, parts, export.file_name(access, period, kind, form))


def _cursor(offset: int) -> str:
    return base64.urlsafe_b64encode(f"o{offset}".encode()).decode().rstrip("=")


def _offset(cursor: str | None) -> int:
    if not cursor:
        return 0
    try:
        text = base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)).decode("ascii")
        if text[:1] == "o" and text[1:].isdigit() and len(text) < 12:
            return int(text[1:])
    except (binascii.Error, ValueError):
        pass
    raise BadInput("The cursor is none that was given out.", param="cursor")
