"""What can be read of batches. Those of a team's keys belong to its keys together. Call in the team's scope."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from django.db.models import Count, Q, QuerySet
from django.utils.translation import gettext as _

from chatapp.batches.models import Batch, ItemState, parse_batch_id
from chatapp.cursors import behind, cursor_of
from chatapp.errors import Forbidden, NotFound
from chatapp.tenants.access import Access
from chatapp.tenants.permissions import Permission


@dataclass(frozen=True)
class Page:
    items: Sequence[Batch]
    more: bool


def own(access: Access) -> QuerySet[Batch]:
    access.require(Permission.CHAT)
    if access.key is None:
        raise Forbidden(_("Batches are made and read with API keys."))
    return counted(Batch.objects.filter(tenant=access.tenant))


def counted(rows: QuerySet[Batch]) -> QuerySet[Batch]:
    """With `done` and `bad`, the items that have ended, while there are any."""
    return rows.annotate(
        done=Count("items", filter=Q(items__state=ItemState.DONE)),
        bad=Count("items", filter=Q(items__state=ItemState.FAILED)),
    )


def batch(access: Access, batch_id: object, *, param: str = "batch_id") -> Batch:
    found = own(access).filter(pk=parse_batch_id(batch_id)).first()
    if found is None:
        raise NotFound(_("There is no such batch: %(name)s.") % {"name": str(batch_id)[:60]}, param=param)
    return found


def batches(access: Access, *, after: object = None, limit: int = 20) -> Page:
    """Newest first. `after`: the id of the last one of the page before. Raises NotFound for one that is not there."""
    rows = own(access)
    if after is not None:
        last = batch(access, after, param="after")
        rows = rows.filter(Q(created_at__lt=last.created_at) | Q(created_at=last.created_at, pk__lt=last.pk))
    found = list(rows.order_by("-created_at", "-pk")[: limit + 1])
    return Page(found[:limit], len(found) > limit)


PAGE = 50


@dataclass(frozen=True)
class TeamPage:
    """Newest first. `next` is the cursor of what comes behind, None at the end."""

    items: Sequence[Batch]
    next: str | None


def of_team(access: Access, *, cursor: str = "", limit: int = PAGE) -> TeamPage:
    """For who looks after the team's keys. Raises Forbidden, and BadInput for a cursor that is none."""
    rows = _of_team(access)
    if cursor:
        rows = rows.filter(behind(cursor, moment="created_at"))
    items = list(rows.order_by("-created_at", "-pk")[: limit + 1])
    more, items = len(items) > limit, items[:limit]
    return TeamPage(items, cursor_of(items[-1].created_at, items[-1].pk) if more else None)


def one_of_team(access: Access, batch_id: object) -> Batch:
    found = _of_team(access).filter(pk=parse_batch_id(batch_id)).first()
    if found is None:
        raise NotFound(_("There is no such batch."), param="batch_id")
    return found


def _of_team(access: Access) -> QuerySet[Batch]:
    access.require(Permission.READ_KEYS)
    return counted(Batch.objects.filter(tenant=access.tenant)).select_related("key")


def counts(row: Batch) -> tuple[int, int, int]:
    """total, completed, failed."""
    if row.unfinished:
        return row.total, getattr(row, "done", 0), getattr(row, "bad", 0)
    return row.total, row.completed, row.failed
