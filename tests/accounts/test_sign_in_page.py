"""How a team's people sign in: the page, the same by HTTP, and the operator's word on domains."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.db import IntegrityError, transaction
from django.test import Client
from django.utils import timezone

from chatapp.audit.models import AuditEntry
from chatapp.errors import BadInput, Conflict, Refusal
from chatapp.sealing import Unreadable, seal, unseal
from chatapp.tenants.access import access_for_user
from chatapp.tenants.models import Membership, Role
from chatapp.tenants.sign_in import DomainClaim, SignIn
from chatapp.tenants.sign_in_services import (
    MOST_DOMAINS,
    claim_domain,
    clean_domain,
    clean_issuer,
    confirm_domain,
    set_service,
    withdraw_domain,
)
from tests.accounts.conftest import logged_in, page_text, person
from tests.chat.conftest import Team

PAGE = "/t/acme/admin/sign-in"
API = "/api/t/acme/sign-in"
SERVICE = {
    "issuer": "https://login.acme.example",
    "client_id": "octavo",
    "secret": "a client secret",
    "role": "member",
    "enabled": True,
}


def by(access: Any) -> Client:
    client = Client()
    client.force_login(access.user, backend="django.contrib.auth.backends.ModelBackend")
    return client


def test_the_page_changes_each_thing_and_the_log_says_so(team: Team) -> None:
    client = by(team.owner)
    assert client.post(f"{PAGE}/service", {**SERVICE, "enabled": "on"}).status_code == 302
    assert client.post(f"{PAGE}/domains", {"domain": "ACME.example"}).status_code == 302
    text = page_text(client.get(PAGE))
    assert "acme.example waits for an operator" in text
    claim = DomainClaim.objects.get()
    assert client.post(f"{PAGE}/domains/{claim.pk}").status_code == 302
    assert client.post(f"{PAGE}/service/remove").status_code == 302
    row = SignIn.objects.get()
    assert (row.enabled, row.issuer, row.sealed_secret) == (False, "", "")
    actions = AuditEntry.objects.filter(tenant=team.tenant).values_list("action", flat=True)
    assert list(actions)[::-1] == [
        "sign_in.service_changed",
        "sign_in.domain_claimed",
        "sign_in.domain_withdrawn",
        "sign_in.service_removed",
    ]


def test_the_secret_is_shown_nowhere_and_kept_when_left_empty(team: Team) -> None:
    client = by(team.owner)
    client.post(f"{PAGE}/service", {**SERVICE, "enabled": "on"})
    sealed = SignIn.objects.get().sealed_secret
    client.post(f"{PAGE}/service", {**SERVICE, "secret": "", "role": "editor", "enabled": "on"})
    row = SignIn.objects.get()
    assert (row.sealed_secret, row.role) == (sealed, "editor")
    for told in (
        client.get(PAGE).content.decode(),
        client.get(API).content.decode(),
        client.get("/t/acme/admin/audit"),
    ):
        assert SERVICE["secret"] not in str(told)
        assert sealed not in str(told)
    logged = json.dumps(list(AuditEntry.objects.values_list("details", flat=True)))
    assert SERVICE["secret"] not in logged
    assert '"secret": "replaced"' in logged


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("issuer", "", "required"),
        ("issuer", "login.acme.example", "full address"),
        ("issuer", "ftp://login.acme.example", "full address"),
        ("issuer", "https://", "full address"),
        ("issuer", "https://a.example/?x=1", "no ?"),
        ("issuer", "https://user:pw@a.example", "no user name"),
        ("issuer", "https://[::1", "full address"),
        ("client_id", "", "required"),
        ("client_id", "x" * 300, "at most 255"),
        ("secret", "x" * 2000, "at most 1000"),
        ("secret", "", "Give the client secret"),
        ("role", "owner", "valid choice"),
        ("role", "emperor", "valid choice"),
    ],
)
def test_bad_input_is_answered_at_its_field_and_keeps_what_was_typed(
    team: Team, field: str, value: str, words: str
) -> None:
    data = {**SERVICE, "enabled": "on", "client_id": "typed-by-hand", field: value}
    reply = by(team.owner).post(f"{PAGE}/service", data)
    assert reply.status_code == 400
    form = reply.context["service_form"]
    assert words in str(form.errors[field])
    if field != "client_id":
        assert "typed-by-hand" in reply.content.decode()
    assert not SignIn.objects.exclude(issuer="").exists()


def test_only_an_owner_lets_everyone_in_as_admin(team: Team) -> None:
    user = person("admin@acme.test")
    Membership.objects.create(tenant=team.tenant, user=user, role=Role.ADMIN)
    with pytest.raises(BadInput, match="Only an owner"):
        set_service(access=access_for_user(user, "acme"), **{**SERVICE, "role": "admin"})
    assert set_service(access=team.owner, **{**SERVICE, "role": "admin"}).role == "admin"


@pytest.mark.parametrize(
    ("typed", "domain"),
    [
        ("Acme.Example", "acme.example"),
        ("@acme.example.", "acme.example"),
        (" münchen.example ", "xn--mnchen-3ya.example"),
    ],
)
def test_a_domain_is_read_as_mail_does(typed: str, domain: str) -> None:
    assert clean_domain(typed) == domain


@pytest.mark.parametrize(
    "typed",
    ["", "acme", "a..b", "-a.example", "a_b.example", "me@acme.example", "192.0.2.1", "gmail.com", "x." * 200 + "y",
     "\x00.example", "💥", "a.example/b", "*.example"],
)  # fmt: skip
def test_what_is_no_domain_of_ones_own_cannot_be_claimed(typed: str) -> None:
    with pytest.raises(BadInput):
        clean_domain(typed)


def test_an_issuer_is_plain_http_only_where_the_operator_says_so(settings: Any) -> None:
    settings.OCTAVO_OIDC_PLAIN = False
    with pytest.raises(BadInput):
        clean_issuer("http://login.acme.example")


def test_a_domain_is_held_by_one_team_whoever_asked_first(team: Team, strangers: Team) -> None:
    """An unconfirmed claim blocks nobody; two confirmed ones cannot be, even by SQL."""
    operator = person("op@octavo.test", is_staff=True, is_superuser=True)
    claims = []
    for each in (strangers, team):
        set_service(access=each.owner, **SERVICE)
        claims.append(claim_domain(access=each.owner, domain="acme.example"))
    confirm_domain(by=operator, claim=claims[1])
    with pytest.raises(Conflict, match="held by another team"):
        confirm_domain(by=operator, claim=claims[0])
    with pytest.raises(IntegrityError), transaction.atomic():
        DomainClaim.objects.filter(pk=claims[0].pk).update(confirmed_at=timezone.now())
    entry = AuditEntry.objects.get(action="sign_in.domain_confirmed")
    assert (entry.tenant_id, entry.actor_kind, entry.actor_name) == (team.tenant.pk, "operator", "op@octavo.test")
    assert entry.details == {"issuer": SERVICE["issuer"]}


def test_a_team_claims_a_domain_once_and_only_so_many(team: Team) -> None:
    claim_domain(access=team.owner, domain="a0.example")
    with pytest.raises(Conflict, match="already"):
        claim_domain(access=team.owner, domain="a0.example")
    for number in range(1, MOST_DOMAINS):
        claim_domain(access=team.owner, domain=f"a{number}.example")
    with pytest.raises(Conflict, match=f"can claim {MOST_DOMAINS}"):
        claim_domain(access=team.owner, domain="more.example")


def test_nobody_withdraws_a_foreign_claim(team: Team, strangers: Team) -> None:
    """P11."""
    theirs = claim_domain(access=strangers.owner, domain="other.example")
    with pytest.raises(Refusal, match="has not claimed"):
        withdraw_domain(access=team.owner, claim_id=theirs.pk)
    assert by(team.owner).post(f"{PAGE}/domains/{theirs.pk}").status_code == 404
    assert DomainClaim.objects.filter(pk=theirs.pk).exists()


def test_operators_confirm_and_take_back_in_their_administration(team: Team) -> None:
    client = logged_in(person("op@octavo.test", is_staff=True, is_superuser=True))
    claim = claim_domain(access=team.owner, domain="acme.example")
    changelist = "/admin/tenants/domainclaim/"

    def act(action: str) -> str:
        reply = client.post(changelist, {"action": action, "_selected_action": [str(claim.pk)]}, follow=True)
        claim.refresh_from_db()
        return page_text(reply)

    assert "has named no sign-in service yet" in act("confirm")
    assert claim.confirmed_at is None
    set_service(access=team.owner, **SERVICE)
    assert SERVICE["issuer"] in page_text(client.get(changelist))
    assert "acme.example is confirmed for Acme" in act("confirm")
    assert claim.confirmed_at is not None
    act("take_back")
    assert claim.confirmed_at is None
    assert client.get(f"{changelist}add/").status_code == 403
    assert AuditEntry.objects.filter(action="sign_in.domain_taken_back", tenant=team.tenant).count() == 1


# --- by HTTP ------------------------------------------------------------------------------------------------------


def send(client: Client, method: str, path: str, body: Any = None) -> Any:
    return client.generic(method, path, json.dumps(body), content_type="application/json")


def test_the_api_does_what_the_page_does(team: Team) -> None:
    client = by(team.owner)
    assert client.get(API).json()["service"]["callback_url"].endswith(f"/accounts/oidc/{team.tenant.pk}/callback")
    told = send(client, "PUT", f"{API}/service", SERVICE).json()
    assert told["service"] | {"callback_url": ""} == {
        "issuer": SERVICE["issuer"], "client_id": "octavo", "has_secret": True, "role": "member", "enabled": True,
        "callback_url": "",
    }  # fmt: skip
    made = send(client, "POST", f"{API}/domains", {"domain": "acme.example"})
    assert (made.status_code, made.json()["confirmed_at"]) == (201, None)
    assert [claim["domain"] for claim in client.get(API).json()["domains"]] == ["acme.example"]
    assert send(client, "DELETE", f"{API}/domains/{made.json()['id']}").status_code == 204
    assert send(client, "DELETE", f"{API}/domains/{made.json()['id']}").status_code == 404
    assert send(client, "DELETE", f"{API}/service").json()["service"]["issuer"] == ""


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "param"),
    [
        ("PUT", "mfa", {"mfa": "maybe"}, 400, "mfa"),
        ("PUT", "mfa", {}, 400, "mfa"),
        ("PUT", "mfa", {"mfa": "everyone"}, 409, "mfa"),
        ("PUT", "service", {**SERVICE, "issuer": "nowhere"}, 400, "issuer"),
        ("PUT", "service", {**SERVICE, "role": "owner"}, 400, "role"),
        ("PUT", "service", {**SERVICE, "client_id": "\x00"}, 400, "client_id"),
        ("PUT", "service", {**SERVICE, "secret": "two\nlines"}, 400, "secret"),
        ("POST", "domains", {"domain": "gmail.com"}, 400, "domain"),
        ("POST", "domains", {"domain": 7}, 400, "domain"),
    ],
)
def test_the_api_names_the_field_at_fault(
    team: Team, method: str, path: str, body: Any, status: int, param: str
) -> None:
    reply = send(by(team.owner), method, f"{API}/{path}", body)
    assert reply.status_code == status, reply.content
    assert reply.json()["error"]["param"].endswith(param)
    assert not AuditEntry.objects.filter(tenant=team.tenant, action__startswith="sign_in.").exists()


# --- sealing ------------------------------------------------------------------------------------------------------


def test_what_is_sealed_opens_with_its_key_and_for_its_purpose_only(settings: Any) -> None:
    sealed = seal("a secret", purpose="one")
    assert "a secret" not in sealed
    assert unseal(sealed, purpose="one") == "a secret"
    with pytest.raises(Unreadable):
        unseal(sealed, purpose="two")
    former, settings.SECRET_KEY = settings.SECRET_KEY, "another " * 10
    with pytest.raises(Unreadable):
        unseal(sealed, purpose="one")
    settings.SECRET_KEY_FALLBACKS = [former]
    assert unseal(sealed, purpose="one") == "a secret"
