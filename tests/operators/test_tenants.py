"""Operators and teams: made with an owner, suspended and resumed, given models; all of it in the team's own log."""

from __future__ import annotations

import json
from typing import Any

import pytest
import redis
from django.apps import apps
from django.test import Client
from django.urls import reverse

from chatapp.accounts.models import User
from chatapp.audit.models import AuditEntry
from chatapp.chat import services as chat
from chatapp.chat.models import Generation
from chatapp.errors import BadInput
from chatapp.operators import selectors, services
from chatapp.streaming.finished import state
from chatapp.tenants.access import BadKey, NoAccess, access_for_key, access_for_user, revoked
from chatapp.tenants.models import Membership, Role, Tenant
from chatapp.tenants.services import add_member
from tests.chat.conftest import ScriptedWorker, Team

LIST, ADD = reverse("admin:tenants_tenant_changelist"), reverse("admin:tenants_tenant_add")


def new(**changed: Any) -> dict[str, Any]:
    return {
        "name": "Studio", "slug": "studio", "owner_email": "owner@studio.example", "accent": "plum",
        "default_model": "", "allowed_models": [], "weight": "1", "max_output_tokens": "4096", "max_queued": "512",
        **changed,
    }  # fmt: skip


def log(tenant: Tenant) -> list[tuple[str, str]]:
    return [(entry.action, entry.actor_kind) for entry in AuditEntry.objects.filter(tenant=tenant).order_by("at", "id")]


# --- making -------------------------------------------------------------------------------------------------------


def test_a_team_is_made_with_an_owner_who_gets_a_link(admin: Client) -> None:
    page = admin.post(ADD, new(), follow=True).content.decode()
    tenant = Tenant.objects.get(slug="studio")
    assert tenant.accent == "plum"
    owner = User.objects.get(email="owner@studio.example")
    assert Membership.objects.get(tenant=tenant).user == owner
    assert "Hand this link on to owner@studio.example" in page
    assert "/accounts/password/reset/key/" in page
    assert log(tenant) == [("team.created", "operator"), ("member.added", "operator")]
    assert AuditEntry.objects.filter(tenant=tenant).first().actor_name == "operator@example.org"  # type: ignore[union-attr]


def test_an_owner_who_is_there_already_needs_no_link(admin: Client, team: Team) -> None:
    page = admin.post(ADD, new(owner_email="MEMBER@acme.test"), follow=True).content.decode()
    assert "/reset/key/" not in page
    assert Membership.objects.get(tenant__slug="studio").user == team.member.user
    assert Membership.objects.get(tenant__slug="studio").role == Role.OWNER


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"owner_email": ""}, "required"),
        ({"owner_email": "x"}, "valid email"),
        ({"slug": "acme"}, "already"),
        ({"slug": "A B"}, "inner hyphens"),
        ({"name": ""}, "required"),
        ({"default_model": "gpt-9"}, "Select a valid choice"),
        ({"allowed_models": ["gpt-9"]}, "Select a valid choice"),
        ({"accent": "pink"}, "Select a valid choice"),
    ],
)
def test_a_team_that_cannot_be_is_refused_and_nothing_is_left(
    admin: Client, team: Team, changed: dict[str, Any], words: str
) -> None:
    page = admin.post(ADD, new(**changed), follow=True).content.decode()
    assert words in page
    assert Tenant.objects.count() == 1
    assert not User.objects.filter(email="owner@studio.example").exists()


def test_a_closed_account_cannot_own_a_team(admin: Client, team: Team) -> None:
    User.objects.filter(email="member@acme.test").update(is_active=False)
    page = admin.post(ADD, new(owner_email="member@acme.test"), follow=True).content.decode()
    assert "This account is closed" in page
    assert Tenant.objects.count() == 1


def test_a_short_name_that_is_taken_is_said_at_its_field(operator: User, team: Team) -> None:
    with pytest.raises(BadInput) as refused:
        services.create_tenant(by=operator, name="X", slug="acme", owner_email="a@b.example")
    assert refused.value.param == "tenant_slug"
    assert not User.objects.filter(email="a@b.example").exists()


# --- changing -----------------------------------------------------------------------------------------------------


def change(admin: Client, tenant: Tenant, **fields: Any) -> str:
    rows = list(tenant.memberships.order_by("pk"))
    inline = {"memberships-TOTAL_FORMS": len(rows), "memberships-INITIAL_FORMS": len(rows)}
    for number, row in enumerate(rows):
        inline |= {
            f"memberships-{number}-id": str(row.pk), f"memberships-{number}-tenant": str(tenant.pk),
            f"memberships-{number}-user": str(row.user_id), f"memberships-{number}-role": str(row.role),
        }  # fmt: skip
    data = {"name": tenant.name, "slug": tenant.slug, "accent": tenant.accent, "default_model": tenant.default_model}
    data |= {"allowed_models": tenant.allowed_models, "weight": "1", "max_output_tokens": "4096", "max_queued": "512"}
    reply = admin.post(reverse("admin:tenants_tenant_change", args=[tenant.pk]), {**data, **inline, **fields})
    return reply.content.decode()


def test_models_of_a_team_are_the_operators_to_give(admin: Client, team: Team, settings: Any) -> None:
    settings.OCTAVO_MODEL_NAMES = ("small", "large", "vision")
    assert change(admin, team.tenant, default_model="large", allowed_models=["large", "vision"]) == ""
    tenant = Tenant.objects.get(pk=team.tenant.pk)
    assert (tenant.models, tenant.model) == (["large", "vision"], "large")
    entry = AuditEntry.objects.get(tenant=tenant, action="team.changed")
    assert entry.details == {"default_model": ["", "large"], "allowed_models": [[], ["large", "vision"]]}
    assert change(admin, tenant) == ""
    assert AuditEntry.objects.filter(tenant=tenant, action="team.changed").count() == 1, "nothing changed, nothing said"
    settings.OCTAVO_MODEL_NAMES = ("small",)
    page = admin.get(reverse("admin:tenants_tenant_change", args=[tenant.pk])).content.decode()
    assert "large (not served now)" in page
    assert change(admin, tenant, name="Acme & Co") == "", "what is not served any more may stay"
    assert Tenant.objects.get(pk=tenant.pk).default_model == "large"


def test_what_operators_do_to_members_is_in_the_teams_log(admin: Client, team: Team, strangers: Team) -> None:
    member = team.tenant.memberships.get(user=team.member.user)
    number = [row.pk for row in team.tenant.memberships.order_by("pk")].index(member.pk)
    assert change(admin, team.tenant, **{f"memberships-{number}-role": "admin"}) == ""
    added = {"user": str(strangers.member.user.pk), "tenant": str(team.tenant.pk), "role": "auditor"}  # type: ignore[union-attr]
    admin.post(reverse("admin:tenants_membership_add"), added)
    guest = team.tenant.memberships.get(user=strangers.member.user)
    admin.post(reverse("admin:tenants_membership_change", args=[guest.pk]), {**added, "role": "member"})
    admin.post(reverse("admin:tenants_membership_delete", args=[guest.pk]), {"post": "yes"})
    chosen = {"action": "delete_selected", "_selected_action": [str(member.pk)], "post": "yes"}
    admin.post(reverse("admin:tenants_membership_changelist"), chosen)
    assert [action for action, kind in log(team.tenant) if kind == "operator"] == [
        "member.changed", "member.added", "member.changed", "member.removed", "member.removed",
    ]  # fmt: skip
    assert log(strangers.tenant) == []


def test_operators_leave_a_team_its_last_owner_too(admin: Client, team: Team, strangers: Team) -> None:
    owner = team.tenant.memberships.get(user=team.owner.user)
    number = [row.pk for row in team.tenant.memberships.order_by("pk")].index(owner.pk)
    fields = {"user": str(owner.user_id), "tenant": str(team.tenant.pk), "role": "member"}
    for said in (
        change(admin, team.tenant, **{f"memberships-{number}-role": "admin"}),
        change(admin, team.tenant, **{f"memberships-{number}-DELETE": "on"}),
        admin.post(reverse("admin:tenants_membership_change", args=[owner.pk]), fields).content.decode(),
    ):
        assert "last owner" in said
    assert admin.post(reverse("admin:tenants_membership_delete", args=[owner.pk]), {"post": "yes"}).status_code == 403
    chosen = {"action": "delete_selected", "_selected_action": [str(owner.pk)], "post": "yes"}
    admin.post(reverse("admin:tenants_membership_changelist"), chosen)
    assert team.tenant.memberships.get(pk=owner.pk).role == "owner"
    add_member(tenant=team.tenant, user=strangers.owner.user, role="owner")  # type: ignore[arg-type]
    admin.post(reverse("admin:tenants_membership_change", args=[owner.pk]), fields)
    assert team.tenant.memberships.get(pk=owner.pk).role == "member"


def test_the_list_shows_state_and_figures_and_finds_teams(
    admin: Client, team: Team, strangers: Team, worker: ScriptedWorker, record: Any
) -> None:
    chat.ask(access=team.member, text="A private question")
    worker.answer("Hello.", " Bye.")
    record()
    chat.ask(access=team.member, text="Another")
    row = selectors.with_figures(Tenant.objects.all()).get(slug="acme")
    assert (row.member_count, row.key_count, row.answer_count, row.running_count) == (2, 1, 2, 1)
    assert row.token_count == 7 + 2
    bare = selectors.with_figures(Tenant.objects.all()).get(slug="other")
    assert (bare.answer_count, bare.token_count) == (0, 0)
    page = admin.get(LIST).content.decode()
    assert "Acme" in page
    assert "A private question" not in page
    assert "Other" not in admin.get(LIST, {"q": "owner@acme"}).content.decode()
    services.suspend_tenant(by=User.objects.get(is_superuser=True), tenant=strangers.tenant)
    for wanted, found, hidden in (("suspended", "Other", "Acme"), ("active", "Acme", "Other")):
        page = admin.get(LIST, {"state": wanted}).content.decode()
        assert f">{found}</a>" in page
        assert f">{hidden}</a>" not in page


def test_the_list_takes_the_same_few_queries_for_many_teams(
    admin: Client, team: Team, django_assert_max_num_queries: Any
) -> None:
    Tenant.objects.bulk_create(Tenant(slug=f"team-{n}", name=f"Team {n}") for n in range(300))
    with django_assert_max_num_queries(12):
        page = admin.get(LIST).content.decode()
    assert "301 teams" in page or "p=2" in page


# --- suspending ---------------------------------------------------------------------------------------------------


def test_a_suspended_team_does_not_exist_for_its_people_and_keys(
    admin: Client, team: Team, strangers: Team, server: redis.Redis, django_capture_on_commit_callbacks: Any
) -> None:
    generation = chat.ask(access=team.member, text="A question")
    other = chat.ask(access=strangers.member, text="A question")
    page = reverse("admin:tenants_tenant_suspend", args=[team.tenant.pk])
    asked = admin.get(page).content.decode()
    assert "Suspend Acme?" in asked
    assert Tenant.objects.get(slug="acme").suspended_at is None, "a link alone changes nothing"
    with django_capture_on_commit_callbacks(execute=True):
        admin.post(page, {"reason": "  Unpaid  "})
    with pytest.raises(NoAccess):
        access_for_user(team.member.user, "acme")  # type: ignore[arg-type]
    with pytest.raises(BadKey):
        access_for_key(team.secret)
    assert revoked({team.member, team.key, strangers.member}) == {team.member, team.key}, "the sockets' guard sees it"
    theirs = Client()
    theirs.force_login(team.member.user)  # type: ignore[arg-type]
    for path in ("/t/acme/", "/t/acme/admin/", "/api/t/acme/conversations", "/api/t/acme/audit"):
        assert theirs.get(path).status_code == 404, path
    assert theirs.get("/").status_code == 200, "a page that says so, and leads nowhere"
    assert state(str(generation.pk)) == "cancelled"
    assert state(str(other.pk)) == "queued"
    assert log(team.tenant) == [("team.suspended", "operator")]
    assert AuditEntry.objects.get(tenant=team.tenant).details == {"reason": "Unpaid"}
    admin.post(page, {"reason": "again"})
    assert len(log(team.tenant)) == 1, "a second press changes nothing"

    admin.post(reverse("admin:tenants_tenant_resume", args=[team.tenant.pk]))
    assert theirs.get("/t/acme/").status_code == 200
    assert access_for_key(team.secret).tenant == team.tenant
    assert log(team.tenant)[1:] == [("team.resumed", "operator")]
    assert Generation.objects.count() == 2, "nothing is lost"


def test_several_are_suspended_and_resumed_at_once(admin: Client, team: Team, strangers: Team) -> None:
    chosen = [str(team.tenant.pk), str(strangers.tenant.pk)]
    admin.post(LIST, {"action": "suspend_selected", "_selected_action": chosen})
    assert not Tenant.objects.filter(suspended_at=None).exists()
    admin.post(LIST, {"action": "resume_selected", "_selected_action": chosen})
    assert not Tenant.objects.exclude(suspended_at=None).exists()
    assert [action for action, _ in log(strangers.tenant)] == ["team.suspended", "team.resumed"]


def test_without_redis_a_team_is_suspended_all_the_same(
    operator: User, team: Team, settings: Any, django_capture_on_commit_callbacks: Any
) -> None:
    chat.ask(access=team.member, text="A question")
    settings.REDIS_URL = "unix:///nowhere/valkey.sock"
    with django_capture_on_commit_callbacks(execute=True):
        services.suspend_tenant(by=operator, tenant=team.tenant)
    assert Tenant.objects.get().suspended_at is not None


@pytest.mark.parametrize("what", ["suspend", "resume", "remove"])
def test_nobody_else_gets_to_these_pages(client: Client, team: Team, what: str) -> None:
    page = reverse(f"admin:tenants_tenant_{what}", args=[team.tenant.pk])
    for user in (team.owner.user, User.objects.create_user("staff@example.org", "a password", is_staff=True)):
        assert user is not None
        client.force_login(user)
        for send in (client.get, client.post):
            assert send(page).status_code in (302, 403)
    assert Tenant.objects.get().suspended_at is None
    assert json.dumps(log(team.tenant)) == "[]"


def test_rows_of_a_team_cannot_be_deleted_past_its_deletion(admin: Client, team: Team) -> None:
    assert admin.get(reverse("admin:tenants_tenant_delete", args=[team.tenant.pk])).status_code == 403
    admin.post(LIST, {"action": "delete_selected", "_selected_action": [str(team.tenant.pk)], "post": "yes"})
    assert Tenant.objects.exists()


@pytest.mark.skipif(not apps.is_installed("chatapp.data"), reason="teams are deleted by chatapp.data")
def test_deleting_a_team_needs_its_short_name_typed(admin: Client, team: Team) -> None:
    page = reverse("admin:tenants_tenant_remove", args=[team.tenant.pk])
    assert admin.post(page, {"slug": "other"}).status_code == 400
    assert admin.post(page, {"slug": "acme"}).status_code == 302
    assert any(kind == "operator" for _, kind in log(team.tenant))
