"""Inviting and accepting: one link, one address, once, for three days."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextvars import copy_context
from datetime import timedelta
from typing import Any

import pytest
import time_machine
from allauth.account.models import EmailAddress
from django.core import mail
from django.db import IntegrityError, connection, transaction
from django.utils import timezone

from chatapp.accounts.models import User
from chatapp.audit.models import AuditEntry, AuditPurge
from chatapp.errors import BadInput, Conflict, Forbidden, NotFound, Refusal, TooMany
from chatapp.scope import no_scope, tenant_scope
from chatapp.tenants import invitations, members, tasks
from chatapp.tenants.addresses import Address, clean_name, parse
from chatapp.tenants.invitations import Invited, LinkOver
from chatapp.tenants.models import Invitation, Membership, Role, Tenant
from tests.chat.conftest import Team
from tests.tenants.people import admin_key, join, membership

PASSWORD = "a long enough password"


@pytest.fixture(autouse=True)
def by_hand(settings: Any) -> None:
    """No mail is set up, but where a test says so."""
    settings.EMAIL_BACKEND = "django.core.mail.backends.console.EmailBackend"


@pytest.fixture
def by_mail(settings: Any, monkeypatch: pytest.MonkeyPatch, django_capture_on_commit_callbacks: Any) -> None:
    settings.EMAIL_BACKEND = "django.core.mail.backends.locmem.EmailBackend"
    settings.OCTAVO_URL = "https://octavo.test"
    monkeypatch.setattr(tasks.send_invitation, "apply_async", lambda args, retry: tasks.send_invitation(*args))
    mail.outbox.clear()


def invite(team: Team, text: str, role: str = "member") -> list[Invited]:
    return invitations.invite(access=team.owner, addresses=parse(text), role=role)


def one(team: Team, email: str = "new@acme.test", role: str = "member") -> Invitation:
    invitation = invite(team, email, role)[0].invitation
    assert invitation is not None
    return invitation


def state_of(token: str) -> str:
    with pytest.raises(LinkOver) as over:
        invitations.open_link(token)
    return over.value.code


def entries() -> list[tuple[str, str]]:
    return [(entry.action, entry.object_name) for entry in AuditEntry.objects.order_by("id")]


@pytest.mark.parametrize(("backend", "proved"), [("locmem", True), ("console", False)])
def test_a_link_proves_an_address_only_where_it_came_by_mail(
    team: Team, settings: Any, backend: str, proved: bool
) -> None:
    """Else whoever copies a link could have an account with somebody else's address, and it would count as theirs."""
    settings.EMAIL_BACKEND = f"django.core.mail.backends.{backend}.EmailBackend"
    invitation = one(team, "ada@example.org", "member")
    if proved:
        tasks.send_invitation(str(invitation.pk))
    # Mail that is set up after the link was copied changes nothing about who has it.
    settings.EMAIL_BACKEND = "django.core.mail.backends.locmem.EmailBackend"
    token = invitations.token(invitation)
    _, user = invitations.join_with_new_account(token=token, name="Ada", password=PASSWORD)
    assert EmailAddress.objects.get(user=user).verified is proved


def test_who_has_no_account_makes_one_by_the_link_and_is_in(team: Team) -> None:
    invitation = one(team, "Ada+work@Example.ORG", "editor")
    with no_scope():
        tenant, user = invitations.join_with_new_account(
            token=invitations.token(invitation), name="  Ada\u202e  Lovelace ", password=PASSWORD
        )
    assert tenant == team.tenant
    assert (user.email, user.name) == ("ada+work@example.org", "Ada Lovelace")
    assert user.check_password(PASSWORD)
    assert Membership.objects.get(user=user).role == "editor"
    assert state_of(invitations.token(invitation)) == "used"
    assert entries() == [("invitation.created", "ada+work@example.org"), ("member.joined", "ada+work@example.org")]
    joined = AuditEntry.objects.get(action="member.joined")
    assert joined.actor_name == "ada+work@example.org"
    assert joined.details == {"role": [None, "editor"], "invited_by": invitation.inviter}


def test_who_has_an_account_joins_with_it_whatever_the_case_of_the_address(team: Team, strangers: Team) -> None:
    assert strangers.member.user is not None
    invitation = one(team, "MEMBER@Other.Test", "admin")
    with no_scope():
        invitations.accept(token=invitations.token(invitation), user=strangers.member.user)
    assert Membership.objects.get(tenant=team.tenant, user=strangers.member.user).role == "admin"
    assert Membership.objects.get(tenant=strangers.tenant, user=strangers.member.user).role == "member"


def test_an_account_joins_by_a_further_address_that_it_has_proved(team: Team, strangers: Team) -> None:
    user = strangers.member.user
    assert user is not None
    further = EmailAddress.objects.create(user=user, email="second@home.test", verified=False)
    token = invitations.token(one(team, "second@home.test"))
    with pytest.raises(Forbidden):
        invitations.accept(token=token, user=user)
    EmailAddress.objects.filter(pk=further.pk).update(verified=True)
    invitations.accept(token=token, user=user)
    assert Membership.objects.filter(tenant=team.tenant, user=user).exists()


def test_an_invitation_is_bound_to_its_address(team: Team, strangers: Team) -> None:
    token = invitations.token(one(team))
    assert strangers.member.user is not None
    with pytest.raises(Forbidden, match=r"new@acme\.test"):
        invitations.accept(token=token, user=strangers.member.user)
    assert not Membership.objects.filter(tenant=team.tenant, user=strangers.member.user).exists()
    assert invitations.open_link(token).accepted_at is None


def test_no_second_account_is_made_for_an_address(team: Team, strangers: Team) -> None:
    token = invitations.token(one(team, "member@other.test"))
    with pytest.raises(Conflict) as refused:
        invitations.join_with_new_account(token=token, name="Impostor", password=PASSWORD)
    assert refused.value.code == "account_exists"
    assert User.objects.filter(email__iexact="member@other.test").count() == 1


@pytest.mark.parametrize(
    ("name", "password", "param"),
    [
        ("", PASSWORD, "name"),
        (" \u200b\0 ", PASSWORD, "name"),
        ("x" * 121, PASSWORD, "name"),
        ("Ada", "short", "password"),
        ("Ada", "password123", "password"),
        ("Ada", "", "password"),
    ],
)
def test_a_bad_name_or_password_is_refused_with_its_field_and_uses_nothing_up(
    team: Team, name: str, password: str, param: str
) -> None:
    token = invitations.token(one(team))
    with pytest.raises(BadInput) as refused:
        invitations.join_with_new_account(token=token, name=name, password=password)
    assert refused.value.param == param
    assert not User.objects.filter(email="new@acme.test").exists()
    assert invitations.open_link(token).accepted_at is None


def test_a_link_ends_after_72_hours_and_comes_back_by_sending_it_again(team: Team) -> None:
    with time_machine.travel(timezone.now() - timedelta(hours=72, seconds=-5), tick=False):
        invitation = one(team)
        still = one(team, "still@acme.test")
    token = invitations.token(invitation)
    assert invitations.open_link(token) == invitation
    with time_machine.travel(timezone.now() + timedelta(seconds=6), tick=False):
        assert state_of(token) == "expired"
        with pytest.raises(LinkOver):
            invitations.join_with_new_account(token=token, name="Late", password=PASSWORD)
        fresh = invitations.resend(access=team.owner, invitation_id=invitation.pk)
        assert state_of(token) == "replaced"
        assert invitations.open_link(invitations.token(fresh)) == invitation
        assert invite(team, "still@acme.test")[0].outcome == "invited", "an expired one is no obstacle"
        assert state_of(invitations.token(still)) == "withdrawn"


def test_a_withdrawn_link_and_one_of_a_suspended_team_are_over(team: Team) -> None:
    invitation = one(team)
    token = invitations.token(invitation)
    Tenant.objects.filter(pk=team.tenant.pk).update(suspended_at=timezone.now())
    assert state_of(token) == "closed"
    Tenant.objects.filter(pk=team.tenant.pk).update(suspended_at=None)
    invitations.withdraw(access=team.owner, invitation_id=invitation.pk)
    assert state_of(token) == "withdrawn"
    for act in (invitations.withdraw, invitations.resend):
        with pytest.raises(Conflict):
            act(access=team.owner, invitation_id=invitation.pk)  # type: ignore[operator]
    assert one(team).pk != invitation.pk, "the address can be invited anew"


def test_a_changed_or_invented_link_is_bad(team: Team) -> None:
    token = invitations.token(one(team))
    named, _, signature = token.rpartition(".")
    flipped = ("0" if named[0] != "0" else "1") + named[1:]
    for wrong in ("", ".", "x", token[:-1], token + "x", f"{flipped}.{signature}", named, "\ud800", "\0", "9" * 5000):
        assert state_of(wrong) == "bad", wrong
    Invitation.objects.all().delete()
    assert state_of(token) == "bad"


def test_a_signature_made_for_something_else_opens_nothing(team: Team) -> None:
    from django.core.signing import Signer

    invitation = one(team)
    assert state_of(Signer(sep=".").sign(invitation.pk.hex + invitation.nonce)) == "bad"


def test_an_invitation_neither_raises_nor_resumes_who_is_in_already(team: Team) -> None:
    newcomer = User.objects.create_user("new@acme.test", "a password")
    token = invitations.token(one(team, role="admin"))
    member = Membership.objects.create(tenant=team.tenant, user=newcomer, role=Role.MEMBER)
    members.suspend(access=team.owner, membership_id=member.pk)
    with pytest.raises(Conflict, match="suspended"):
        invitations.accept(token=token, user=newcomer)
    member.refresh_from_db()
    assert member.suspended_at is not None
    members.resume(access=team.owner, membership_id=member.pk)
    invitations.accept(token=token, user=newcomer)
    member.refresh_from_db()
    assert member.role == "member"
    assert state_of(token) == "used"


def test_many_addresses_at_once_have_a_result_each(team: Team) -> None:
    suspended = membership(join(team.tenant, "suspended"))
    members.suspend(access=team.owner, membership_id=suspended.pk)
    one(team, "waiting@acme.test")
    pasted = """Ada Lovelace <ADA@Example.org>, ada@example.org; bob@example.org
    bob+news@example.org\tMEMBER@ACME.test suspended@acme.test waiting@acme.test
    nonsense ünï@example.org anna@bücher.example @ a@b mailto:carl@example.org <>
    dora@x.test <emil@x.test> Fritz frida@x.test"""
    results = {said.email: said.outcome for said in invite(team, pasted)}
    assert results == {
        "ada@example.org": "invited",
        "bob@example.org": "invited",
        "bob+news@example.org": "invited",
        "member@acme.test": "member",
        "suspended@acme.test": "suspended",
        "waiting@acme.test": "open",
        "nonsense": "invalid",
        "ünï@example.org": "invalid",
        "anna@bücher.example": "invited",
        "@": "invalid",
        "a@b": "invalid",
        "carl@example.org": "invited",
        "emil@x.test": "invited",
        "dora@x.test": "invited",
        "frida@x.test": "invited",
    }
    again = {said.email: said.outcome for said in invite(team, "ada@example.org")}
    assert again == {"ada@example.org": "open"}
    assert Invitation.objects.filter(email="ada@example.org").count() == 1


@pytest.mark.parametrize(
    "text", ["a\ud800@x.test", "a@x\ud800.test", "\0a@x.test", "\U0001f600@x.test", "a@" + "b" * 300]
)
def test_odd_characters_are_dropped_or_refused_and_never_stored(team: Team, text: str) -> None:
    for said in invite(team, text):
        said.email.encode()
        assert said.outcome == "invalid" or said.email in ("a@x.test",)


def test_fifty_are_invited_at_once_and_no_more_and_none_is_no_list(team: Team) -> None:
    fifty = "\n".join(f"p{n}@example.org" for n in range(50))
    assert [said.outcome for said in invite(team, fifty)] == ["invited"] * 50
    for wrong in (fifty + "\np50@example.org", "", " ,;\n"):
        with pytest.raises(BadInput) as refused:
            invite(team, wrong)
        assert refused.value.param == "emails"
    assert Invitation.objects.count() == 50


def test_a_team_has_a_most_of_open_invitations(team: Team, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(invitations, "MOST_OPEN", 3)
    invite(team, "a@x.test b@x.test")
    with pytest.raises(BadInput, match="at most 3 open"):
        invite(team, "c@x.test d@x.test")
    assert invite(team, "c@x.test")[0].outcome == "invited"


def test_an_admin_invites_no_owner_and_touches_no_owners_invitation(team: Team) -> None:
    key, _ = admin_key(team.tenant)
    admin = join(team.tenant, "admin", Role.ADMIN)
    owners = one(team, "boss@acme.test", "owner")
    for access in (admin, key):
        with pytest.raises(Forbidden):
            invitations.invite(access=access, addresses=[Address("x@x.test")], role="owner")
        for act in (invitations.resend, invitations.withdraw):
            with pytest.raises(Forbidden):
                act(access=access, invitation_id=owners.pk)  # type: ignore[operator]
        assert not invitations.may_hand_over(access, owners), "its link would make an owner of them"
        assert invitations.invite(access=access, addresses=[Address(f"{access.principal[:4]}@x.test")], role="admin")
    assert invitations.may_hand_over(team.owner, owners)
    for role in (Role.EDITOR, Role.MEMBER, Role.AUDITOR):
        lower = join(team.tenant, f"one-{role}", role)
        with pytest.raises(Forbidden):
            invitations.invite(access=lower, addresses=[Address("x@x.test")], role="member")
        assert not invitations.may_hand_over(lower, one(team, f"{role}@x.test"))
    for role in ("", "king", "\0"):
        with pytest.raises(BadInput) as refused:
            invitations.invite(access=team.owner, addresses=[Address("x@x.test")], role=role)
        assert refused.value.param == "role"


def test_invitations_of_another_team_do_not_exist(team: Team, strangers: Team) -> None:
    """P11."""
    theirs = one(strangers, "x@other.test")
    with tenant_scope(team.tenant):
        for act in (invitations.resend, invitations.withdraw):
            with pytest.raises(NotFound):
                act(access=team.owner, invitation_id=theirs.pk)  # type: ignore[operator]
    assert invitations.open_link(invitations.token(theirs)) == theirs


def test_the_database_holds_one_open_invitation_for_an_address(team: Team) -> None:
    one(team)
    with pytest.raises(IntegrityError), transaction.atomic():
        Invitation.objects.create(tenant=team.tenant, email="new@acme.test", inviter="x", expires_at=timezone.now())


@pytest.mark.usefixtures("by_mail")
def test_where_mail_is_set_up_the_link_goes_by_mail_and_to_nobody_else(
    team: Team, django_capture_on_commit_callbacks: Any
) -> None:
    Tenant.objects.filter(pk=team.tenant.pk).update(name="Acme\nBcc: all@x.test & <Co>")
    with django_capture_on_commit_callbacks(execute=True):
        invitation = one(team, "new@acme.test", "editor")
    invitation.refresh_from_db()
    (sent,) = mail.outbox
    assert sent.to == ["new@acme.test"]
    assert "\n" not in sent.subject
    assert f"https://octavo.test/invitations/{invitations.token(invitation)}\n" in sent.body
    assert "as prompt editor" in sent.body
    assert "& <Co>" in sent.body, "plain text needs no escapes"
    assert len(sent.body.splitlines()) < 12
    assert not sent.alternatives  # type: ignore[attr-defined]
    assert invitation.mailed_at is not None
    assert not invitations.may_hand_over(team.owner, invitation), "the mail proves the address"
    tasks.send_invitation(str(invitation.pk))
    assert len(mail.outbox) == 1, "a task that runs twice sends once"
    with pytest.raises(TooMany):
        invitations.resend(access=team.owner, invitation_id=invitation.pk)
    with (
        time_machine.travel(timezone.now() + timedelta(minutes=2)),
        django_capture_on_commit_callbacks(execute=True),
    ):
        fresh = invitations.resend(access=team.owner, invitation_id=invitation.pk)
    assert len(mail.outbox) == 2
    assert invitations.token(fresh) in mail.outbox[1].body


@pytest.mark.usefixtures("by_mail")
def test_what_was_withdrawn_before_its_mail_left_is_not_sent(team: Team) -> None:
    invitation = one(team)
    invitations.withdraw(access=team.owner, invitation_id=invitation.pk)
    tasks.send_invitation(str(invitation.pk))
    tasks.send_invitation("no id")
    assert mail.outbox == []


@pytest.mark.usefixtures("by_mail")
def test_without_a_broker_the_invitation_stands_and_says_that_no_mail_has_left(
    team: Team, monkeypatch: pytest.MonkeyPatch, django_capture_on_commit_callbacks: Any
) -> None:
    def refuse(**_: Any) -> None:
        raise ConnectionError

    monkeypatch.setattr(tasks.send_invitation, "apply_async", refuse)
    with django_capture_on_commit_callbacks(execute=True):
        invitation = one(team)
    assert invitation.mailed_at is None
    assert invitations.open_link(invitations.token(invitation)) == invitation


@pytest.mark.usefixtures("by_mail")
def test_a_mail_that_the_server_did_not_take_is_tried_again_and_not_called_sent(
    team: Team, monkeypatch: pytest.MonkeyPatch
) -> None:
    invitation = one(team)
    monkeypatch.setattr("django.core.mail.backends.locmem.EmailBackend.send_messages", lambda *_: 0)
    with pytest.raises(tasks.NotSent):
        tasks.send_invitation(str(invitation.pk))
    invitation.refresh_from_db()
    assert invitation.mailed_at is None


@pytest.fixture
def emptied(transactional_db: None) -> Iterator[None]:
    """After a test with real transactions the database is emptied by row; the log's rows have to be let go first."""
    yield
    AuditPurge.objects.bulk_create(AuditPurge(tenant_id=tenant.pk) for tenant in Tenant.objects.all())
    AuditEntry.objects.all().delete()


@pytest.mark.parametrize("account", ["new", "existing"])
def test_a_link_used_twice_at_once_joins_once(emptied: None, team: Team, account: str) -> None:
    user = User.objects.create_user("new@acme.test", "a password") if account == "existing" else None
    token = invitations.token(one(team))
    at_once = threading.Barrier(2)
    outcomes: list[str] = []

    def run() -> None:
        try:
            at_once.wait(10)
            if user is not None:
                invitations.accept(token=token, user=user)
            else:
                invitations.join_with_new_account(token=token, name="New", password=PASSWORD)
            outcomes.append("in")
        except Refusal as refusal:
            outcomes.append(refusal.code)
        finally:
            connection.close()

    threads = [threading.Thread(target=copy_context().run, args=(run,)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert sorted(outcomes) == ["in", "used"]
    assert Membership.objects.filter(tenant=team.tenant, user__email="new@acme.test").count() == 1
    assert AuditEntry.objects.filter(action="member.joined").count() == 1


def test_names_lose_what_nobody_can_see_and_keep_what_scripts_need() -> None:
    assert clean_name(" A\0\u202e b\u200b\n c ") == "A b c"
    assert clean_name("\u202e\u200f") == ""
    for kept in ("👩\u200d🔬 Ada", "\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645", "삼겹살", "José"):
        assert clean_name(kept) == kept
    assert clean_name("e\u0301") == "é"
