"""The audit log as a file, CSV or JSON, a batch at a time: however long it is, it never lies in memory as a whole.

The response outlives the request's scope, so each batch is read in the team's scope anew.
"""

from __future__ import annotations

import csv
import io
import json
import uuid
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any

from asgiref.sync import sync_to_async
from django.db import models, transaction
from django.http import StreamingHttpResponse
from django.utils import timezone

from chatapp.audit import details
from chatapp.audit.actions import title
from chatapp.audit.models import AuditEntry
from chatapp.audit.selectors import Filters, entries, narrowed
from chatapp.audit.services import Actor, record
from chatapp.errors import BadInput
from chatapp.scope import tenant_scope
from chatapp.sheets import safe

BATCH = 500
COLUMNS = (
    "id", "at", "actor_kind", "actor_id", "actor_name", "action", "title", "object_kind", "object_id", "object_name",
    "details", "address", "request_id",
)  # fmt: skip
CONTENT_TYPES = {"csv": "text/csv; charset=utf-8", "json": "application/json"}


@transaction.atomic
def export(*, actor: Actor, tenant: models.Model, slug: str, filters: Filters, format: str) -> StreamingHttpResponse:
    """The file as an answer, and an entry about it in the log. Raises BadInput before anything is written."""
    if format not in CONTENT_TYPES:
        raise BadInput("Choose csv or json.", param="format")
    entries(filters, limit=1)  # a filter that is none is told now
    filters = narrowed(filters, timezone.now())
    told = {name: value for name, value in filters.told().items() if name != "until"}
    record("audit.exported", actor=actor, tenant=tenant, name="audit log", details={"format": format, **told})
    write = _csv if format == "csv" else _json
    response = StreamingHttpResponse(write(_batches(tenant.pk, filters)), content_type=CONTENT_TYPES[format])
    response["Content-Disposition"] = f'attachment; filename="{slug}-audit-{timezone.now():%Y-%m-%d}.{format}"'
    response["X-Accel-Buffering"] = "no"
    response["Cache-Control"] = "no-store"
    return response


async def _batches(tenant_id: uuid.UUID, filters: Filters) -> AsyncIterator[list[AuditEntry]]:
    cursor = ""

    def read() -> tuple[list[AuditEntry], str]:
        with tenant_scope(tenant_id):
            page = entries(filters, cursor=cursor, limit=BATCH)
        return list(page.items), page.next or ""

    # In the request's own thread, whose connection is closed with the response.
    fetch: Callable[[], Any] = sync_to_async(read)
    while True:
        items, cursor = await fetch()
        yield items
        if not cursor:
            return


def _row(entry: AuditEntry) -> dict[str, Any]:
    row = {name: getattr(entry, name) for name in COLUMNS if name != "title"}
    return {**row, "id": str(entry.pk), "at": entry.at.isoformat(), "title": title(entry.action)}


async def _csv(batches: AsyncIterator[list[AuditEntry]]) -> AsyncIterator[bytes]:
    yield _lines([COLUMNS])
    async for batch in batches:
        yield _lines(_cells(_row(entry)) for entry in batch)


def _cells(row: dict[str, Any]) -> list[str]:
    row["details"] = details.text(row["details"])
    return [safe("" if row[name] is None else str(row[name])) for name in COLUMNS]


def _lines(rows: Iterable[Iterable[str]]) -> bytes:
    text = io.StringIO()
    csv.writer(text).writerows(rows)
    return text.getvalue().encode()


async def _json(batches: AsyncIterator[list[AuditEntry]]) -> AsyncIterator[bytes]:
    """An array, an entry a line."""
    before = b"[\n"
    async for batch in batches:
        for entry in batch:
            row = {name: value for name, value in _row(entry).items() if name in COLUMNS}
            yield before + json.dumps(row, ensure_ascii=False).encode()
            before = b",\n"
    yield (b"" if before == b",\n" else b"[") + b"\n]\n"
