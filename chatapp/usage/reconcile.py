"""Compares what somebody has counted of tokens with the rows, and has it put right.

Counters are kept beside the rows so that a budget can be asked for quickly; this finds what a crash, a repair or an
earlier version left different. It knows counters by the protocol `Book` only. The rows are read while the counter is
locked: whoever ends a generation writes its row and its counter in one transaction, so both are seen or neither is.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

import structlog
from django.db import transaction

from chatapp.scope import tenant_scope
from chatapp.usage import selectors
from chatapp.usage.models import UsageHorizon

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class Count:
    """One counter: tokens of a tenant, or of one principal in it, that were asked for from `start` to before `end`."""

    tenant_id: uuid.UUID
    principal: str | None
    start: datetime
    end: datetime


@dataclass(frozen=True)
class Drift:
    count: Count
    counted: int
    rows: int


class Book(Protocol):
    """Whoever keeps counters. `locked` and `correct` run in one transaction and in the tenant's scope."""

    def counts(self) -> Iterable[Count]:
        """Those to compare, evaluated: the tenants' scopes are entered afterwards."""
        ...

    def locked(self, count: Count) -> int | None:
        """Its value, locked until the transaction ends; None if it is gone."""
        ...

    def correct(self, count: Count, tokens: int) -> None: ...


def reconcile(book: Book) -> list[Drift]:
    """Returns what was wrong; it has been corrected and logged. Periods that retention has cut are left alone."""
    found = [drift for count in book.counts() if (drift := _compare(book, count)) is not None]
    for drift in found:
        log.warning(
            "usage.drift",
            tenant=str(drift.count.tenant_id),
            principal=drift.count.principal,
            start=drift.count.start.isoformat(),
            counted=drift.counted,
            rows=drift.rows,
        )
    return found


def _compare(book: Book, count: Count) -> Drift | None:
    with tenant_scope(count.tenant_id), transaction.atomic():
        counted = book.locked(count)
        cut = UsageHorizon.objects.filter(tenant_id=count.tenant_id, before__gt=count.start).exists()
        if counted is None or cut:
            return None
        rows = selectors.tokens_of(count.tenant_id, count.start, count.end, principal=count.principal).total
        if rows == counted:
            return None
        book.correct(count, rows)
        return Drift(count, counted, rows)
