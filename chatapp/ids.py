"""Ids of our rows: UUID version 7, so that they sort by time and say nothing about how many there are."""

from __future__ import annotations

import uuid

from uuid_utils.compat import uuid7

NO_ID = uuid.UUID(int=0)


def new_id() -> uuid.UUID:
    return uuid7()


def parse_id(value: object) -> uuid.UUID:
    """The id in a URL or a frame; what is none becomes NO_ID, which no row has: it is simply not found."""
    if isinstance(value, uuid.UUID):
        return value
    try:
        return uuid.UUID(str(value))
    except ValueError:
        return NO_ID
