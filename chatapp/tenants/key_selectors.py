"""What can be read of a team's API keys. Call in the team's scope."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from django.db.models import Exists, OuterRef, Q, QuerySet
from django.utils import timezone
from django.utils.translation import gettext as _

from chatapp.cursors import behind, cursor_of
from chatapp.errors import BadInput, NotFound
from chatapp.ids import parse_id
from chatapp.tenants.access import Access
from chatapp.tenants.models import SHOWN_CHARACTERS, ApiKey, KeyState, Membership
from chatapp.tenants.permissions import Permission

PAGE = 50
ALL = "all"
WORKING = "working"


@dataclass(frozen=True)
class Page:
    """Newest first. `next` is the cursor of what comes behind, None at the end."""

    items: Sequence[ApiKey]
    next: str | None


def _in_state(state: str, now: datetime) -> Q:
    ended = Q(expires_at__lte=now)
    return {
        ALL: Q(),
        WORKING: Q(revoked_at=None) & ~ended,
        KeyState.ACTIVE: Q(revoked_at=None, replaced_at=None) & ~ended,
        KeyState.REPLACED: Q(revoked_at=None, replaced_at__isnull=False) & ~ended,
        KeyState.EXPIRED: Q(revoked_at=None) & ended,
        KeyState.REVOKED: Q(revoked_at__isnull=False),
    }[state]


STATES = (WORKING, *KeyState.values, ALL)


def _keys(access: Access) -> QuerySet[ApiKey]:
    """With `maker_is_here`: whether the person who made it still belongs to the team."""
    access.require(Permission.READ_KEYS)
    here = Membership.objects.filter(user=OuterRef("created_by"), tenant=OuterRef("tenant"))
    found = ApiKey.objects.filter(tenant=access.tenant).annotate(maker_is_here=Exists(here))
    return found.select_related("created_by", "created_with", "replaces", "successor")


def keys(access: Access, *, state: str = WORKING, text: str = "", cursor: str = "", limit: int = PAGE) -> Page:
    if state not in STATES:
        raise BadInput(
            _("There is no such state; there are %(choices)s.") % {"choices": ", ".join(STATES)}, param="state"
        )
    found = _keys(access).filter(_in_state(state, timezone.now())).order_by("-created_at", "-id")
    text = text.strip()
    if "\0" in text:
        raise BadInput(_("This cannot be searched for."), param="q")
    if text:
        # Whoever pastes a whole key finds it by its shown part.
        found = found.filter(Q(name__icontains=text) | Q(prefix__startswith=text[:SHOWN_CHARACTERS]))
    if cursor:
        found = found.filter(behind(cursor, moment="created_at"))
    items = list(found[: limit + 1])
    more, items = len(items) > limit, items[:limit]
    return Page(items, cursor_of(items[-1].created_at, items[-1].pk) if more else None)


def count(access: Access) -> int:
    return _keys(access).count()


def key(access: Access, key_id: object) -> ApiKey:
    found = _keys(access).filter(pk=parse_id(key_id)).first()
    if found is None:
        raise NotFound(_("There is no such key."))
    return found
