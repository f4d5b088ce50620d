"""What a team's answers are doing now, for whoever watches the team: metadata only; and stopping one, whoever asked."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import redis.exceptions
from django.db import transaction
from django.db.models import Min, QuerySet
from django.utils.translation import gettext as _

from chatapp.audit.services import record
from chatapp.chat import used
from chatapp.chat.models import UNFINISHED, Generation
from chatapp.errors import NotFound, Unavailable
from chatapp.ids import parse_id
from chatapp.limits.models import Reservation
from chatapp.streaming import cancel as streaming_cancel
from chatapp.streaming.workers import doing
from chatapp.tenants.access import Access
from chatapp.tenants.permissions import Permission

MOST = 50
# A generation and its reservation are written in one transaction, either first.
RESERVED_WITHIN = timedelta(minutes=1)
STOPPED = ("cancelled", "cancelling")


@dataclass(frozen=True)
class Running:
    """`state`: waiting, answering, stopping; empty while Redis does not say. `principal` and `who` are empty for those
    who may not know who uses what."""

    id: uuid.UUID
    asked_at: datetime
    state: str
    kind: str
    principal: str
    who: str
    assistant: str
    model: str


def under_way(access: Access) -> QuerySet[Generation]:
    """Those since the oldest that holds a reservation: to look through all that a team has ever asked for what has not
    ended takes a second where that is much, and people look every few seconds."""
    access.require(Permission.READ_DASHBOARD)
    oldest = Reservation.objects.filter(tenant=access.tenant).aggregate(at=Min("created_at"))["at"]
    if oldest is None:
        return Generation.objects.none()
    since = oldest - RESERVED_WITHIN
    return Generation.objects.filter(tenant=access.tenant, created_at__gte=since, state__in=UNFINISHED)


def count(access: Access) -> int:
    """How many answers of the team wait or run now."""
    return under_way(access).count()


def running_now(access: Access, most: int = MOST) -> list[Running]:
    """The oldest first. A few reads of the database, and one of Redis."""
    rows = list(
        under_way(access).defer("request").select_related("prompt_version__prompt").order_by("created_at", "pk")[:most]
    )
    names = used.names({row.principal for row in rows}) if access.may(Permission.READ_USAGE) else None
    states = _states([row.pk for row in rows])
    return [
        Running(
            id=row.pk,
            asked_at=row.created_at,
            state=states.get(row.pk, ""),
            kind=used.kind(row),
            principal=row.principal if names is not None else "",
            who=names[row.principal] if names is not None else "",
            assistant=row.prompt_version.prompt.name if row.prompt_version is not None else "",
            model=row.model,
        )
        for row in rows
    ]


def stop(*, access: Access, answer_id: object) -> str:
    """The state after it: cancelled, cancelling, or the one that it had ended in already. What had ended, or was being
    stopped, is no entry of the log.

    Raises NotFound, Forbidden, and Unavailable without Redis.
    """
    access.require(Permission.STOP_ANSWERS)
    row = Generation.objects.defer("request").filter(tenant=access.tenant, pk=parse_id(answer_id)).first()
    if row is None:
        raise NotFound(_("There is no such answer."), param="answer_id")
    if not row.unfinished:
        return str(row.state)
    details = {"kind": str(used.kind(row)), "principal": row.principal, "model": row.model}
    try:
        with transaction.atomic():
            # Of a double click, or of two people, the first has stopped it.
            stopped = streaming_cancel.is_cancelled(str(row.pk))
            state = streaming_cancel.cancel(str(row.pk))
            if state in STOPPED and not stopped:
                name = used.name(row.principal)
                record(
                    "answer.stopped", actor=access.actor, tenant=access.tenant, on=row, name=name, details=details
                )  # fmt: skip
    except redis.exceptions.RedisError:
        raise Unavailable(_("This answer cannot be stopped at the moment. Try again."), retry_after_s=1) from None
    return state


def _states(ids: Sequence[uuid.UUID]) -> dict[uuid.UUID, str]:
    try:
        said: Collection[tuple[str, bool]] = doing([str(each) for each in ids])
    except redis.exceptions.RedisError:
        return {}
    words = {"running": "answering", "queued": "waiting", "": "waiting"}
    # What has ended is written down within a moment; until then it is as good as stopped.
    return {
        each: "stopping" if cancelled else words.get(state, "stopping")
        for each, (state, cancelled) in zip(ids, said, strict=True)
    }
