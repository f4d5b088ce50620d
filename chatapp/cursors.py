"""Cursors of lists that are ordered by a moment and then by id, newest first: ties are told apart, none passed over."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime

from django.db.models import Q

from chatapp.errors import BadInput
from chatapp.ids import NO_ID, parse_id


def cursor_of(moment: datetime, pk: uuid.UUID) -> str:
    """Of the last row of a page."""
    return f"{moment.isoformat()}_{pk}"


def behind(cursor: str, *, moment: str, param: str = "cursor") -> Q:
    """The rows behind a cursor, `moment` being the field they are ordered by. Raises BadInput for what is none."""
    stamp, _, last = cursor.partition("_")
    found, last_id = parse_moment(stamp), parse_id(last)
    if found is None or last_id == NO_ID:
        raise BadInput("The cursor is none that was given out.", param=param)
    return Q(**{f"{moment}__lt": found}) | Q(**{moment: found, "id__lt": last_id})


def parse_moment(text: str) -> datetime | None:
    """With a zone, and one that a database can keep."""
    try:
        return within_time(datetime.fromisoformat(text))
    except ValueError:
        return None


def within_time(moment: datetime) -> datetime | None:
    """The moment in UTC; None without a zone, or where UTC's years do not reach."""
    if moment.tzinfo is None:
        return None
    try:
        return moment.astimezone(UTC)
    except OverflowError:
        return None
