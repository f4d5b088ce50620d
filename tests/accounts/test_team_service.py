"""Signing in through a team's own service (OIDC): who is let in, and everything that is not enough.

The provider is a real HTTP server (provider.py); the browser is a test client that follows its redirects.
"""

from __future__ import annotations

import base64
import json
import time
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import jwt
import pytest
from allauth.account.models import EmailAddress
from allauth.socialaccount.models import SocialAccount
from django.core.cache import cache
from django.test import Client

from chatapp.accounts.models import User
from chatapp.audit.models import AuditEntry
from chatapp.tenants.models import Membership, Role
from chatapp.tenants.sign_in import DomainClaim, SignIn
from chatapp.tenants.sign_in_services import claim_domain, confirm_domain, remove_service, set_service
from tests.accounts.conftest import activate_app, code_of, log_in, logged_in, page_text, person
from tests.accounts.provider import CLIENT_ID, CLIENT_SECRET, Provider, new_key, running
from tests.chat.conftest import Team


def configure(team: Team, provider: Provider, *domains: str, **changes: Any) -> SignIn:
    """A service with confirmed domains."""
    values = {"issuer": provider.url, "client_id": CLIENT_ID, "secret": CLIENT_SECRET, "role": "member"}
    service = set_service(access=team.owner, **{**values, "enabled": True, **changes})
    by = User.objects.filter(is_superuser=True).first() or User.objects.create_superuser("op@octavo.test", "a password")
    for domain in domains:
        confirm_domain(by=by, claim=claim_domain(access=team.owner, domain=domain))
    return service


@pytest.fixture(autouse=True)
def _at_our_address(settings: Any) -> None:
    settings.OCTAVO_URL = "http://testserver"


@pytest.fixture
def service(team: Team, provider: Provider) -> SignIn:
    return configure(team, provider, "acme.example")


def go(client: Client, service: SignIn, next_url: str = "") -> str:
    """To the provider and as far as the callback's address, which comes back."""
    reply = client.post(f"/accounts/oidc/{service.pk}/login", {"next": next_url})
    assert reply.status_code == 302, page_text(reply)
    answer = httpx.get(reply["Location"], follow_redirects=False)
    assert answer.status_code == 302
    back = urlsplit(answer.headers["location"])
    return f"{back.path}?{back.query}"


def arrive(service: SignIn, client: Client | None = None) -> Any:
    client = client or Client()
    return client.get(go(client, service))


def user_of(client: Client) -> str | None:
    return client.session.get("_auth_user_id")


def refused(reply: Any, words: str) -> None:
    assert reply.status_code in (400, 403, 502), reply
    assert words in page_text(reply), page_text(reply)
    assert user_of(reply.client) is None
    assert not SocialAccount.objects.exists()


def test_a_person_of_a_confirmed_domain_becomes_a_member(team: Team, service: SignIn) -> None:
    client = Client()
    reply = arrive(service, client)
    assert reply["Location"] == "/t/acme/"
    user = User.objects.get(email="mira@acme.example")
    assert (user.name, user.has_usable_password()) == ("Mira", False)
    assert EmailAddress.objects.get(user=user).verified
    assert Membership.objects.get(user=user).role == Role.MEMBER
    assert client.get("/t/acme/").status_code == 200
    entry = AuditEntry.objects.get(action="member.joined")
    assert (entry.tenant_id, entry.actor_name) == (team.tenant.pk, "mira@acme.example")


def test_again_is_the_same_account(service: SignIn) -> None:
    for _ in range(2):
        assert arrive(service).status_code == 302
    assert User.objects.filter(email="mira@acme.example").count() == 1
    assert AuditEntry.objects.filter(action="member.joined").count() == 1


def test_the_role_is_the_one_that_the_team_chose(team: Team, provider: Provider) -> None:
    arrive(configure(team, provider, "acme.example", role="auditor"))
    assert Membership.objects.get(user__email="mira@acme.example").role == Role.AUDITOR


def test_an_account_with_the_confirmed_address_is_linked_and_keeps_its_password(service: SignIn) -> None:
    user = person(verified=True)
    client = Client()
    arrive(service, client)
    assert user_of(client) == str(user.pk)
    assert log_in(user.email, client=Client()).status_code == 302


def test_an_account_that_never_confirmed_the_address_is_not_linked(service: SignIn) -> None:
    """Whoever made it may be somebody else, and would be in with the old password ever after."""
    person(verified=False)
    refused(arrive(service), "never confirmed this address")


def test_an_account_without_any_record_of_its_address_is_not_linked(service: SignIn) -> None:
    User.objects.create_user("mira@acme.example", "a password")
    refused(arrive(service), "never confirmed this address")


def test_a_role_that_somebody_has_already_stays(team: Team, service: SignIn) -> None:
    user = person()
    Membership.objects.create(tenant=team.tenant, user=user, role=Role.ADMIN)
    arrive(service)
    assert Membership.objects.get(user=user).role == Role.ADMIN


def test_a_suspended_member_stays_out(team: Team, service: SignIn) -> None:
    from django.utils import timezone

    Membership.objects.create(tenant=team.tenant, user=person(), suspended_at=timezone.now())
    refused(arrive(service), "suspended")


CHANGES: dict[str, tuple[dict[str, Any], str]] = {
    "another issuer": ({"iss": "https://login.elsewhere.example"}, "cannot be trusted"),
    "another audience": ({"aud": "somebody-else"}, "cannot be trusted"),
    "several audiences without us as the authorized party": (
        {"aud": [CLIENT_ID, "somebody-else"]},
        "cannot be trusted",
    ),
    "another authorized party": ({"azp": "somebody-else"}, "cannot be trusted"),
    "another nonce": ({"nonce": "of another browser"}, "cannot be trusted"),
    "no nonce": ({"nonce": None}, "cannot be trusted"),
    "expired": ({"exp": int(time.time()) - 3600, "iat": int(time.time()) - 7200}, "cannot be trusted"),
    "no expiry": ({"exp": None}, "cannot be trusted"),
    "from the future": ({"iat": int(time.time()) + 3600, "nbf": int(time.time()) + 3600}, "cannot be trusted"),
    "no subject": ({"sub": None}, "cannot be trusted"),
    "an empty subject": ({"sub": ""}, "cannot be trusted"),
    "a subject that no database takes": ({"sub": "1\x007"}, "cannot be trusted"),
    "an address that is not verified": ({"email_verified": False}, "not verified there"),
    "nothing about whether it is verified": ({"email_verified": None}, "not verified there"),
    "an address of another domain": ({"email": "mira@other.example"}, "no confirmed claim on other.example"),
    "an address of a domain below": ({"email": "mira@sub.acme.example"}, "no confirmed claim on sub.acme.example"),
    "an address that only looks right": ({"email": "mira@acme.example@evil.example"}, "which mail address"),
    "an address in a name": ({"email": '"x@evil.example" <mira@acme.example>'}, "which mail address"),
    "no address": ({"email": ""}, "which mail address"),
}


@pytest.mark.parametrize("case", CHANGES)
def test_a_token_is_refused_that_has(case: str, service: SignIn, provider: Provider) -> None:
    claims, words = CHANGES[case]
    provider.claims = claims
    refused(arrive(service), words)
    assert not User.objects.filter(email__contains="mira").exists()
    # So that this can fail: without the change the same way leads in.
    provider.claims = {}
    assert arrive(service).status_code == 302


def unsigned(claims: dict[str, Any]) -> str:
    return jwt.encode(claims, None, algorithm="none", headers={"kid": "first"})


def test_a_token_is_refused_that_somebody_else_signed(service: SignIn, provider: Provider) -> None:
    other = new_key()
    provider.sign = lambda claims: jwt.encode(claims, other, algorithm="RS256", headers={"kid": "first"})
    refused(arrive(service), "cannot be trusted")


def test_a_token_is_refused_that_nobody_signed(service: SignIn, provider: Provider) -> None:
    provider.sign = unsigned
    refused(arrive(service), "cannot be trusted")


def test_a_token_is_refused_that_is_signed_with_the_public_key_or_our_secret(
    service: SignIn, provider: Provider
) -> None:
    """With a shared secret, everybody who knows the secret could sign; the public key everybody knows."""

    def signed(secret: bytes) -> Any:
        import hashlib
        import hmac

        def sign(claims: dict[str, Any]) -> str:
            header = base64.urlsafe_b64encode(json.dumps({"alg": "HS256", "kid": "first"}).encode()).rstrip(b"=")
            body = base64.urlsafe_b64encode(json.dumps(claims).encode()).rstrip(b"=")
            mac = base64.urlsafe_b64encode(hmac.new(secret, header + b"." + body, hashlib.sha256).digest()).rstrip(b"=")
            return b".".join((header, body, mac)).decode()

        return sign

    for secret in (json.dumps(provider.keys()["keys"][0]).encode(), CLIENT_SECRET.encode()):
        provider.sign = signed(secret)
        refused(arrive(service), "cannot be trusted")


def test_a_new_key_of_the_service_is_found(service: SignIn, provider: Provider) -> None:
    arrive(service)
    provider.key, provider.kid = new_key(), "second"
    client = Client()
    arrive(service, client)
    assert user_of(client)
    assert provider.asked.count("/keys") == 2


def test_an_answer_that_this_browser_did_not_ask_for_is_refused(service: SignIn) -> None:
    """A foreign page that sends its own code: the reader would be logged in as somebody else."""
    back = go(Client(), service)
    refused(Client().get(back), "begun elsewhere")


def test_an_answer_counts_once(service: SignIn) -> None:
    client = Client()
    back = go(client, service)
    assert client.get(back).status_code == 302
    client.logout()
    assert client.get(back).status_code == 400


def test_an_answer_to_another_teams_attempt_is_refused(service: SignIn, strangers: Team, provider: Provider) -> None:
    other = configure(strangers, provider, "other.example")
    client = Client()
    back = go(client, service).replace(str(service.pk), str(other.pk))
    refused(client.get(back), "begun elsewhere")


def test_a_login_begins_at_the_address_that_the_service_answers_to(service: SignIn, settings: Any) -> None:
    """Else the answer would find no session."""
    settings.OCTAVO_URL = "http://localhost"
    path = f"/accounts/oidc/{service.pk}/login?next=/t/acme/"
    assert Client().get(path)["Location"] == f"http://localhost{path}"
    assert Client().get(path, headers={"Host": "localhost"}).status_code == 200


def test_a_login_cannot_be_begun_by_a_foreign_page(service: SignIn) -> None:
    client = Client(enforce_csrf_checks=True)
    assert client.post(f"/accounts/oidc/{service.pk}/login").status_code == 403


def test_only_one_of_our_own_addresses_follows_a_login(service: SignIn) -> None:
    for wanted, then in (("/t/acme/c/x", "/t/acme/c/x"), ("https://evil.example/", "/t/acme/")):
        client = Client()
        assert client.get(go(client, service, wanted))["Location"] == then


def test_the_page_says_where_one_goes_and_its_policy_allows_that_alone(service: SignIn, provider: Provider) -> None:
    reply = Client().get(f"/accounts/oidc/{service.pk}/login")
    assert provider.url in page_text(reply)
    assert f"form-action 'self' {provider.url};" in reply["Content-Security-Policy"] + ";"
    assert provider.url not in Client().get("/accounts/login/")["Content-Security-Policy"]


def test_the_address_at_work_leads_to_the_service(service: SignIn) -> None:
    reply = Client().post("/accounts/by-address/", {"email": "Anybody@ACME.example"})
    assert reply["Location"].startswith(f"/accounts/oidc/{service.pk}/login?")
    assert "No team has a sign-in service" in page_text(
        Client().post("/accounts/by-address/", {"email": "x@other.example"})
    )


def test_a_cancelled_sign_in_says_so(service: SignIn) -> None:
    client = Client()
    state = parse_qs(urlsplit(go(client, service)).query)["state"][0]
    reply = client.get(f"/accounts/oidc/{service.pk}/callback?state={state}&error=access_denied")
    assert "You did not sign in" in page_text(reply)


def test_a_second_factor_of_ours_is_asked_for_here_too(service: SignIn) -> None:
    user = person()
    secret = activate_app(logged_in(user))
    client = Client()
    assert arrive(service, client)["Location"].startswith("/accounts/2fa/authenticate/")
    assert user_of(client) is None
    code = code_of(secret, time.time(), ahead=1)
    assert client.post("/accounts/2fa/authenticate/", {"code": code}).status_code == 302
    assert user_of(client) == str(user.pk)


# --- nobody gets into an account through a foreign team -----------------------------------------------------------


def test_another_teams_service_cannot_speak_for_a_domain_that_it_does_not_hold(
    team: Team, strangers: Team, service: SignIn
) -> None:
    """P11. The very same subject and address, signed by another provider, whose team has claimed the domain too."""
    arrive(service)
    before = SocialAccount.objects.count()
    with running() as foreign:
        other = configure(strangers, foreign, "other.example")
        claim_domain(access=strangers.owner, domain="acme.example")
        client = Client()
        reply = arrive(other, client)
        assert "no confirmed claim on acme.example" in page_text(reply)
        assert user_of(client) is None
        assert SocialAccount.objects.count() == before
        assert not Membership.objects.filter(tenant=strangers.tenant, user__email="mira@acme.example").exists()


def test_a_link_opens_nothing_once_the_account_has_another_address(service: SignIn) -> None:
    """The team's service speaks for its domain, not for whoever once had an address there."""
    client = Client()
    arrive(service, client)
    user = User.objects.get(email="mira@acme.example")
    EmailAddress.objects.filter(user=user).update(email="mira@home.example")
    User.objects.filter(pk=user.pk).update(email="mira@home.example")
    client = Client()
    arrive(service, client)
    assert user_of(client) != str(user.pk)


def test_another_subject_cannot_take_an_address_over_that_is_linked(service: SignIn, provider: Provider) -> None:
    arrive(service)
    provider.claims = {"sub": "18"}
    client = Client()
    assert "signs in as mira@acme.example already" in page_text(arrive(service, client))
    assert user_of(client) is None


def test_another_issuer_gets_nothing_of_what_the_former_one_had(team: Team, service: SignIn) -> None:
    arrive(service)
    with running() as other:
        changed = set_service(
            access=team.owner, issuer=other.url, client_id=CLIENT_ID, secret=CLIENT_SECRET, role="member", enabled=True
        )
        assert DomainClaim.objects.get().confirmed_at is None
        assert not SocialAccount.objects.exists()
        assert Client().post(f"/accounts/oidc/{changed.pk}/login").status_code == 404
        assert other.asked == [], "nothing is fetched from an issuer that nobody has confirmed"


def test_operators_are_let_in_by_no_teams_service(service: SignIn) -> None:
    person(is_staff=True)
    refused(arrive(service), "Operators of this Octavo log in with their password")


@pytest.mark.parametrize("change", ["off", "suspended", "removed", "unconfirmed"])
def test_a_service_that_is_not_in_use_does_not_exist(team: Team, service: SignIn, change: str) -> None:
    from django.utils import timezone

    if change == "off":
        SignIn.objects.update(enabled=False)
    elif change == "suspended":
        type(team.tenant).objects.filter(pk=team.tenant.pk).update(suspended_at=timezone.now())
    elif change == "removed":
        remove_service(access=team.owner)
    else:
        DomainClaim.objects.update(confirmed_at=None)
    for path in ("login", "callback?state=x&code=y"):
        assert Client().get(f"/accounts/oidc/{service.pk}/{path}").status_code == 404


def test_a_team_that_is_gone_leaves_no_links(team: Team, service: SignIn) -> None:
    arrive(service)
    assert SocialAccount.objects.exists()
    team.tenant.delete()
    assert not SocialAccount.objects.exists()


def test_who_has_nothing_here_to_prove_himself_by_can_still_set_up_a_second_factor(
    service: SignIn, settings: Any
) -> None:
    """No password, no mail: coming from the team's service was the proof."""
    settings.EMAIL_BACKEND = "django.core.mail.backends.dummy.EmailBackend"
    client = Client()
    arrive(service, client)
    activate_app(client)
    assert client.get("/t/acme/").status_code == 200


# --- services differ ----------------------------------------------------------------------------------------------


def test_a_service_may_want_the_secret_by_basic_authentication(service: SignIn, provider: Provider) -> None:
    provider.basic = True
    provider.person["sub"] = "basic"
    client = Client()
    arrive(service, client)
    assert user_of(client)


def test_an_address_may_come_by_userinfo_of_the_same_person(service: SignIn, provider: Provider) -> None:
    provider.claims = {"email": None, "email_verified": None}
    provider.userinfo = {"sub": "17", "email": "mira@acme.example", "email_verified": True}
    client = Client()
    arrive(service, client)
    assert user_of(client)
    provider.userinfo["sub"] = "18"
    client = Client()
    assert "cannot be trusted" in page_text(arrive(service, client))
    assert user_of(client) is None


@pytest.mark.parametrize("document", [{"issuer": "https://login.elsewhere.example"}, {"token_endpoint": None}])
def test_a_configuration_that_is_not_the_services_own_is_refused(
    service: SignIn, provider: Provider, document: dict[str, Any]
) -> None:
    provider.document = document
    reply = Client().post(f"/accounts/oidc/{service.pk}/login")
    assert reply.status_code == 502
    assert "You are not signed in" in page_text(reply)


def test_endpoints_are_asked_over_tls_only_in_production(service: SignIn, settings: Any) -> None:
    settings.OCTAVO_OIDC_PLAIN = False
    assert Client().post(f"/accounts/oidc/{service.pk}/login").status_code == 502


def test_a_service_that_does_not_answer_is_said_to_be_down(team: Team) -> None:
    with running() as provider:
        service = configure(team, provider, "acme.example")
    cache.clear()
    reply = Client().get(f"/accounts/oidc/{service.pk}/login")
    assert (reply.status_code, "does not answer" in page_text(reply)) == (502, True)


def test_the_secret_is_stored_sealed(service: SignIn, settings: Any) -> None:
    assert CLIENT_SECRET not in service.sealed_secret
    settings.SECRET_KEY = "another " * 10
    assert "enter its service's client secret once more" in page_text(arrive(service)).replace("&#x27;", "'")
