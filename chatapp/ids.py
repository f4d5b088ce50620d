"""Ids of our rows: UUID version 7, so that they sort by time and say nothing about how many there are.

And the ids of requests.
"""

from __future__ import annotations

import uuid
from datetime import datetime

from uuid_utils.compat import uuid7

NO_ID = uuid.UUID(int=0)


def new_id() -> uuid.UUID:
    return uuid7()


def first_id(at: datetime) -> uuid.UUID:
    """Before every id that is made from then on: ids are in the order of time, so they find rows as an index would."""
    return uuid.UUID(int=int(at.timestamp() * 1000) << 80)


def parse_id(value: object) -> uuid.UUID:
    """The id in a URL or a frame; what is none becomes NO_ID, which no row has: it is simply not found."""
    if isinstance(value, uuid.UUID):
        return value
    try:
        return uuid.UUID(str(value))
    except ValueError:
        return NO_ID


LONGEST_REQUEST_ID = 128


def request_id(given: str, longest: int = LONGEST_REQUEST_ID) -> str:
    """The caller's own id of a request where it is usable, else a new one."""
    usable = 0 < len(given) <= longest and given.isprintable()
    return given if usable else f"req_{uuid.uuid4().hex}"
