"""Counters that differ from the rows are put right, and what retention has cut is left alone."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

import pytest

from chatapp import scope
from chatapp.tenants.models import Tenant
from chatapp.usage.reconcile import Count, Drift, reconcile
from chatapp.usage.rollup import roll_up
from chatapp.usage.selectors import Tokens, tokens_of
from chatapp.usage.services import delete_rows_before
from tests.chat.conftest import Team
from tests.usage.conftest import NOON, use

START, END = datetime(2026, 11, 1, tzinfo=UTC), datetime(2026, 12, 1, tzinfo=UTC)


class Ledger:
    """Counters in a dict."""

    def __init__(self) -> None:
        self.values: dict[Count, int] = {}

    def counts(self) -> Iterable[Count]:
        return [*self.values, Count(next(iter(self.values)).tenant_id, "user:gone", START, END)]

    def locked(self, count: Count) -> int | None:
        assert scope.current() == scope.Scope(count.tenant_id, "tenant")
        return self.values.get(count)

    def correct(self, count: Count, tokens: int) -> None:
        self.values[count] = tokens


def test_a_counter_that_drifted_is_corrected_to_the_rows_and_told(team: Team, strangers: Team) -> None:
    use(team.tenant, START, principal="user:a", prompt_tokens=10, output_tokens=1)
    use(team.tenant, END - timedelta(microseconds=1), principal="key:b", prompt_tokens=20, output_tokens=2)
    use(team.tenant, END, prompt_tokens=500)
    use(strangers.tenant, NOON, prompt_tokens=900)
    book = Ledger()
    everything, one = (Count(team.tenant.pk, who, START, END) for who in (None, "user:a"))
    foreign = Count(strangers.tenant.pk, None, START, END)
    book.values = {everything: 40, one: 11, foreign: 0}
    assert reconcile(book) == [Drift(everything, 40, 33), Drift(foreign, 0, 921)]
    assert book.values == {everything: 33, one: 11, foreign: 921}
    assert reconcile(book) == []


def test_a_period_whose_rows_are_partly_deleted_is_left_alone(tenant: Tenant) -> None:
    use(tenant, NOON)
    roll_up()
    delete_rows_before(tenant_id=tenant.pk, before=NOON + timedelta(hours=1))
    book = Ledger()
    book.values = {Count(tenant.pk, None, START, END): 121}
    assert reconcile(book) == []


def test_tokens_of_a_period_count_from_its_start_to_before_its_end(tenant: Tenant) -> None:
    assert tokens_of(tenant.pk, START, END) == Tokens(0, 0, 0)
    for at in (START - timedelta(microseconds=1), START, END - timedelta(microseconds=1), END):
        use(tenant, at)
    assert tokens_of(tenant.pk, START, END) == Tokens(200, 120, 42)
    assert tokens_of(tenant.pk, START, END).total == 242
    assert tokens_of(tenant.pk, START, END, principal="user:none").total == 0


@pytest.mark.parametrize("state", ["cancelled", "failed", "interrupted", "timeout"])
def test_what_was_computed_counts_however_it_ended(tenant: Tenant, state: str) -> None:
    use(tenant, NOON, state=state)
    assert tokens_of(tenant.pk, START, END).total == 121
