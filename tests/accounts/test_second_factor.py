"""Second factors: codes of an app, recovery codes, and teams and operators that require one."""

from __future__ import annotations

import json
import re
import time
from typing import Any

import pytest
import time_machine
from allauth.core.context import request_context
from allauth.mfa.models import Authenticator
from django.test import Client

from chatapp.accounts.models import User
from chatapp.api.guard import Watch, _ended
from chatapp.audit.models import AuditEntry
from chatapp.errors import Conflict
from chatapp.tenants.access import MfaRequired, access_for_user, revoked
from chatapp.tenants.sign_in import MfaRule, SignIn
from chatapp.tenants.sign_in_services import require_second_factor
from tests.accounts.conftest import PASSWORD, activate_app, code_of, log_in, logged_in, page_text, person
from tests.chat.conftest import Team

pytestmark = pytest.mark.django_db
AUTHENTICATE = "/accounts/2fa/authenticate/"


def user_of(client: Client) -> str | None:
    return client.session.get("_auth_user_id")


def give_app(user: User) -> None:
    from allauth.mfa.totp.internal.auth import TOTP, generate_totp_secret

    TOTP.activate(user, generate_totp_secret())


def test_with_an_app_the_password_alone_opens_nothing() -> None:
    user = person()
    secret = activate_app(logged_in(user))
    client = Client()
    assert log_in(user.email, client=client)["Location"].startswith(AUTHENTICATE)
    assert client.get("/accounts/")["Location"].startswith("/accounts/login/")
    assert user_of(client) is None
    assert "This code is not right" in page_text(client.post(AUTHENTICATE, {"code": "000000"}))
    assert client.post(AUTHENTICATE, {"code": code_of(secret, time.time(), ahead=1)}).status_code == 302
    assert user_of(client) == str(user.pk)


def test_a_code_works_once_and_half_a_minute_off_but_not_more() -> None:
    user = person()
    secret = activate_app(logged_in(user))
    code = code_of(secret, time.time(), ahead=1)
    for expected in (str(user.pk), None):
        client = Client()
        log_in(user.email, client=client)
        client.post(AUTHENTICATE, {"code": code})
        assert user_of(client) == expected
    client = Client()
    log_in(user.email, client=client)
    client.post(AUTHENTICATE, {"code": code_of(secret, time.time(), ahead=3)})
    assert user_of(client) is None


def test_codes_cannot_be_guessed() -> None:
    user = person()
    secret = activate_app(logged_in(user))
    client = Client()
    log_in(user.email, client=client)
    for _ in range(5):
        client.post(AUTHENTICATE, {"code": "000000"})
    text = page_text(client.post(AUTHENTICATE, {"code": code_of(secret, time.time(), ahead=1)}))
    assert re.search(r"tried too often. Try again in \d minutes", text), text
    assert user_of(client) is None
    failed = AuditEntry.objects.filter(action="account.factor_failed")
    assert failed.count() == 5
    assert {(entry.tenant_id, entry.actor_name) for entry in failed} == {(None, user.email)}


def test_recovery_codes_are_shown_once_and_work_once() -> None:
    user = person()
    client = logged_in(user)
    activate_app(client)
    shown = re.findall(r"<li><code>(\w+)</code></li>", client.get("/accounts/2fa/recovery-codes/").content.decode())
    assert len(shown) == 10
    assert shown[0] not in client.get("/accounts/2fa/recovery-codes/").content.decode()
    for expected in (str(user.pk), None):
        client = Client()
        log_in(user.email, client=client)
        client.post(AUTHENTICATE, {"code": shown[0]})
        assert user_of(client) == expected


def test_secrets_of_second_factors_are_stored_sealed(settings: Any) -> None:
    user = person()
    secret = activate_app(logged_in(user))
    assert secret not in json.dumps(list(Authenticator.objects.values_list("data", flat=True)))
    former, settings.SECRET_KEY = settings.SECRET_KEY, "another " * 10
    client = Client()
    log_in(user.email, client=client)
    for secret_tried in (secret, "", "A" * 32):
        client.post(AUTHENTICATE, {"code": code_of(secret_tried, time.time()) if secret_tried else "328482"})
    assert user_of(client) is None, "with another key no code is right"
    settings.SECRET_KEY, settings.SECRET_KEY_FALLBACKS = "another " * 10, [former]
    client = Client()
    log_in(user.email, client=client)
    client.post(AUTHENTICATE, {"code": code_of(secret, time.time(), ahead=1)})
    assert user_of(client) == str(user.pk), "a former key still opens"


def test_setting_up_or_removing_asks_for_the_password_again() -> None:
    user = person()
    client = Client()
    log_in(user.email, client=client)
    with time_machine.travel(time.time() + 600):
        for path in ("totp/activate/", "webauthn/add/", "recovery-codes/generate/"):
            reply = client.get(f"/accounts/2fa/{path}")
            assert reply["Location"].startswith("/accounts/reauthenticate/?next="), path
        assert "This is not your password" in page_text(client.post("/accounts/reauthenticate/", {"password": "wrong"}))
        assert client.post("/accounts/reauthenticate/", {"password": PASSWORD}).status_code == 302
        assert client.get("/accounts/2fa/totp/activate/").status_code == 200


def test_removing_the_app_makes_the_password_enough_again_and_is_noted(
    django_capture_on_commit_callbacks: Any, rf: Any
) -> None:
    user = person()
    client = logged_in(user)
    with django_capture_on_commit_callbacks() as after_commit:
        activate_app(client)
    with request_context(rf.get("/")):
        for callback in after_commit:
            callback()
    assert client.post("/accounts/2fa/totp/deactivate/").status_code == 302
    again = Client()
    log_in(user.email, client=again)
    assert user_of(again) == str(user.pk)
    noted = AuditEntry.objects.filter(tenant=None).values_list("action", "details__factor")
    assert ("account.factor_added", "authenticator app") in noted
    assert ("account.factor_removed", "authenticator app") in noted
    assert ("account.factor_removed", "recovery codes") in noted


# --- where one is required ----------------------------------------------------------------------------------------


def test_who_must_have_one_and_has_none_is_led_to_setting_it_up_and_back(team: Team) -> None:
    SignIn.objects.create(tenant=team.tenant, mfa=MfaRule.EVERYONE)
    client = Client()
    client.force_login(team.member.user, backend="django.contrib.auth.backends.ModelBackend")
    reply = client.get("/t/acme/?x=1", follow=True)
    assert reply.redirect_chain[-1][0] == "/accounts/2fa/"
    assert "Acme asks for a second factor" in page_text(reply)
    team.member.user.set_password(PASSWORD)
    team.member.user.save()
    assert isinstance(team.member.user, User)
    client = logged_in(team.member.user)
    client.get("/t/acme/?x=1")
    activate_app(client)
    assert 'href="/t/acme/?x=1"' in client.get("/accounts/2fa/recovery-codes/").content.decode()
    assert client.get("/t/acme/?x=1").status_code == 200
    assert 'href="/t/acme/?x=1"' not in client.get("/accounts/2fa/").content.decode()


def test_the_apis_answer_mfa_required(team: Team) -> None:
    SignIn.objects.create(tenant=team.tenant, mfa=MfaRule.EVERYONE)
    client = Client()
    client.force_login(team.owner.user, backend="django.contrib.auth.backends.ModelBackend")
    for path in ("/api/t/acme/audit", "/api/t/acme/conversations"):
        reply = client.get(path)
        assert (reply.status_code, reply.json()["error"]["code"]) == (403, "mfa_required"), path
    bearer = {"Authorization": f"Bearer {team.secret}"}
    reply = Client().get("/api/t/acme/audit", headers=bearer)
    assert reply.json()["error"]["code"] == "not_allowed", "keys have no second factor and need none"


def test_other_teams_of_the_same_person_stay_open(team: Team, strangers: Team) -> None:
    from chatapp.tenants.services import add_member

    SignIn.objects.create(tenant=team.tenant, mfa=MfaRule.EVERYONE)
    add_member(tenant=strangers.tenant, user=team.member.user, role="member")  # type: ignore[arg-type]
    client = Client()
    client.force_login(team.member.user, backend="django.contrib.auth.backends.ModelBackend")
    assert client.get("/t/other/").status_code == 200


def test_the_rule_covers_whom_it_names(team: Team) -> None:
    row = SignIn.objects.create(tenant=team.tenant)
    for rule, closed in (("none", set()), ("managers", {"owner"}), ("everyone", {"owner", "member"})):
        row.mfa = rule
        row.save()
        shut = set()
        for name in ("owner", "member"):
            try:
                access_for_user(getattr(team, name).user, "acme")
            except MfaRequired:
                shut.add(name)
        assert shut == closed, rule


def test_open_sockets_end_when_the_rule_begins(team: Team) -> None:
    watches = [Watch(access, None, lambda: None) for access in (team.owner, team.member, team.key)]
    assert _ended(watches) == []
    give_app(team.owner.user)  # type: ignore[arg-type]
    require_second_factor(access=team.owner, rule="everyone")
    assert [watch.access for watch in _ended(watches)] == [team.member]


def test_nobody_locks_himself_out(team: Team) -> None:
    with pytest.raises(Conflict, match="Set up a second factor for yourself first"):
        require_second_factor(access=team.owner, rule="managers")
    assert revoked([team.owner]) == set()
    give_app(team.owner.user)  # type: ignore[arg-type]
    assert require_second_factor(access=team.owner, rule="managers").mfa == "managers"
    entry = AuditEntry.objects.get(action="sign_in.mfa_changed")
    assert (entry.tenant_id, entry.details) == (team.tenant.pk, {"mfa": ["none", "managers"]})


def test_a_foreign_team_does_not_say_that_it_wants_a_second_factor(team: Team, strangers: Team) -> None:
    """P11: it does not exist."""
    SignIn.objects.create(tenant=strangers.tenant, mfa=MfaRule.EVERYONE)
    client = Client()
    client.force_login(team.member.user, backend="django.contrib.auth.backends.ModelBackend")
    assert client.get("/t/other/").status_code == 404


def test_operators_can_be_required_to_have_one(settings: Any) -> None:
    user = person("op@acme.example", is_staff=True, is_superuser=True)
    client = logged_in(user)
    assert client.get("/admin/").status_code == 200
    settings.OCTAVO_OPERATOR_MFA = True
    for path in ("/admin/", "/admin/tenants/tenant/", "/admin/occupancy/"):
        reply = client.get(path, follow=True)
        assert reply.redirect_chain[-1][0] == "/accounts/2fa/", path
        assert "Operators need a second factor here" in page_text(reply), path
    activate_app(client)
    assert client.get("/admin/").status_code == 200


async def test_the_operators_socket_wants_it_as_well(transactional_db: None, settings: Any) -> None:
    from asgiref.sync import sync_to_async
    from channels.testing import WebsocketCommunicator

    from chatapp.dashboard.consumers import OccupancyConsumer

    settings.OCTAVO_OPERATOR_MFA = True
    user = await sync_to_async(person)("op@acme.example", is_staff=True, is_superuser=True)
    socket = WebsocketCommunicator(OccupancyConsumer.as_asgi(), "/ws/ops/occupancy")
    socket.scope["user"] = user
    assert (await socket.connect())[0]
    assert (await socket.receive_output(timeout=5))["code"] == 4403


async def test_the_socket_of_the_pages_answers_mfa_required(transactional_db: None, server: Any) -> None:
    from asgiref.sync import sync_to_async
    from channels.testing import WebsocketCommunicator

    from chatapp.api.consumers import UiConsumer
    from tests.chat.conftest import make_team

    def prepare() -> Team:
        made = make_team("acme")
        SignIn.objects.create(tenant=made.tenant, mfa=MfaRule.EVERYONE)
        return made

    made = await sync_to_async(prepare)()
    socket = WebsocketCommunicator(UiConsumer.as_asgi(), "/ws/ui?tenant=acme")
    socket.scope["user"] = made.member.user
    socket.scope["session"] = None
    assert (await socket.connect())[0]
    told = json.loads((await socket.receive_output(timeout=5))["text"])
    assert (told["type"], told["code"]) == ("error", "mfa_required")
    assert (await socket.receive_output(timeout=5))["code"] == 4403
