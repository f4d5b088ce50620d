"""What the admins of a team see of its feedback: never whose it is, and text only where the reader has included it."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db.models import Case, Count, F, Q, QuerySet, TextField, Value, When

from chatapp.cursors import keyset
from chatapp.feedback.models import Feedback, Rating
from chatapp.tenants.access import Access
from chatapp.tenants.permissions import Permission

LONGEST_PAGE = 100
MOST_GROUPS = 50


@dataclass(frozen=True)
class Filters:
    """`since` counts, `until` does not any more. `said`: only what has a reason, a text, or its chat."""

    rating: str = ""
    assistant_id: uuid.UUID | None = None
    since: datetime | None = None
    until: datetime | None = None
    said: bool = False

    def narrow(self, rows: QuerySet[Feedback]) -> QuerySet[Feedback]:
        if self.rating:
            rows = rows.filter(rating=self.rating)
        if self.assistant_id is not None:
            rows = rows.filter(assistant=self.assistant_id)
        if self.since is not None:
            rows = rows.filter(created_at__gte=self.since)
        if self.until is not None:
            rows = rows.filter(created_at__lt=self.until)
        if self.said:
            rows = rows.filter(~Q(reasons=[]) | ~Q(comment="") | Q(included=True))
        return rows


@dataclass(frozen=True)
class Group:
    """Ratings of one version of one assistant."""

    assistant: str
    number: int | None
    up: int
    down: int

    @property
    def total(self) -> int:
        return self.up + self.down

    @property
    def share(self) -> int:
        """Of good ones, in per cent."""
        return round(100 * self.up / self.total) if self.total else 0


@dataclass(frozen=True)
class Page:
    items: list[Feedback]
    next: str | None


def page(access: Access, filters: Filters, cursor: str = "", limit: int = 50) -> Page:
    """Newest first. Raises Forbidden, BadInput."""
    rows = with_text(_all(access, filters))
    items, following = keyset(rows, "-created_at", "-pk", cursor=cursor, limit=max(1, min(limit, LONGEST_PAGE)))
    return Page(items, following)


UP, DOWN = (Count("pk", filter=Q(rating=rating)) for rating in (Rating.UP, Rating.DOWN))


def totals(access: Access, filters: Filters) -> dict[str, int]:
    """`up` and `down`, of all groups."""
    return _all(access, filters).order_by().aggregate(up=UP, down=DOWN)


def groups(access: Access, filters: Filters) -> list[Group]:
    """By assistant and version, those with most first; MOST_GROUPS of them."""
    rows = _all(access, filters).order_by()
    counted = rows.values("assistant__name", "version__number").annotate(total=Count("pk"), up=UP, down=DOWN)
    counted = counted.order_by("-total", "assistant__name", "-version__number")
    return [
        Group(row["assistant__name"] or "", row["version__number"], row["up"], row["down"])
        for row in counted[:MOST_GROUPS]
    ]


def with_text(rows: QuerySet[Feedback]) -> QuerySet[Feedback]:
    """With `asked` and `said`: of a conversation that its owner has deleted nothing is read any more."""
    gone = When(message__conversation__deleted_at__isnull=False, then=Value(""))
    return rows.annotate(
        asked=Case(gone, default=F("question"), output_field=TextField()),
        said=Case(gone, default=F("answer"), output_field=TextField()),
    ).select_related("assistant", "version")


def _all(access: Access, filters: Filters) -> QuerySet[Feedback]:
    access.require(Permission.READ_FEEDBACK)
    return filters.narrow(Feedback.objects.filter(tenant=access.tenant))


def present(row: Any) -> dict[str, Any]:
    """A row of `page` as JSON."""
    return {
        "id": str(row.pk),
        "rating": row.rating,
        "reasons": row.reasons,
        "comment": row.comment,
        "included": bool(row.said),
        "question": row.asked,
        "answer": row.said,
        "model": row.model,
        "assistant": row.assistant.name if row.assistant else "",
        "version": row.version.number if row.version else None,
        "created_at": row.created_at,
    }
