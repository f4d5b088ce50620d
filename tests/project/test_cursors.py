"""Cursors of lists, over real rows: no row is passed over or comes twice, whatever comes and goes meanwhile."""

from __future__ import annotations

import base64
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.django import TestCase

from chatapp.accounts.models import User
from chatapp.chat.models import Conversation
from chatapp.cursors import keyset
from chatapp.errors import BadInput
from chatapp.scope import unscoped
from chatapp.tenants.models import Tenant

START = datetime(2026, 1, 1, tzinfo=UTC)
ORDERS = [("title", "pk"), ("-title", "-pk"), ("title", "-pk"), ("-updated_at", "-pk"), ("user__email", "title", "pk")]


def pages(order: tuple[str, ...], limit: int) -> list[Conversation]:
    found: list[Conversation] = []
    cursor: str | None = ""
    while cursor is not None:
        rows, cursor = keyset(Conversation.objects.select_related("user"), *order, cursor=cursor, limit=limit)
        assert cursor is None or len(rows) == limit
        found += rows
    return found


class TestPages(TestCase):
    @settings(max_examples=60, deadline=None)
    @given(
        st.lists(st.tuples(st.sampled_from(["a", "b", "B", "ä", "", "🙂"]), st.integers(0, 2)), max_size=9),
        st.integers(1, 10),
    )
    def test_pages_of_any_size_give_the_whole_list_in_order(self, rows: list[tuple[str, int]], limit: int) -> None:
        with unscoped("tests"):
            tenant = Tenant.objects.create(slug="cursors", name="Cursors")
            users = [User.objects.create_user(f"u{n}@cursors.test", "a password") for n in range(2)]
            for title, minutes in rows:
                Conversation.objects.create(
                    tenant=tenant,
                    user=users[minutes % 2],
                    title=title,
                    updated_at=START + timedelta(minutes=minutes),
                )
            for order in ORDERS:
                assert pages(order, limit) == list(Conversation.objects.order_by(*order)), order


@pytest.mark.django_db
def test_rows_that_come_and_go_move_nothing() -> None:
    tenant = Tenant.objects.create(slug="cursors", name="Cursors")
    user = User.objects.create_user("u@cursors.test", "a password")
    made = [Conversation.objects.create(tenant=tenant, user=user, title=f"{n}") for n in range(6)]
    first, cursor = keyset(Conversation.objects.all(), "title", "pk", cursor="", limit=2)
    assert cursor is not None
    first[1].delete()
    Conversation.objects.create(tenant=tenant, user=user, title="0 and a half")
    rest, end = keyset(Conversation.objects.all(), "title", "pk", cursor=cursor, limit=50)
    assert (rest, end) == (made[2:], None)


@pytest.mark.django_db
@pytest.mark.parametrize(
    "told", ["null", "[]", "[1]", '["a", "b", "c"]', '["a", "no id"]', "{}", '["a"', "[" * 5000, '[{"a": 1}, null]']
)
def test_a_cursor_that_is_none_is_named(told: str) -> None:
    for cursor in (told, base64.urlsafe_b64encode(told.encode()).decode()):
        with pytest.raises(BadInput) as refused:
            keyset(Conversation.objects.all(), "title", "pk", cursor=cursor, limit=5)
        assert refused.value.param == "cursor"
