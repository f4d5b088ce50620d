"""Roll-ups equal the sums of rows: for any history, in any order, however often and by however many computed."""

from __future__ import annotations

import random
import threading
from collections import Counter
from contextvars import copy_context
from datetime import UTC, date, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from django.core.management import call_command
from django.db import connection
from django.db.models import Sum
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from chatapp.ids import new_id
from chatapp.scope import tenant_scope
from chatapp.tenants.models import Tenant
from chatapp.usage import histogram, selectors
from chatapp.usage.models import Kind, UsageDay, UsageHour, UsageRow, UsageTotal
from chatapp.usage.periods import Period
from chatapp.usage.rollup import DIMENSIONS, SUMS, day_of, hour_of, rebuild, roll_up
from chatapp.usage.selectors import GroupBy
from chatapp.usage.services import Ended, delete_rows_before, forget, record, record_all
from tests.usage.conftest import NOON, ended, use

pytestmark = pytest.mark.django_db

PEOPLE = ("user:a", "user:b", "key:c")
MOMENTS = st.datetimes(datetime(2026, 10, 24), datetime(2026, 11, 2), timezones=st.just(UTC))
STATES = ("finished", "cancelled", "refused", "failed", "timeout", "interrupted")
FACTS = st.fixed_dictionaries(
    {
        "at": MOMENTS,
        "principal": st.sampled_from(PEOPLE),
        "assistant_id": st.sampled_from(("", "one", "two")),
        "model": st.sampled_from(("small", "large")),
        "kind": st.sampled_from(list(Kind)),
        "state": st.sampled_from(STATES),
        "prompt_tokens": st.integers(0, 10**7),
        "cached_tokens": st.integers(0, 10**7),
        "output_tokens": st.integers(0, 10**6),
        "timing": st.one_of(
            st.just({}),
            st.fixed_dictionaries({n: st.floats(0, 600) for n in ("queue_s", "prefill_s", "decode_s")}),
        ),
    }
)
EXAMPLES = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def new_tenant() -> Tenant:
    return Tenant.objects.create(slug=f"t-{new_id()}", name="T")


def expected(tenant: Tenant, begins: Any) -> dict[tuple[Any, ...], Counter[str]]:
    """The sums of the rows, by the plainest way there is."""
    sums: dict[tuple[Any, ...], Counter[str]] = {}
    for row in UsageRow.objects.filter(tenant=tenant):
        group = sums.setdefault((begins(row.at), *(getattr(row, name) for name in DIMENSIONS)), Counter())
        group["requests"] += 1
        group[row.state if row.state in ("finished", "cancelled", "refused") else "failed"] += 1
        for name in SUMS[5:]:
            group[name] += getattr(row, name)
        if row.first_token_us is not None:
            group["first tokens"] += 1
            group["gaps"] += row.output_tokens - 1
    return sums


def stored(model: Any, tenant: Tenant) -> dict[tuple[Any, ...], Counter[str]]:
    sums = {}
    for each in model.objects.filter(tenant=tenant):
        key = (each.at, *(getattr(each, name) for name in DIMENSIONS))
        assert key not in sums
        sums[key] = Counter({name: getattr(each, name) for name in SUMS})
        sums[key]["first tokens"] = sum(each.first_token.values())
        sums[key]["gaps"] = sum(each.between_tokens.values())
    return sums


def nonzero(sums: dict[tuple[Any, ...], Counter[str]]) -> dict[tuple[Any, ...], Counter[str]]:
    return {key: +counter for key, counter in sums.items()}


def assert_equal_to_rows(tenant: Tenant) -> None:
    assert nonzero(stored(UsageHour, tenant)) == nonzero(expected(tenant, hour_of))
    assert nonzero(stored(UsageDay, tenant)) == nonzero(expected(tenant, day_of))
    totals: dict[tuple[Any, ...], Counter[str]] = {}
    for (hour, *_), sums in stored(UsageHour, tenant).items():
        totals[(hour, "", "", "", "")] = totals.get((hour, "", "", "", ""), Counter()) + sums
    assert totals == nonzero(stored(UsageTotal, tenant))


@EXAMPLES
@given(history=st.lists(FACTS, max_size=25), rounds=st.lists(st.integers(1, 8), max_size=6), data=st.randoms())
def test_roll_ups_equal_the_sums_of_rows_in_any_order_and_any_rounds(
    db: None, history: list[dict[str, Any]], rounds: list[int], data: random.Random
) -> None:
    """Rows come late and in any order, are replayed, and rounds come whenever they like."""
    tenant = new_tenant()
    facts = [ended(tenant, **each) for each in history]
    data.shuffle(facts)
    waiting: list[Ended] = [*facts, *data.sample(facts, len(facts) // 3)]
    for size in rounds:
        record_all(ended=waiting[:size])
        waiting = waiting[size:]
        roll_up()
        assert_equal_to_rows(tenant)
    record_all(ended=waiting)
    roll_up()
    assert_equal_to_rows(tenant)
    assert UsageRow.objects.filter(tenant=tenant).count() == len(history)
    assert roll_up() == (0, 0), "nothing is left to do"
    rebuild(tenant_id=tenant.pk, start=datetime(2026, 10, 1, tzinfo=UTC), end=datetime(2026, 12, 1, tzinfo=UTC))
    roll_up()
    assert_equal_to_rows(tenant)


@EXAMPLES
@given(
    history=st.lists(FACTS, min_size=1, max_size=25),
    zone=st.sampled_from(("UTC", "Europe/Berlin", "America/New_York", "Pacific/Kiritimati", "America/Havana")),
    first=st.dates(date(2026, 10, 24), date(2026, 11, 1)),
    length=st.integers(0, 5),
)
def test_the_figures_of_a_period_are_the_sums_of_its_rows_whatever_they_are_grouped_by(
    db: None, history: list[dict[str, Any]], zone: str, first: date, length: int
) -> None:
    """Over clock changes and month ends; for zones whole hours from UTC days are exact."""
    tenant = new_tenant()
    record_all(ended=[ended(tenant, **each) for each in history])
    roll_up()
    period = Period("custom", ZoneInfo(zone), first, first + timedelta(days=length))
    inside = [each for each in history if first <= each["at"].astimezone(period.zone).date() <= period.last]
    total = selectors.total(tenant.pk, period)
    assert total.requests == len(inside)
    assert total.tokens == sum(each["prompt_tokens"] + each["output_tokens"] for each in inside)
    assert total.tokens == selectors.tokens_of(tenant.pk, period.start, period.end).total
    for by in GroupBy:
        groups = selectors.grouped(tenant.pk, period, by)
        assert len({group.id for group in groups}) == len(groups)
        mine = [each for each in inside if each["principal"].startswith(selectors._OF_PRINCIPALS.get(by, ""))]
        for name in ("prompt_tokens", "output_tokens", "cached_tokens"):
            assert sum(getattr(group, name) for group in groups) == sum(each[name] for each in mine), by
        assert sum(sum(g.first_token.values()) for g in groups) == sum(
            1 for each in mine if each["timing"] and each["output_tokens"]
        )
    days = {day.id: day for day in selectors.grouped(tenant.pk, period, GroupBy.DAY)}
    assert list(days) == [str(day) for day in period.days]
    for each in inside:
        assert days[str(each["at"].astimezone(period.zone).date())].requests
    narrowed = selectors.total(tenant.pk, period, {"principal": "key:c", "model": "small"})
    assert narrowed.requests == sum(1 for each in inside if (each["principal"], each["model"]) == ("key:c", "small"))


def test_a_replayed_row_is_written_once(tenant: Tenant) -> None:
    facts = ended(tenant)
    for _ in range(3):
        record(ended=facts)
        roll_up()
    assert UsageHour.objects.get().requests == UsageDay.objects.get().requests == 1


def test_rounds_that_were_missed_are_made_up_for(tenant: Tenant) -> None:
    for n in range(100):
        use(tenant, NOON - timedelta(hours=7 * n))
    assert roll_up() == (100, len({day_of(NOON - timedelta(hours=7 * n)) for n in range(100)}))
    assert_equal_to_rows(tenant)


def test_the_latest_name_is_shown_and_rows_keep_the_name_of_their_time(tenant: Tenant) -> None:
    use(tenant, NOON, principal_name="Renamed")
    use(tenant, NOON - timedelta(days=1), principal_name="Before")
    roll_up()
    day = Period("custom", ZoneInfo("UTC"), date(2026, 11, 29), date(2026, 11, 30))
    (member,) = selectors.grouped(tenant.pk, day, GroupBy.MEMBER)
    assert (member.name, member.requests) == ("Renamed", 2)
    assert set(UsageRow.objects.values_list("principal_name", flat=True)) == {"Renamed", "Before"}


def test_a_forgotten_person_is_nameless_and_still_counted(tenant: Tenant) -> None:
    use(tenant, principal="user:x", principal_name="eve@acme.test")
    use(tenant, principal="user:y", principal_name="ann@acme.test")
    roll_up()
    forget(principal="user:x")
    for model in (UsageRow, UsageHour, UsageDay):
        names = dict(model.objects.values_list("principal", "principal_name"))
        assert names == {"user:x": "Deleted person", "user:y": "ann@acme.test"}


def test_retention_keeps_the_sums_and_adds_what_comes_late_once(tenant: Tenant, strangers: Any) -> None:
    use(strangers.tenant, NOON - timedelta(days=40))
    for n in range(5):
        use(tenant, NOON - timedelta(days=40, hours=n))
    use(tenant, NOON)
    assert delete_rows_before(tenant_id=tenant.pk, before=NOON) == 0, "not before they are rolled up"
    roll_up()
    before = stored(UsageHour, tenant)
    assert delete_rows_before(tenant_id=tenant.pk, before=NOON) == 5
    assert UsageRow.objects.count() == 2
    rebuild(tenant_id=tenant.pk, start=NOON - timedelta(days=90), end=NOON + timedelta(days=1))
    roll_up()
    assert stored(UsageHour, tenant) == before
    use(tenant, NOON - timedelta(days=40), prompt_tokens=1, output_tokens=1)
    for _ in range(2):
        roll_up()
    late = UsageHour.objects.get(tenant=tenant, at=NOON - timedelta(days=40))
    assert (late.requests, late.prompt_tokens, late.output_tokens) == (2, 101, 22)
    assert UsageDay.objects.filter(tenant=tenant).aggregate(n=Sum("requests"))["n"] == 7
    assert delete_rows_before(tenant_id=tenant.pk, before=NOON - timedelta(days=1)) == 1


@pytest.mark.django_db(transaction=True)
def test_two_rounds_at_once_give_the_same_as_one() -> None:
    """And a recorder that writes all the while loses nothing."""
    tenant = new_tenant()
    barrier = threading.Barrier(3)
    failures: list[BaseException] = []

    def guarded(work: Any) -> None:
        try:
            barrier.wait()
            work()
        except BaseException as error:
            failures.append(error)
        finally:
            connection.close()

    def write() -> None:
        for n in range(60):
            use(tenant, NOON + timedelta(minutes=n % 7 * 30))

    def rounds() -> None:
        for _ in range(10):
            roll_up()

    for n in range(60):
        use(tenant, NOON + timedelta(minutes=n))
    threads = [threading.Thread(target=copy_context().run, args=(guarded, work)) for work in (write, rounds, rounds)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    roll_up()
    assert UsageRow.objects.count() == 120
    assert_equal_to_rows(tenant)


def test_figures_are_one_tenants_alone(tenant: Tenant, strangers: Any) -> None:
    """P11."""
    use(tenant)
    use(strangers.tenant, prompt_tokens=5_000_000)
    roll_up()
    period = Period("custom", ZoneInfo("UTC"), NOON.date(), NOON.date())
    with tenant_scope(tenant):
        assert selectors.total(tenant.pk, period).prompt_tokens == 100
        assert selectors.total(strangers.tenant.pk, period).requests == 0
        assert selectors.tokens_of(strangers.tenant.pk, period.start, period.end).total == 0


def test_a_deleted_tenant_takes_its_usage_along(tenant: Tenant) -> None:
    use(tenant)
    roll_up()
    tenant.delete()
    assert not UsageRow.objects.exists()
    assert not UsageHour.objects.exists()
    assert not UsageDay.objects.exists()


@given(times=st.lists(st.floats(100, 1.1e9), min_size=1, max_size=60), share=st.sampled_from((0.5, 0.9, 0.95, 0.99)))
def test_a_percentile_is_as_exact_as_is_said(times: list[float], share: float) -> None:
    whole, halves = {}, ({}, {})
    for n, us in enumerate(times):
        histogram.add(whole, us)
        histogram.add(halves[n % 2], us)
    merged: dict[str, int] = {}
    histogram.merge(merged, halves[1])
    histogram.merge(merged, halves[0])
    assert merged == whole
    exact = sorted(times)[max(1, -(-round(share * 100) * len(times) // 100)) - 1] / 1e6
    told = histogram.percentile_s(whole, share)
    assert told is not None
    assert abs(told / exact - 1) <= histogram.RELATIVE_ERROR + 1e-9


def test_of_nothing_there_is_no_percentile() -> None:
    assert histogram.percentile_s({}, 0.5) is None


def test_the_command_computes_days_anew(tenant: Tenant, capsys: Any) -> None:
    use(tenant)
    roll_up()
    UsageHour.objects.all().update(prompt_tokens=7)
    call_command("usage", "rebuild", "acme", "--from", "2026-11-30", "--to", "2026-11-30")
    assert_equal_to_rows(tenant)
    assert "1 hours and 1 days" in capsys.readouterr().out
