"""P10, at night: a month's meters are what the rows say, whatever happened to them."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable
from contextvars import copy_context
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest
import time_machine
from django.db import connection, transaction
from django.db.models import F
from structlog.testing import capture_logs

from chatapp.audit.models import AuditEntry
from chatapp.chat import services
from chatapp.chat.models import Conversation
from chatapp.limits import budget
from chatapp.limits.models import TEAM, Meter, Reservation
from chatapp.usage.budgets import Meters
from chatapp.usage.models import UsageRow
from chatapp.usage.reconcile import reconcile
from chatapp.usage.services import record as record_row
from chatapp.usage.tasks import reconcile_budgets
from tests.chat.conftest import ScriptedWorker, Team, record, worker
from tests.limits.conftest import allow, without_entries
from tests.usage.conftest import ended, use

__all__ = ["allow", "record", "without_entries", "worker"]

NOVEMBER = date(2026, 11, 1)


def used(team: Team) -> dict[str, int]:
    return dict(Meter.objects.filter(tenant=team.tenant).values_list("subject", "used"))


def meter(team: Team, subject: str, tokens: int, month: date = NOVEMBER) -> None:
    Meter.objects.create(tenant=team.tenant, month=month, subject=subject, used=tokens)


def test_what_is_settled_needs_no_correction(team: Team, worker: ScriptedWorker, record: Callable[[], int]) -> None:
    services.ask(access=team.member, text="Hi")
    worker.answer("a", "b")
    services.complete(access=team.key, messages=[{"role": "user", "content": "Hi"}])
    worker.answer("a")
    record()
    assert used(team) == {TEAM: 17, team.member.principal: 9, team.key.principal: 8}
    assert reconcile(Meters()) == []


def test_an_answer_whose_conversation_was_deleted_meanwhile_is_counted_in_both(
    team: Team, worker: ScriptedWorker, record: Callable[[], int]
) -> None:
    services.ask(access=team.member, text="Hi")
    Conversation.objects.all().delete()
    worker.answer("a", "b")
    record()
    row = UsageRow.objects.get()
    assert (row.principal, row.prompt_tokens + row.output_tokens) == (team.member.principal, 9)
    assert used(team)[TEAM] == 9
    assert not Reservation.objects.exists()
    assert reconcile(Meters()) == []


def test_drift_of_this_month_and_the_last_is_corrected_and_logged_for_each_tenant(team: Team, strangers: Team) -> None:
    for at in (datetime(2026, 10, 31, 23, 59, 59, tzinfo=UTC), datetime(2026, 11, 1, tzinfo=UTC)):
        use(team.tenant, at, principal="user:a")
    use(strangers.tenant, datetime(2026, 11, 2, tzinfo=UTC), principal="user:b")
    meter(team, TEAM, 0, date(2026, 10, 1))
    meter(team, TEAM, 121)
    meter(team, "user:a", 7)
    meter(team, "user:idle", 5)
    meter(team, TEAM, 9, date(2026, 9, 1))
    meter(strangers, TEAM, 1_000_000)
    with time_machine.travel(datetime(2026, 11, 30, 3, 17, tzinfo=UTC)), capture_logs() as logs:
        reconcile_budgets()
    assert {(m.month, m.subject): m.used for m in Meter.objects.filter(tenant=team.tenant)} == {
        (date(2026, 10, 1), TEAM): 121,
        (NOVEMBER, TEAM): 121,
        (NOVEMBER, "user:a"): 121,
        (NOVEMBER, "user:idle"): 0,
        (date(2026, 9, 1), TEAM): 9,
    }
    assert used(strangers) == {TEAM: 121}
    drifts = {(line["tenant"], line["principal"], line["counted"], line["rows"]) for line in logs}
    mine, theirs = str(team.tenant.pk), str(strangers.tenant.pk)
    assert drifts == {
        (mine, None, 0, 121), (mine, "user:a", 7, 121), (mine, "user:idle", 5, 0), (theirs, None, 1_000_000, 121),
    }  # fmt: skip


def test_a_correction_that_passes_80_percent_warns_as_use_does(team: Team, allow: Any) -> None:
    allow(tokens_per_month=130)
    with time_machine.travel(datetime(2026, 11, 30, 13, tzinfo=UTC)):
        use(team.tenant)
        meter(team, TEAM, 0)
        reconcile(Meters())
    assert AuditEntry.objects.get(action="limits.warning").details["percent"] == 80


@pytest.mark.django_db(transaction=True)
def test_settling_and_reconciling_at_once_loses_no_token(without_entries: None, team: Team) -> None:
    month = datetime.now(UTC).date().replace(day=1)
    for subject in (TEAM, "user:a"):
        meter(team, subject, 0, month)
    failures: list[BaseException] = []
    barrier = threading.Barrier(3)

    def guarded(work: Callable[[], None]) -> None:
        try:
            barrier.wait()
            work()
        except BaseException as error:
            failures.append(error)
        finally:
            connection.close()

    def end() -> None:
        for _ in range(25):
            key, now = uuid.uuid4(), datetime.now(UTC)
            with transaction.atomic():
                Reservation.objects.create(
                    generation=key, tenant=team.tenant, month=month, subject="user:a", tokens=500,
                    expires_at=now + timedelta(hours=1),
                )  # fmt: skip
                Meter.objects.filter(subject__in=(TEAM, "user:a")).update(reserved=F("reserved") + 500)
            with transaction.atomic():
                record_row(ended=ended(team.tenant, now, generation_id=key, principal="user:a"))
                budget.settle(key, tokens=121)

    def compare() -> None:
        for _ in range(25):
            assert reconcile(Meters()) == []

    works = (end, end, compare)
    threads = [threading.Thread(target=copy_context().run, args=(guarded, work)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert used(team) == {TEAM: 50 * 121, "user:a": 50 * 121}
