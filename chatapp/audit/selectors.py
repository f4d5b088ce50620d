"""What can be read of the audit log: filtered, newest first, a page at a time. Call in the scope of whose log it is."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from django.db.models import Q, QuerySet
from django.utils.translation import gettext as _

from chatapp.audit.actions import matching
from chatapp.audit.models import ActorKind, AuditEntry
from chatapp.cursors import behind, cursor_of, within_time
from chatapp.errors import BadInput

PAGE = 50


@dataclass(frozen=True)
class Filters:
    """Empty values filter nothing. `since` is the first moment, `until` the first that does not count any more."""

    text: str = ""
    actor: str = ""
    actor_kind: str = ""
    action: str = ""
    object: str = ""
    address: str = ""
    since: datetime | None = None
    until: datetime | None = None

    def __bool__(self) -> bool:
        return self != Filters()

    def told(self) -> dict[str, str]:
        """Those that are set, for the log itself."""
        return {name: str(value) for name, value in vars(self).items() if value}


@dataclass(frozen=True)
class Page:
    """`next` is the cursor of the page behind this one, None at the end."""

    items: Sequence[AuditEntry]
    next: str | None


def entries(filters: Filters, *, cursor: str = "", limit: int = PAGE) -> Page:
    """Raises BadInput for a filter or cursor that is none, with its field."""
    found = _filtered(filters)
    if cursor:
        found = found.filter(behind(cursor, moment="at"))
    items = list(found[: limit + 1])
    more, items = len(items) > limit, items[:limit]
    return Page(items, cursor_of(items[-1].at, items[-1].pk) if more else None)


def _filtered(filters: Filters) -> QuerySet[AuditEntry]:
    for name, value in vars(filters).items():
        if isinstance(value, str) and "\0" in value:
            raise BadInput(_("This cannot be searched for."), param=name)
    if filters.actor_kind and filters.actor_kind not in ActorKind.values:
        raise BadInput(_("Choose one of %(choices)s.") % {"choices": ", ".join(ActorKind.values)}, param="actor_kind")
    for name in ("since", "until"):
        moment = getattr(filters, name)
        if moment is not None and within_time(moment) is None:
            raise BadInput(_("Say a time with its zone, as in 2027-01-31T12:00:00Z."), param=name)
    found: QuerySet[AuditEntry] = AuditEntry.objects.order_by("-at", "-id")
    if filters.text:
        names = _contains("actor_name", filters.text) | _contains("object_name", filters.text)
        found = found.filter(names | Q(action__in=matching(filters.text)) | Q(action__icontains=filters.text))
    if filters.actor:
        found = found.filter(_contains("actor_name", filters.actor) | Q(actor_id=filters.actor))
    if filters.actor_kind:
        found = found.filter(actor_kind=filters.actor_kind)
    if filters.action:
        # "key." stands for all of a topic.
        exact = not filters.action.endswith(".")
        found = found.filter(action=filters.action) if exact else found.filter(action__startswith=filters.action)
    if filters.object:
        found = found.filter(_contains("object_name", filters.object) | Q(object_id=filters.object))
    if filters.address:
        found = found.filter(_from(filters.address))
    if filters.since:
        found = found.filter(at__gte=filters.since)
    if filters.until:
        found = found.filter(at__lt=filters.until)
    return found


def _contains(field: str, text: str) -> Q:
    """Without regard to case; SQLite knows the case of a to z alone, so other letters are tried in both."""
    found = Q(**{f"{field}__icontains": text})
    if not text.isascii():
        for variant in {text.lower(), text.upper(), text.title()} - {text}:
            found |= Q(**{f"{field}__contains": variant})
    return found


def _from(text: str) -> Q:
    """An address is compared as such, however it is written; a part of one by how it begins."""
    try:
        return Q(address=str(ipaddress.ip_address(text)))
    except ValueError:
        return Q(address__startswith=text.lower())


def narrowed(filters: Filters, until: datetime) -> Filters:
    """The same up to a moment: what an export promises does not change while it is read."""
    return replace(filters, until=min(filters.until or until, until))
