"""What operators do to accounts is told to the person's teams: whoever gets into an account reads its chats."""

from __future__ import annotations

import pytest
from django.test import Client
from django.urls import reverse

from chatapp.accounts.models import User
from chatapp.audit.models import AuditEntry
from chatapp.tenants.models import Tenant
from tests.chat.conftest import Team, server, strangers, team

__all__ = ["server", "strangers", "team"]

PASSWORD = "an operator chose this one"


@pytest.fixture
def operator(db: None, client: Client) -> Client:
    client.force_login(User.objects.create_superuser("operator@example.org", "a password"))
    return client


def told(tenant: Tenant | None) -> list[tuple[str, str, str]]:
    """The newest first."""
    rows = AuditEntry.objects.filter(tenant_id=tenant.pk if tenant else None, actor_kind="operator").order_by("-id")
    return list(rows.values_list("action", "actor_name", "object_name"))


def test_a_password_that_an_operator_gives_is_told_to_the_persons_teams_and_to_no_other(
    operator: Client, team: Team, strangers: Team
) -> None:
    member = team.member.user
    assert member is not None
    address = reverse("admin:auth_user_password_change", args=[member.pk])
    assert operator.post(address, {"password1": PASSWORD, "password2": "another one"}).status_code == 200
    assert told(team.tenant) == []
    operator.post(address, {"password1": PASSWORD, "password2": PASSWORD})
    member.refresh_from_db()
    assert member.check_password(PASSWORD)
    entry = ("account.password_given", "operator@example.org", member.email)
    assert told(team.tenant) == told(None) == [entry]
    assert told(strangers.tenant) == []
    assert not AuditEntry.objects.filter(details__icontains=PASSWORD).exists()


def test_a_link_that_an_operator_makes_is_told_to_the_persons_teams(operator: Client, team: Team) -> None:
    member = team.member.user
    assert member is not None
    operator.post("/admin/accounts/user/", {"action": "make_password_link", "_selected_action": [str(member.pk)]})
    assert told(team.tenant) == [("account.password_link_made", "operator@example.org", member.email)]


def test_rights_that_an_operator_gives_are_told(operator: Client, team: Team) -> None:
    member = team.member.user
    assert member is not None
    address = reverse("admin:accounts_user_change", args=[member.pk])
    data = {"email": member.email, "name": member.name, "is_active": "on"}
    operator.post(address, data)
    assert told(team.tenant) == [], "nothing has changed"
    operator.post(address, {**data, "is_staff": "on", "is_superuser": "on"})
    member.refresh_from_db()
    assert member.is_superuser
    assert told(team.tenant) == told(None) == [("account.changed", "operator@example.org", member.email)]


def test_no_account_is_deleted_by_its_row_alone(operator: Client, team: Team) -> None:
    """A team would be without its last owner, and what chats are elsewhere would stay there."""
    owner = team.owner.user
    assert owner is not None
    assert operator.post(f"/admin/accounts/user/{owner.pk}/delete/", {"post": "yes"}).status_code == 403
    data = {"action": "delete_selected", "_selected_action": [str(owner.pk)], "post": "yes"}
    operator.post("/admin/accounts/user/", data)
    assert User.objects.filter(pk=owner.pk).exists()
