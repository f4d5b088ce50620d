"""Cursors of lists: ties are told apart, no row is passed over or comes twice.

`cursor_of` and `behind` are for lists by a moment and then by id, newest first; `keyset` is for any order.
"""

from __future__ import annotations

import base64
import json
import uuid
from datetime import UTC, datetime
from functools import reduce
from typing import Any, TypeVar, cast

from django.core.exceptions import ValidationError
from django.db.models import Model, Q, QuerySet

from chatapp.errors import BadInput
from chatapp.ids import NO_ID, parse_id

Row = TypeVar("Row", bound=Model)


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


def keyset(rows: QuerySet[Row], *order: str, cursor: str, limit: int) -> tuple[list[Row], str | None]:
    """A page of rows in this order ("-name" descends), and the cursor of the next one, None at the end.

    The fields must tell all rows apart and hold no NULL. The cursor holds the last row's values, so rows that come or
    go meanwhile move nothing. Raises BadInput for a cursor that is none.
    """
    rows = rows.order_by(*order)
    if cursor:
        rows = rows.filter(_past(order, _read(cursor, rows, order)))
    found = list(rows[: limit + 1])
    if len(found) <= limit:
        return found, None
    values = [reduce(getattr, name.lstrip("-").split("__"), found[limit - 1]) for name in order]
    told = json.dumps([str(value) for value in values])
    return found[:limit], base64.urlsafe_b64encode(told.encode()).decode().rstrip("=")


def _read(cursor: str, rows: QuerySet[Any], order: tuple[str, ...]) -> list[Any]:
    """The values in a cursor, as their fields read them."""
    try:
        values = json.loads(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
        if not isinstance(values, list) or len(values) != len(order) or not all(isinstance(v, str) for v in values):
            raise ValueError
        found = [_field(rows.model, name).to_python(value) for name, value in zip(order, values, strict=True)]
        if any(isinstance(value, datetime) and within_time(value) is None for value in found):
            raise ValueError
        return found
    except (ValueError, RecursionError, ValidationError):
        raise BadInput("The cursor is none that was given out.", param="cursor") from None


def _field(model: type[Model], name: str) -> Any:
    *relations, last = name.lstrip("-").split("__")
    for relation in relations:
        model = cast(Any, model._meta.get_field(relation)).related_model
    return model._meta.pk if last == "pk" else model._meta.get_field(last)


def _past(order: tuple[str, ...], values: list[Any]) -> Q:
    past = Q(pk__in=[])
    equal = Q()
    for name, value in zip(order, values, strict=True):
        field = name.lstrip("-")
        past |= equal & Q(**{f"{field}__{'lt' if name.startswith('-') else 'gt'}": value})
        equal &= Q(**{field: value})
    return past
