"""Days, months and clock changes of a reader's own zone, in whole UTC hours."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chatapp.errors import BadInput
from chatapp.usage.periods import NAMES, Period, begin_of, period_of, zone_of, zones

ZONES = st.sampled_from(sorted(zones())).map(ZoneInfo)
BERLIN = ZoneInfo("Europe/Berlin")
NOW = datetime(2026, 11, 30, 23, 30, tzinfo=UTC)


def test_today_is_the_readers_own_day() -> None:
    today = period_of({"period": "today"}, now=NOW, zone=BERLIN)
    assert (today.first, today.start) == (date(2026, 12, 1), datetime(2026, 11, 30, 23, tzinfo=UTC))
    assert period_of({"period": "today"}, now=NOW, zone=ZoneInfo("America/New_York")).first == date(2026, 11, 30)


def test_a_month_begins_and_ends_with_its_own_days() -> None:
    """Berlin has December already, half an hour before UTC has: last month is November, all of it."""
    month = period_of({"period": "month"}, now=NOW, zone=BERLIN)
    assert (month.first, month.last) == (date(2026, 12, 1), date(2026, 12, 1))
    last = period_of({"period": "last_month"}, now=NOW, zone=BERLIN)
    assert (last.first, last.last, last.end) == (date(2026, 11, 1), date(2026, 11, 30), month.start)
    leap = period_of({"period": "last_month"}, now=datetime(2028, 3, 31, 12, tzinfo=UTC), zone=BERLIN)
    assert leap.last == date(2028, 2, 29)


@pytest.mark.parametrize(("day", "hours"), [(date(2026, 3, 29), 23), (date(2026, 10, 25), 25), (date(2026, 6, 1), 24)])
def test_a_day_of_the_clock_change_has_23_or_25_hours(day: date, hours: int) -> None:
    assert len(Period("custom", BERLIN, day, day).hours) == hours


def test_where_midnight_is_skipped_the_day_begins_with_the_change() -> None:
    assert begin_of(date(2018, 11, 4), ZoneInfo("America/Sao_Paulo")) == datetime(2018, 11, 4, 3, tzinfo=UTC)


def test_half_hour_zones_begin_their_day_with_the_first_whole_hour_in_it_and_say_so() -> None:
    day = Period("custom", ZoneInfo("Asia/Kolkata"), date(2026, 11, 30), date(2026, 11, 30))
    assert day.ragged
    assert day.hours[0] == datetime(2026, 11, 29, 19, tzinfo=UTC)
    assert len(day.hours) == 24
    assert not Period("custom", BERLIN, date(2026, 11, 30), date(2026, 11, 30)).ragged


@given(zone=ZONES, first=st.dates(date(2001, 1, 1), date(2060, 1, 1)), length=st.integers(0, 40))
def test_days_tile_time_without_gap_or_overlap_in_every_zone(zone: ZoneInfo, first: date, length: int) -> None:
    whole = Period("custom", zone, first, first + timedelta(days=length))
    days = [Period("custom", zone, day, day) for day in whole.days]
    assert [hour for day in days for hour in day.hours] == whole.hours
    for day in days:
        assert all(hour.astimezone(zone).date() == day.first for hour in day.hours)


@pytest.mark.parametrize(
    ("params", "field"),
    [
        ({"period": "century"}, "period"),
        ({"period": "custom"}, "from"),
        ({"from": "2026-11-31", "to": "2026-12-01"}, "from"),
        ({"from": "2026-11-01"}, "to"),
        ({"from": "2026-11-02", "to": "2026-11-01"}, "to"),
        ({"from": "2020-01-01", "to": "2026-11-01"}, "to"),
        ({"from": "0001-01-01", "to": "0001-01-02"}, "from"),
        ({"from": "2026-11-01", "to": "9999-12-31"}, "to"),
        ({"from": "٢٠٢٦-١١-٠١", "to": "2026-11-02"}, "from"),  # noqa: RUF001
        ({"from": "x" * 10_000, "to": "2026-11-02"}, "from"),
    ],
)
def test_a_period_that_is_none_is_refused_at_its_field(params: dict[str, str], field: str) -> None:
    with pytest.raises(BadInput) as refused:
        period_of(params, now=NOW, zone=BERLIN)
    assert refused.value.param == field


@pytest.mark.parametrize("name", [name for name in NAMES if name != "custom"])
@given(zone=ZONES, now=st.datetimes(datetime(2001, 1, 1), datetime(2060, 1, 1), timezones=st.just(UTC)))
def test_every_named_period_but_the_last_month_holds_now(name: str, zone: ZoneInfo, now: datetime) -> None:
    period = period_of({"period": name}, now=now, zone=zone)
    assert (period.start <= now < period.end) == (name != "last_month")


@pytest.mark.parametrize("name", ["", None, "Mars/Olympus", "../../etc/passwd", "America", "/etc/localtime", "\0"])
def test_what_is_no_zone_is_none(name: str | None) -> None:
    assert zone_of(name) is None
