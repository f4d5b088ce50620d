"""The second wall: on PostgreSQL even SQL that forgets its tenant sees and touches no foreign row.

Skipped on other databases; test_on_postgresql.py runs it on a real server.
"""

from __future__ import annotations

from contextlib import suppress

import pytest
from django.db import DatabaseError, connection, transaction

from chatapp.chat.services import ask
from chatapp.postgresql.policies import check_role, owned_models
from chatapp.scope import no_scope, tenant_scope, unscoped
from chatapp.tenants.models import Membership, Tenant
from tests.chat.conftest import Team, make_team, server, strangers, team

__all__ = ["server", "strangers", "team"]

pytestmark = [
    pytest.mark.django_db,
    pytest.mark.skipif(connection.vendor != "postgresql", reason="row-level security is PostgreSQL's"),
]

TABLES = sorted(model._meta.db_table for model in owned_models())


def rows(table: str) -> int:
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT count(*) FROM {table}")
        return int(cursor.fetchone()[0])


@pytest.mark.parametrize("table", TABLES)
def test_every_table_of_tenants_is_guarded_and_shows_nobody_anything(table: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT relrowsecurity, relforcerowsecurity FROM pg_class WHERE relname = %s", [table])
        assert cursor.fetchone() == (True, True)
    with no_scope():
        assert rows(table) == 0


def test_sql_without_a_filter_sees_the_scopes_rows_alone(team: Team, strangers: Team) -> None:
    for access in (team.member, team.owner, strangers.member):
        ask(access=access, text="Hi")
    seen = ("chat_conversation", "chat_message", "chat_generation", "prompts_promptversion", "tenants_membership")
    everything = {table: rows(table) for table in seen}
    with tenant_scope(team.tenant):
        ours = {table: rows(table) for table in seen}
    with tenant_scope(strangers.tenant):
        theirs = {table: rows(table) for table in seen}
    assert (ours["chat_conversation"], ours["chat_message"], theirs["chat_message"]) == (2, 4, 2)
    assert everything == {table: ours[table] + theirs[table] for table in seen}


def test_sql_touches_no_foreign_row(team: Team, strangers: Team) -> None:
    ask(access=strangers.member, text="Theirs")
    with tenant_scope(team.tenant), connection.cursor() as cursor:
        for statement in (
            "UPDATE chat_message SET text = 'Mine'",
            "UPDATE chat_conversation SET title = 'Mine'",
            "DELETE FROM tenants_apikey",
            "DELETE FROM chat_generation",
        ):
            before = {table: rows(table) for table in TABLES}
            cursor.execute(statement)
            assert cursor.rowcount <= sum(before.values())
    with tenant_scope(strangers.tenant), connection.cursor() as cursor:
        cursor.execute("SELECT text FROM chat_message WHERE role = 'user'")
        assert cursor.fetchall() == [("Theirs",)]
        assert rows("tenants_apikey") == 1
        assert rows("chat_generation") == 1


def test_no_row_can_be_written_for_another_tenant_nor_moved_to_one(team: Team, strangers: Team) -> None:
    assert strangers.member.user is not None
    with tenant_scope(team.tenant):
        with pytest.raises(DatabaseError, match="row-level security"), transaction.atomic():
            Membership.objects.create(tenant=strangers.tenant, user=team.member.user, role="owner")
        with pytest.raises(DatabaseError, match="row-level security"), transaction.atomic():
            Membership.objects.filter(user=team.member.user).update(tenant=strangers.tenant)


def test_the_wall_stands_after_rollbacks(team: Team, strangers: Team) -> None:
    """What a rolled back transaction has set is undone with it; the next statement says it again."""
    for scoped, other in ((team, strangers), (strangers, team)):
        with suppress(ZeroDivisionError), transaction.atomic(), tenant_scope(other.tenant):
            assert rows("tenants_membership") == 2
            raise ZeroDivisionError
        with tenant_scope(scoped.tenant):
            with suppress(DatabaseError), transaction.atomic(), unscoped("tests"):
                assert rows("tenants_membership") == 4
                rows("no_such_table")
                raise AssertionError("that statement must have failed")
            with connection.cursor() as cursor:
                cursor.execute("SELECT DISTINCT tenant_id FROM tenants_membership")
                assert cursor.fetchall() == [(scoped.tenant.pk,)]


@pytest.mark.django_db(transaction=True)
def test_the_wall_stands_outside_of_transactions_and_on_a_new_connection() -> None:
    first, second = make_team("one"), make_team("two")
    with tenant_scope(first.tenant):
        assert rows("tenants_membership") == 2
        connection.close()
        assert rows("tenants_membership") == 2
    with tenant_scope(second.tenant), connection.cursor() as cursor:
        cursor.execute("SELECT DISTINCT tenant_id FROM tenants_membership")
        assert cursor.fetchall() == [(second.tenant.pk,)]
    with no_scope():
        assert rows("tenants_membership") == 0


def test_a_migration_sees_the_rows_of_all(team: Team, strangers: Team) -> None:
    with no_scope(), connection.schema_editor():
        assert rows("tenants_membership") == 4
    with no_scope():
        assert rows("tenants_membership") == 0


def test_the_products_role_is_held_to_the_policies_and_another_is_warned_of() -> None:
    assert check_role(None, ["default"]) == []
    with connection.cursor() as cursor:
        cursor.execute("SELECT current_user, rolsuper FROM pg_roles WHERE rolname = current_user")
        assert cursor.fetchone() == ("octavo", False)


def test_tenants_themselves_are_no_secret_of_each_other_but_their_rows_are(team: Team) -> None:
    """Names of teams are read before anybody's scope is known; what they own is not."""
    with no_scope():
        assert Tenant.objects.filter(pk=team.tenant.pk).exists()
        assert rows("tenants_apikey") == 0
