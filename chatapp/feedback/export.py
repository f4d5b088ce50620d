"""The team's feedback as CSV, a page at a time. What a spreadsheet would take for a formula begins with a quote."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from typing import Any

from django.db import transaction
from django.utils import timezone

from chatapp.audit.services import record
from chatapp.feedback import selectors
from chatapp.feedback.selectors import Filters
from chatapp.scope import tenant_scope
from chatapp.sheets import safe
from chatapp.tenants.access import Access

COLUMNS = (
    "id", "created_at", "rating", "reasons", "comment", "model", "assistant", "version", "question", "answer",
)  # fmt: skip
BOM = "\ufeff"


@transaction.atomic
def export(access: Access, filters: Filters) -> tuple[str, Iterator[str]]:
    """The name of the file and its parts; the team's log says that it was made. Raises Forbidden."""
    selectors.page(access, filters, limit=1)
    record("feedback.exported", actor=access.actor, tenant=access.tenant, name="feedback")
    return f"{access.tenant.slug}-feedback-{timezone.now():%Y-%m-%d}.csv", _parts(access, filters)


def _parts(access: Access, filters: Filters) -> Iterator[str]:
    yield BOM + _lines([list(COLUMNS)])
    cursor: str | None = ""
    while cursor is not None:
        with tenant_scope(access.tenant):
            page = selectors.page(access, filters, cursor, selectors.LONGEST_PAGE)
            rows = [_cells(selectors.present(row)) for row in page.items]
        yield _lines(rows)
        cursor = page.next


def _cells(row: dict[str, Any]) -> list[str]:
    row = {**row, "reasons": " ".join(row["reasons"]), "created_at": row["created_at"].isoformat()}
    return [safe("" if row[name] is None else str(row[name])) for name in COLUMNS]


def _lines(rows: list[list[str]]) -> str:
    text = io.StringIO()
    csv.writer(text).writerows(rows)
    return text.getvalue().encode("utf-8", "replace").decode()
