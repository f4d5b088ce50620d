"""The dead letters as operators see them: which teams' requests took workers along, and taking one off the list."""

from __future__ import annotations

import re
from dataclasses import dataclass

from django.db import transaction
from django.urls import reverse

from chatapp.accounts.models import User
from chatapp.audit.services import operator, record
from chatapp.chat.models import Generation
from chatapp.errors import NotFound, Unavailable
from chatapp.ids import parse_id
from chatapp.operators.health import duration
from chatapp.operators.machines import team_names
from chatapp.streaming import dead
from chatapp.streaming.connection import AWAY

NO_REDIS = "Redis does not answer, so the list cannot be read."
ENTRY = re.compile(r"\d{1,20}-\d{1,20}")


@dataclass(frozen=True)
class Letter:
    """`link`: the generation, while its row is kept."""

    entry: str
    id: str
    team: str
    model: str
    worker: str
    attempts: int
    ago: str
    link: str


def letters() -> list[Letter]:
    """The newest first. Raises Unavailable."""
    try:
        found = dead.newest()
    except AWAY:
        raise Unavailable(NO_REDIS) from None
    names = team_names([parse_id(one.tenant) for one in found])
    rows = [parse_id(one.id) for one in found]
    kept = {str(key) for key in Generation.objects.filter(pk__in=rows).values_list("pk", flat=True)}
    return [
        Letter(
            entry=one.entry,
            id=one.id,
            team=names.get(parse_id(one.tenant), ("A team that is gone", ""))[0],
            model=one.model,
            worker=one.worker,
            attempts=one.attempts,
            ago=duration(one.ago_s),
            link=reverse("admin:chat_generation_change", args=[one.id]) if one.id in kept else "",
        )
        for one in found
    ]


def drop(*, by: User, entry: str) -> None:
    """Raises NotFound, Unavailable. What it was about stands in the log of what operators did."""
    if not ENTRY.fullmatch(entry):
        raise NotFound("There is no such entry.")
    try:
        letter = next((one for one in dead.newest() if one.entry == entry), None)
        if letter is None:
            raise NotFound("It is not on the list any more.")
        with transaction.atomic():
            details = {"model": letter.model, "attempts": letter.attempts}
            record("dead_letter.dropped", actor=operator(by), tenant=None, name=letter.id, details=details)
            dead.drop(entry)
    except AWAY:
        raise Unavailable(NO_REDIS) from None
