"""The reader's time zone, which the pages' script keeps in a cookie: days in forms are days there.

Without the script, or with a zone that is none, it is UTC; pages name the zone beside every day that they ask for.
"""

from __future__ import annotations

import re
from datetime import date, datetime, time, timedelta
from zoneinfo import ZoneInfo

from django.http import HttpRequest

COOKIE = "zone"
UTC = ZoneInfo("UTC")
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_+-]*(/[A-Za-z0-9_+-]+){0,2}")


def reader_zone(request: HttpRequest) -> ZoneInfo:
    name = request.COOKIES.get(COOKIE, "").replace("%2F", "/")
    if not _NAME.fullmatch(name):
        return UTC
    try:
        return ZoneInfo(name)
    except (ValueError, OSError, KeyError):  # a missing zone is a KeyError, a folder of zones an OSError
        return UTC


def start_of(day: date, zone: ZoneInfo) -> datetime:
    # Two days from time's ends every zone's midnight is still a moment in UTC.
    return datetime.combine(max(day, date.min + timedelta(days=2)), time.min, zone)


def end_of(day: date, zone: ZoneInfo) -> datetime:
    """The first moment that does not belong to the day."""
    return datetime.combine(min(day, date.max - timedelta(days=2)) + timedelta(days=1), time.min, zone)
