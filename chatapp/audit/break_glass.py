"""Reading of a team's chats by an operator: opened for a reason and a time, and told to the team at once.

Owns who may read now; what is read is chatapp.chat.break_glass's. Every function checks the operator and the clock
anew: nothing that was once allowed stays so.
"""

from __future__ import annotations

import uuid
from datetime import timedelta
from typing import Any

from django.db import models, transaction
from django.utils import timezone

from chatapp.accounts.models import User
from chatapp.accounts.operators import is_operator
from chatapp.accounts.text import one_line
from chatapp.audit.models import BreakGlass
from chatapp.audit.services import SYSTEM, operator, record
from chatapp.errors import BadInput, Forbidden, NotFound
from chatapp.scope import tenant_scope, unscoped

SHORTEST_REASON = 20
LONGEST_REASON = 1000
MINUTES = (15, 60)


def _require_operator(user: Any) -> None:
    """Asks the database: a right that was taken away a moment ago is gone."""
    now = User.objects.filter(pk=user.pk).first() if user.is_authenticated else None
    if not is_operator(now):
        raise Forbidden("Only operators of this Octavo can do this.")


@transaction.atomic
def open_reading(
    *, user: Any, tenant: models.Model, reason: str, minutes: int, conversation_id: uuid.UUID | None = None
) -> BreakGlass:
    """Raises Forbidden, and BadInput for a reason that says nothing or a time that is none of MINUTES."""
    _require_operator(user)
    given, reason = reason, one_line(reason)
    if len(reason) < SHORTEST_REASON:
        raise BadInput(
            f"Say why in {SHORTEST_REASON} characters at least; the team reads it.",
            param="reason",
        )
    if len(reason) > LONGEST_REASON or "\0" in given:
        raise BadInput(f"A reason has {LONGEST_REASON} characters at most.", param="reason")
    if minutes not in MINUTES:
        raise BadInput(f"Choose {' or '.join(map(str, MINUTES))} minutes.", param="minutes")
    now = timezone.now()
    with tenant_scope(tenant):
        made: BreakGlass = BreakGlass.objects.create(
            tenant_id=tenant.pk,
            operator=user,
            operator_name=user.email,
            reason=reason,
            conversation_id=conversation_id,
            opened_at=now,
            expires_at=now + timedelta(minutes=minutes),
        )
        record(
            "break_glass.opened",
            actor=operator(user),
            tenant=tenant,
            on=made,
            name=f"conversation {conversation_id}" if conversation_id else "all conversations",
            details={"reason": reason, "minutes": minutes, "until": made.expires_at.isoformat(timespec="seconds")},
        )
    return made


def reading(*, user: Any, reading_id: uuid.UUID) -> BreakGlass:
    """The operator's own reading, still open. Another operator's does not exist; an ended one is Forbidden."""
    _require_operator(user)
    found = _own(user, reading_id)
    if not found.open:
        raise Forbidden("The time for reading is over, or it was closed. Open it anew, with a reason.")
    return found


def _own(user: Any, reading_id: uuid.UUID) -> BreakGlass:
    with unscoped("break-glass"):
        found = BreakGlass.objects.select_related("tenant").filter(pk=reading_id, operator=user).first()
    if found is None:
        raise NotFound("There is no such reading.")
    return found


@transaction.atomic
def note_read(*, user: Any, found: BreakGlass, conversation: models.Model) -> None:
    """The team learns of each conversation that is shown, before it is."""
    record(
        "break_glass.read",
        actor=operator(user),
        tenant=found.tenant,
        on=conversation,
        details={"reason": found.reason},
    )


@transaction.atomic
def close_reading(*, user: Any, reading_id: uuid.UUID) -> BreakGlass:
    """Again, or after its time: nothing happens."""
    _require_operator(user)
    found = _own(user, reading_id)
    now = timezone.now()
    with tenant_scope(found.tenant):
        mine = BreakGlass.objects.filter(pk=found.pk, closed_at=None, expires_at__gt=now).update(closed_at=now)
        if mine:
            details = {"reason": found.reason}
            record("break_glass.closed", actor=operator(user), tenant=found.tenant, on=found, details=details)
    found.refresh_from_db()
    return found


@unscoped("break-glass")
def end_expired() -> int:
    """Celery beat: what has run out is told in the team's log once. Returns how many."""
    ended = 0
    over = BreakGlass.objects.select_related("tenant").filter(closed_at=None, expires_at__lte=timezone.now())
    for found in list(over):
        with transaction.atomic():
            if BreakGlass.objects.filter(pk=found.pk, closed_at=None).update(closed_at=found.expires_at):
                details = {"reason": found.reason}
                record("break_glass.expired", actor=SYSTEM, tenant=found.tenant, on=found, details=details)
                ended += 1
    return ended


def open_now() -> list[BreakGlass]:
    """Who may read chats of the scope's team at this moment, for its audit page."""
    return list(BreakGlass.objects.filter(closed_at=None, expires_at__gt=timezone.now()))


def recent(*, user: Any, limit: int = 20) -> list[BreakGlass]:
    """An operator's own readings, newest first."""
    _require_operator(user)
    with unscoped("break-glass"):
        return list(BreakGlass.objects.select_related("tenant").filter(operator=user)[:limit])
