"""The operators' admin: every page of it opens for operators only, and it shows neither secrets nor chats."""

from __future__ import annotations

import pytest
from django.contrib import admin
from django.test import Client
from django.urls import reverse

from chatapp.accounts.models import User
from chatapp.audit.models import AuditEntry
from chatapp.chat import services
from chatapp.tenants.models import ApiKey, Tenant
from tests.chat.conftest import Team

MODELS = sorted(f"{model._meta.app_label}_{model._meta.model_name}" for model in admin.site._registry)


@pytest.fixture
def operator(db: None, client: Client) -> Client:
    client.force_login(User.objects.create_superuser("operator@example.org", "a password"))
    return client


def test_no_model_with_the_text_of_chats_is_there() -> None:
    assert {"accounts_user", "tenants_tenant", "tenants_membership", "tenants_apikey"} <= set(MODELS)
    assert not {"chat_message", "chat_conversation"} & set(MODELS)


@pytest.mark.parametrize("name", MODELS)
def test_lists_and_forms_open_and_show_no_secret(operator: Client, team: Team, name: str) -> None:
    generation = services.ask(access=team.member, text="A private question")
    pages = [reverse(f"admin:{name}_changelist")]
    model = next(m for m in admin.site._registry if f"{m._meta.app_label}_{m._meta.model_name}" == name)
    first = model._default_manager.first()
    if first is not None:
        pages.append(reverse(f"admin:{name}_change", args=[first.pk]))
    add = operator.get(reverse(f"admin:{name}_add"))
    assert add.status_code in (200, 403)
    key = ApiKey.objects.get(tenant=team.tenant)
    hidden = [team.secret, team.tenant.salt, key.salt, key.hash, "A private question"]
    assert generation.conversation is not None
    for page in pages:
        reply = operator.get(page)
        assert reply.status_code == 200, page
        assert not [secret for secret in hidden if secret in reply.content.decode()], page


@pytest.mark.parametrize("name", MODELS)
def test_members_and_owners_of_teams_have_no_admin(client: Client, team: Team, name: str) -> None:
    assert team.owner.user is not None
    client.force_login(team.owner.user)
    assert client.get(reverse(f"admin:{name}_changelist")).status_code == 302


def test_a_key_made_here_is_shown_once_and_works(operator: Client, team: Team) -> None:
    from chatapp.tenants.access import access_for_key

    data = {"tenant": str(team.tenant.pk), "name": "For the website", "scopes": ["chat"]}
    page = operator.post(reverse("admin:tenants_apikey_add"), data, follow=True).content.decode()
    assert page.count("octv_") >= 1
    start = page.index("The key is octv_") + len("The key is ")
    secret = page[start:].split(".")[0]
    access = access_for_key(secret)
    assert access.tenant == team.tenant
    assert access.key is not None
    assert access.key.scopes == ["chat"]
    again = operator.get(reverse("admin:tenants_apikey_changelist")).content.decode()
    assert secret not in again


def test_an_operator_makes_a_person_and_a_tenant(operator: Client) -> None:
    operator.post(
        reverse("admin:accounts_user_add"),
        {"email": "New@Example.org", "name": "New", "password1": "a long password", "password2": "a long password"},
    )
    user = User.objects.get(email__iexact="new@example.org")
    assert user.check_password("a long password")
    reply = operator.post(
        reverse("admin:tenants_tenant_add"),
        {
            "name": "Brand New",
            "slug": "brand-new",
            "accent": "teal",
            "default_model": "",
            "owner_email": "New@example.org",
        },
    )
    assert reply.status_code == 302, reply.content.decode()
    tenant = Tenant.objects.get(slug="brand-new")
    assert tenant.memberships.get().user == user


def test_a_tenant_can_be_deleted_with_all_that_it_owns(team: Team, strangers: Team) -> None:
    services.ask(access=team.member, text="Mine")
    services.ask(access=strangers.member, text="Theirs")
    team.tenant.delete()
    assert [t.slug for t in Tenant.objects.all()] == ["other"]
    assert Tenant.objects.get().conversations.count() == 1


def test_what_an_operator_does_to_keys_is_told_in_the_teams_log_and_mistakes_are_told(
    operator: Client, team: Team
) -> None:
    add = reverse("admin:tenants_apikey_add")
    data = {"tenant": str(team.tenant.pk), "name": "For the website", "scopes": ["chat", "usage"]}
    assert operator.post(add, data).status_code == 302
    key = ApiKey.objects.get(name="For the website")
    for wrong in (
        {"name": "for the WEBSITE"},
        {"name": ""},
        {"scopes": []},
        {"scopes": ["root"]},
        {"scopes": ["system"]},
    ):
        assert operator.post(add, {**data, "name": "Another", **wrong}).status_code == 200, wrong
    change = reverse("admin:tenants_apikey_change", args=[key.pk])
    assert operator.post(change, {"name": "Website", "scopes": ["chat"]}).status_code == 302
    action = {"action": "revoke", "_selected_action": [str(key.pk)]}
    operator.post(reverse("admin:tenants_apikey_changelist"), action)
    key.refresh_from_db()
    assert (key.name, key.scopes, key.active) == ("Website", ["chat"], False)
    entries = AuditEntry.objects.filter(tenant=team.tenant).order_by("at", "id")
    assert [entry.action for entry in entries] == ["key.created", "key.changed", "key.revoked"]
    assert {entry.actor_name for entry in entries} == {"operator@example.org"}
