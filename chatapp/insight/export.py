"""A table of the dashboard as CSV or JSON, in the form of chatapp.usage.export."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db import transaction

from chatapp.audit.services import record
from chatapp.insight import tables
from chatapp.insight.tables import Table
from chatapp.tenants.access import Access
from chatapp.usage.export import BOM, Format, Read, Value, csv_parts, json_parts, time_of
from chatapp.usage.periods import Period


def file_name(access: Access, period: Period, what: Table, form: Format) -> str:
    return f"dashboard-{access.tenant.slug}-{what}-{period.first}-{period.last}.{form}"


@transaction.atomic
def export(*, access: Access, period: Period, what: Table, form: Format, bom: bool = False) -> Iterator[str]:
    """The parts of the file. That it was asked for is in the audit log before the first of them. Raises Forbidden."""
    rows = tables.read(access, what, period)
    details = {"what": what.value, "format": form.value, "from": str(period.first), "to": str(period.last)}
    details |= {"zone": period.zone.key}
    record("usage.exported", actor=access.actor, tenant=access.tenant, name=f"dashboard {what.value}", details=details)
    columns: dict[str, Read] = {name: _column(name) for name in tables.columns(what)}
    if form is Format.CSV:
        return csv_parts(columns, [rows], BOM if bom else "")
    return json_parts(columns, [rows] if rows else [], what, period)


def _column(name: str) -> Read:
    def read(row: Any) -> Value:
        value = getattr(row, name)
        if isinstance(value, datetime):
            return time_of(value)
        if isinstance(value, UUID):
            return str(value)
        return round(value, 6) if isinstance(value, float) else value

    return read
