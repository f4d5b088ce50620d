"""Usage as CSV or JSON, streamed: rows (one a generation), hours, or days (UTC) of a period.

CSV: UTF-8, CRLF, a header line, fields quoted where needed (RFC 4180). Times are ISO 8601 in UTC, durations seconds.
Names that a spreadsheet would take for a formula begin with an apostrophe in CSV, and as they are in JSON.
JSON: {"what", "from", "to", "columns", "items"}. The columns are those of COLUMNS, in this order; docs/usage.md says
what each means. Memory: one page of rows.
"""

from __future__ import annotations

import csv
import io
import json
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from django.db import transaction
from django.db.models import Q, QuerySet

from chatapp.audit.services import record
from chatapp.errors import BadInput
from chatapp.scope import tenant_scope
from chatapp.sheets import safe
from chatapp.tenants.access import Access
from chatapp.tenants.permissions import Permission
from chatapp.usage import histogram
from chatapp.usage.models import UsageDay, UsageHour, UsageRow
from chatapp.usage.periods import Period

PAGE = 1000
BOM = "\ufeff"


class What(StrEnum):
    ROWS = "rows"
    HOURS = "hours"
    DAYS = "days"


class Format(StrEnum):
    CSV = "csv"
    JSON = "json"


Value = str | int | float | None
Read = Callable[[Any], Value]


def time_of(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat().replace("+00:00", "Z")


def _plain(name: str) -> Read:
    return lambda row: getattr(row, name)


def _moment(name: str) -> Read:
    return lambda row: time_of(getattr(row, name))


def _seconds(name: str) -> Read:
    def read(row: Any) -> float | None:
        value = getattr(row, name)
        return None if value is None else value / 1_000_000

    return read


def _percentile(name: str, share: float) -> Read:
    def read(row: Any) -> float | None:
        value = histogram.percentile_s(getattr(row, name), share)
        return None if value is None else round(value, 6)

    return read


_WHO: dict[str, Read] = {
    name: _plain(name) for name in ("kind", "principal", "principal_name", "assistant_id", "assistant_name", "model")
}
_TOKENS: dict[str, Read] = {name: _plain(name) for name in ("prompt_tokens", "cached_tokens", "output_tokens")}
_TIMES: dict[str, Read] = {f"{name}_s": _seconds(f"{name}_us") for name in ("queue", "prefill", "decode")}
_ROLL_UP: dict[str, Read] = {
    "at": _moment("at"),
    **_WHO,
    **{name: _plain(name) for name in ("requests", "finished", "cancelled", "refused", "failed")},
    **_TOKENS,
    **_TIMES,
    "first_token_p50_s": _percentile("first_token", 0.5),
    "first_token_p95_s": _percentile("first_token", 0.95),
    "between_tokens_p50_s": _percentile("between_tokens", 0.5),
    "between_tokens_p95_s": _percentile("between_tokens", 0.95),
}
COLUMNS: dict[What, dict[str, Read]] = {
    What.ROWS: {
        "generation_id": lambda row: str(row.pk),
        "at": _moment("at"),
        "ended_at": _moment("ended_at"),
        **_WHO,
        **{name: _plain(name) for name in ("prompt_version_id", "state", "finish_reason", "error_code")},
        **_TOKENS,
        **_TIMES,
        "first_token_s": _seconds("first_token_us"),
        "total_s": _seconds("total_us"),
    },
    What.HOURS: _ROLL_UP,
    What.DAYS: _ROLL_UP,
}
_MODELS: dict[What, Any] = {What.ROWS: UsageRow, What.HOURS: UsageHour, What.DAYS: UsageDay}


def what_of(text: str | None) -> What:
    try:
        return What(text or What.ROWS)
    except ValueError:
        raise BadInput(f"what must be one of {', '.join(What)}.", param="what") from None


def format_of(text: str | None) -> Format:
    try:
        return Format(text or Format.CSV)
    except ValueError:
        raise BadInput(f"format must be one of {', '.join(Format)}.", param="format") from None


def file_name(access: Access, period: Period, what: What, form: Format) -> str:
    return f"usage-{access.tenant.slug}-{what}-{period.first}-{period.last}.{form}"


@transaction.atomic
def export(
    *, access: Access, period: Period, filters: Mapping[str, str], what: What, form: Format, bom: bool = False
) -> Iterator[str]:
    """The parts of the file. That it was asked for is in the audit log before the first of them.

    Days are those of UTC that begin in the period. `bom`: for spreadsheets, which take CSV for another encoding else.
    """
    access.require(Permission.READ_USAGE)
    details = {"what": what.value, "format": form.value, "from": str(period.first), "to": str(period.last)}
    details |= {"zone": period.zone.key, **filters}
    record("usage.exported", actor=access.actor, tenant=access.tenant, name=f"usage {what.value}", details=details)
    pages = _pages(access.tenant.pk, _MODELS[what], period, dict(filters))
    if form is Format.CSV:
        return csv_parts(COLUMNS[what], pages, BOM if bom else "")
    return json_parts(COLUMNS[what], pages, what, period)


def _pages(tenant_id: uuid.UUID, model: Any, period: Period, filters: dict[str, str]) -> Iterator[list[Any]]:
    """By key and not by offset: a page costs the same wherever it is. Each is read within the tenant's scope."""
    last: Any = None
    while True:
        with tenant_scope(tenant_id):
            rows: QuerySet[Any] = model.objects.filter(
                tenant_id=tenant_id, at__gte=period.start, at__lt=period.end, **filters
            ).order_by("at", "pk")
            if last is not None:
                rows = rows.filter(at__gte=last.at).filter(Q(at__gt=last.at) | Q(pk__gt=last.pk))
            page = list(rows[:PAGE])
        if page:
            yield page
        if len(page) < PAGE:
            return
        last = page[-1]


def csv_parts(columns: Mapping[str, Read], pages: Iterable[Sequence[Any]], begin: str) -> Iterator[str]:
    text = io.StringIO()
    writer = csv.writer(text)
    text.write(begin)
    writer.writerow(columns)
    for page in pages:
        for row in page:
            writer.writerow([safe(read(row)) for read in columns.values()])
        yield text.getvalue()
        text.seek(0)
        text.truncate()
    yield text.getvalue()


def json_parts(columns: Mapping[str, Read], pages: Iterable[Sequence[Any]], what: str, period: Period) -> Iterator[str]:
    head = {"what": what, "from": time_of(period.start), "to": time_of(period.end), "columns": list(columns)}
    yield json.dumps(head)[:-1] + ', "items": ['
    between = ""
    for page in pages:
        items = [json.dumps({name: read(row) for name, read in columns.items()}, ensure_ascii=False) for row in page]
        yield between + "\n" + ",\n".join(items)
        between = ","
    yield "\n]}\n"
