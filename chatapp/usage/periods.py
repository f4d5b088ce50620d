"""Periods as people name them, in their own zone, and the hours that belong to them.

Usage is kept by whole UTC hours. An hour belongs to the local day in which it begins: exact wherever the clock differs
from UTC by whole hours; where it differs by a half or a quarter (India, Nepal, parts of Australia) a day's figures
begin and end at the first whole UTC hour inside it, and `ragged` says so, for the page to tell. Days of a clock change
have 23 or 25 hours.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from functools import cache
from zoneinfo import ZoneInfo, available_timezones

from django.utils.translation import gettext as _
from django.utils.translation import gettext_noop as _n

from chatapp.errors import BadInput

NAMES = {
    "today": _n("Today"),
    "7d": _n("7 days"),
    "30d": _n("30 days"),
    "month": _n("This month"),
    "last_month": _n("Last month"),
    "custom": _n("Custom"),
}
DEFAULT = "7d"
MOST_DAYS = 400
FIRST_YEAR, LAST_YEAR = 2000, 2200


@dataclass(frozen=True)
class Period:
    """Local days `first` to `last`, both included; `start` and `end` are their UTC instants, `end` not included."""

    name: str
    zone: ZoneInfo
    first: date
    last: date

    @property
    def start(self) -> datetime:
        return begin_of(self.first, self.zone)

    @property
    def end(self) -> datetime:
        return begin_of(self.last + timedelta(days=1), self.zone)

    @property
    def days(self) -> list[date]:
        return [self.first + timedelta(days=n) for n in range((self.last - self.first).days + 1)]

    @property
    def ragged(self) -> bool:
        """Days do not begin at whole UTC hours here."""
        return any(moment.minute or moment.second for moment in (self.start, self.end))

    @property
    def hours(self) -> list[datetime]:
        """The UTC hours of the period: those that begin in it."""
        first = _ceil(self.start)
        return [first + timedelta(hours=n) for n in range((_ceil(self.end) - first) // timedelta(hours=1))]


def _ceil(moment: datetime) -> datetime:
    whole = moment.replace(minute=0, second=0, microsecond=0)
    return whole if whole == moment else whole + timedelta(hours=1)


def begin_of(day: date, zone: ZoneInfo) -> datetime:
    """The UTC instant at which a local day begins: also where the clock change skips midnight, or repeats it."""
    return datetime.combine(day, time(), zone).astimezone(UTC)


@cache
def zones() -> frozenset[str]:
    return frozenset(available_timezones())


def zone_of(name: str | None) -> ZoneInfo | None:
    """The zone of a name that a browser sent; None for what is none."""
    return ZoneInfo(name) if name and name in zones() else None


def period_of(params: Mapping[str, str | None], *, now: datetime, zone: ZoneInfo) -> Period:
    """From `period`, and for "custom" `from` and `to` (YYYY-MM-DD, both included). Raises BadInput with the field."""
    name = params.get("period") or ("custom" if params.get("from") or params.get("to") else DEFAULT)
    today = now.astimezone(zone).date()
    if name == "today":
        return Period(name, zone, today, today)
    if name in ("7d", "30d"):
        return Period(name, zone, today - timedelta(days=int(name[:-1]) - 1), today)
    if name == "month":
        return Period(name, zone, today.replace(day=1), today)
    if name == "last_month":
        last = today.replace(day=1) - timedelta(days=1)
        return Period(name, zone, last.replace(day=1), last)
    if name != "custom":
        raise BadInput(_("period must be one of %(choices)s.") % {"choices": ", ".join(NAMES)}, param="period")
    first, last = _date(params, "from"), _date(params, "to")
    if first > last:
        raise BadInput(_("The last day is before the first; swap them."), param="to")
    if (last - first).days >= MOST_DAYS:
        raise BadInput(
            _("That are more than %(most)s days; choose a shorter period.") % {"most": MOST_DAYS}, param="to"
        )
    return Period(name, zone, first, last)


def _date(params: Mapping[str, str | None], name: str) -> date:
    text = params.get(name) or ""
    try:
        found = date.fromisoformat(text)
    except ValueError:
        found = None
    if found is None or not FIRST_YEAR <= found.year <= LAST_YEAR:
        raise BadInput(
            (_("From must be a day like 2026-11-30.") if name == "from" else _("To must be a day like 2026-11-30.")),
            param=name,
        )
    return found
