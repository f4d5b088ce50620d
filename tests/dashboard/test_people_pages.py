"""Members, invitations and settings as pages: who gets in, what is said, and what the invited see."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from chatapp.accounts.models import User
from chatapp.audit.models import AuditEntry
from chatapp.tenants import invitations, members
from chatapp.tenants.models import Invitation, Membership, Role, Tenant
from tests.chat.conftest import Team, server, strangers, team
from tests.tenants.people import join, log_in, membership

__all__ = ["server", "strangers", "team"]

PASSWORD = "a long enough password"
NOBODY = "01890000-0000-7000-8000-000000000000"


@pytest.fixture(autouse=True)
def by_hand(settings: Any) -> None:
    settings.EMAIL_BACKEND = "django.core.mail.backends.console.EmailBackend"


def text_of(reply: Any) -> str:
    return " ".join(re.sub(r"<[^>]+>", " ", reply.content.decode()).split())


def once(reply: Any) -> str:
    found = re.search(r'name="once" value="([^"]+)"', reply.content.decode())
    assert found
    return found[1]


def waiting(team: Team, email: str = "new@acme.test", role: str = "member") -> Invitation:
    from chatapp.tenants.addresses import Address

    invitation = invitations.invite(access=team.owner, addresses=[Address(email)], role=role)[0].invitation
    assert invitation is not None
    return invitation


# --- who gets in ------------------------------------------------------------------------------------------------------

PAGES = {
    "members": ("owner", "admin", "auditor"),
    "members/MEMBER": ("owner", "admin", "auditor"),
    "invitations": ("owner", "admin", "auditor"),
    "invitations/new": ("owner", "admin"),
    "settings": ("owner", "admin"),
}
ACTIONS = [
    "members/MEMBER/role",
    "members/MEMBER/suspend",
    "members/MEMBER/resume",
    "members/MEMBER/remove",
    "members/MEMBER/transfer",
    "invitations/INVITATION/resend",
    "invitations/INVITATION/withdraw",
    "invitations/new",
    "settings",
]


def filled(path: str, team: Team) -> str:
    member = Membership.objects.filter(tenant=team.tenant, user__email=f"member@{team.tenant.slug}.test").first()
    invitation = Invitation.objects.filter(tenant=team.tenant).first()
    path = path.replace("MEMBER", str(member.pk if member else NOBODY))
    return f"/t/{team.tenant.slug}/admin/" + path.replace("INVITATION", str(invitation.pk if invitation else NOBODY))


@pytest.mark.parametrize("path", PAGES)
def test_a_page_opens_for_the_roles_that_it_is_for(team: Team, strangers: Team, path: str) -> None:
    """P11: and not even exists for strangers."""
    address = filled(path, team)
    for role in Role:
        status = log_in(join(team.tenant, f"one-{role}", role)).get(address).status_code
        assert status == (200 if role in PAGES[path] else 403), role
    assert log_in(strangers.owner).get(address).status_code == 404
    assert Client().get(address)["Location"].startswith("/accounts/login/")


@pytest.mark.parametrize("path", ACTIONS)
def test_an_action_is_refused_to_roles_that_lack_it_and_unknown_to_strangers(
    team: Team, strangers: Team, path: str
) -> None:
    """P11."""
    waiting(team)
    waiting(strangers, "x@other.test")
    address = filled(path, team)
    before = AuditEntry.objects.count()
    for role in (Role.EDITOR, Role.MEMBER, Role.AUDITOR):
        reply = log_in(join(team.tenant, f"one-{role}", role)).post(address, {"role": "admin", "name": "Mine"})
        assert reply.status_code == 403, role
        assert "Ask an owner or admin" in text_of(reply)
    assert log_in(strangers.owner).post(address, {"role": "admin"}).status_code == 404
    # Through one's own team, with the foreign id.
    if "MEMBER" in path or "INVITATION" in path:
        own = address.replace("/t/acme/", "/t/other/")
        data = {"role": "admin", "confirm": "member@acme.test"}
        assert log_in(strangers.owner).post(own, data).status_code == 404
    assert log_in(team.owner).get(address.replace("new", "none")).status_code in (404, 405, 200)
    assert AuditEntry.objects.count() == before
    assert membership(team.member).role == "member"


def test_an_address_with_an_unknown_action_does_not_exist(team: Team) -> None:
    waiting(team)
    for path in ("members/MEMBER/crown", "invitations/INVITATION/burn"):
        assert log_in(team.owner).post(filled(path, team)).status_code == 404


# --- members ----------------------------------------------------------------------------------------------------------


def test_the_list_shows_people_with_role_and_state_and_is_searched(team: Team) -> None:
    client = log_in(team.owner)
    members.suspend(access=team.owner, membership_id=membership(team.member).pk)
    page = text_of(client.get("/t/acme/admin/members"))
    assert "owner@acme.test Owner You" in page
    assert "member@acme.test Member Suspended" in page
    assert "All that an admin may. Also: make, change and remove owners" in page
    narrowed = text_of(client.get("/t/acme/admin/members?q=member&state=suspended&role=member"))
    assert "1 person found" in narrowed
    assert "owner@acme.test Owner You" not in narrowed
    assert "Nobody here is like that" in text_of(client.get("/t/acme/admin/members?q=zzz"))
    for odd in ("?page=x", "?page=-1", "?page=999999", "?role=king&state=odd", "?q=%00", "?q=%F0%9F%98%80"):
        assert client.get("/t/acme/admin/members" + odd).status_code == 200, odd


def test_who_is_alone_is_shown_how_to_change_that(team: Team) -> None:
    client = log_in(team.owner)
    assert "You are alone here." not in text_of(client.get("/t/acme/admin/members"))
    members.remove(access=team.owner, membership_id=membership(team.member).pk)
    assert "You are alone here." in text_of(client.get("/t/acme/admin/members"))
    assert "You are alone here." not in text_of(client.get("/t/acme/admin/members?q=owner"))


def test_ten_thousand_members_are_one_page_of_fifty_and_a_pager_that_keeps_the_search(
    team: Team,
) -> None:
    """And take no more queries than two members do, but for what is looked up anew after some seconds."""
    client = log_in(team.owner)

    def opened(query: str) -> tuple[str, int]:
        with CaptureQueriesContext(connection) as queries:
            html = client.get(f"/t/acme/admin/members?{query}").content.decode()
        return html, len(queries)

    opened("q=acme")
    _, few = opened("q=acme")
    users = User.objects.bulk_create(User(email=f"p{n:05}@big.test", name="<b>Person</b>") for n in range(10_000))
    Membership.objects.bulk_create(Membership(tenant=team.tenant, user=user) for user in users)
    html, many = opened("q=big&page=2")
    assert many <= few + 3
    assert html.count("<tr>") == 51
    assert "Page 2 of 200" in html
    assert 'href="?q=big&amp;page=3"' in html
    assert "<b>Person</b>" not in html


def test_an_owner_changes_a_role_suspends_resumes_and_removes(team: Team) -> None:
    client = log_in(team.owner)
    base = filled("members/MEMBER", team)
    for action, data, said in (
        ("role", {"role": "editor"}, "member@acme.test is prompt editor now."),
        ("suspend", {}, "is suspended"),
        ("resume", {}, "may come in again"),
    ):
        reply = client.post(f"{base}/{action}", data, follow=True)
        assert reply.redirect_chain == [(base, 302)]
        assert said in text_of(reply)
    token = once(client.get(base))
    for _ in range(2):  # a double click
        reply = client.post(f"{base}/remove", {"once": token}, follow=True)
        assert reply.redirect_chain == [("/t/acme/admin/members", 302)]
    actions = list(AuditEntry.objects.order_by("id").values_list("action", flat=True))
    assert actions == ["member.role_changed", "member.suspended", "member.resumed", "member.removed"]
    assert client.get(base).status_code == 404


def test_the_last_owner_is_told_why_not_on_the_page_itself(team: Team) -> None:
    client = log_in(team.owner)
    own = f"/t/acme/admin/members/{membership(team.owner).pk}"
    reply = client.post(f"{own}/role", {"role": "member"})
    assert reply.status_code == 409
    assert "last owner" in text_of(reply)
    assert client.post(f"{own}/role", {"role": "king"}).status_code == 400
    reply = client.get("/t/acme/leave")
    assert "last owner" in text_of(reply)
    assert '<button type="submit" class="button danger"' not in reply.content.decode()
    assert client.post("/t/acme/leave").status_code == 409
    assert membership(team.owner).role == "owner"


def test_what_is_done_to_oneself_without_a_role_is_answered_too(team: Team) -> None:
    own = f"/t/acme/admin/members/{membership(team.owner).pk}"
    answers = {action: log_in(team.owner).post(f"{own}/{action}").status_code for action in ("resume", "suspend")}
    assert answers == {"resume": 302, "suspend": 409}


def test_an_owner_who_steps_down_is_led_where_he_still_may_go(team: Team) -> None:
    join(team.tenant, "second", Role.OWNER)
    own = f"/t/acme/admin/members/{membership(team.owner).pk}"
    assert log_in(team.owner).post(f"{own}/role", {"role": "member"})["Location"] == "/t/acme/"


def test_ownership_is_handed_over_by_typing_the_address(team: Team) -> None:
    client = log_in(team.owner)
    base = filled("members/MEMBER", team)
    wrong = client.post(f"{base}/transfer", {"confirm": "yes"})
    assert wrong.status_code == 400
    assert "Type member@acme.test to confirm." in text_of(wrong)
    assert "You are an admin." in text_of(client.post(f"{base}/transfer", {"confirm": "member@acme.test"}, follow=True))
    assert client.post(f"{base}/transfer", {"confirm": "member@acme.test"}).status_code == 403


def test_an_admin_sees_no_buttons_for_owners_and_nothing_to_hand_over(team: Team) -> None:
    admin = log_in(join(team.tenant, "admin", Role.ADMIN))
    page = admin.get(f"/t/acme/admin/members/{membership(team.owner).pk}").content.decode()
    assert "Only owners can change" in page
    assert '<form method="post" action="/t/acme/admin/members' not in page
    page = admin.get(filled("members/MEMBER", team)).content.decode()
    assert 'value="owner"' not in page
    assert "Hand the ownership over" not in page
    assert "Suspend" in page


def test_a_member_leaves_and_finds_the_other_team_or_is_told_that_there_is_none(team: Team, strangers: Team) -> None:
    client = log_in(team.member)
    assert "Leave Acme?" in text_of(client.get("/t/acme/leave"))
    assert client.post("/t/acme/leave")["Location"] == "/"
    page = text_of(client.get("/"))
    assert "You have left Acme." in page
    assert "belong to no team" in page
    assert client.get("/t/acme/").status_code == 404
    assert client.post("/t/acme/leave").status_code == 404
    assert log_in(strangers.owner).get("/t/acme/leave").status_code == 404


def test_who_is_suspended_finds_nothing_there_and_home_says_what_happened(team: Team, strangers: Team) -> None:
    client = log_in(team.member)
    assert client.get("/t/acme/").status_code == 200
    members.suspend(access=team.owner, membership_id=membership(team.member).pk)
    for path in ("/t/acme/", "/t/acme/admin/", "/t/acme/leave", "/api/t/acme/conversations"):
        assert client.get(path).status_code == 404, path
    page = text_of(client.get("/"))
    assert "Your access is suspended" in page
    assert "Acme is closed to you for now" in page
    Membership.objects.create(tenant=strangers.tenant, user=team.member.user)
    assert client.get("/")["Location"] == "/t/other/"
    members.resume(access=team.owner, membership_id=membership(team.member).pk)
    assert client.get("/t/acme/").status_code == 200


def test_an_auditor_who_opens_the_chat_is_led_to_the_administration_and_reads_there(team: Team) -> None:
    auditor = log_in(join(team.tenant, "auditor", Role.AUDITOR))
    reply = auditor.get("/t/acme/", follow=True)
    assert reply.redirect_chain[0][0] == "/t/acme/admin/"
    assert reply.redirect_chain[-1][0].startswith("/t/acme/admin/")
    assert reply.status_code == 200
    html = auditor.get("/t/acme/admin/members").content.decode()
    assert "Invite people" not in html
    assert "/t/acme/admin/settings" not in html
    waiting(team)
    page = auditor.get("/t/acme/admin/invitations").content.decode()
    assert "new@acme.test" in page
    assert "/invitations/" not in page.replace("/admin/invitations", ""), "who only reads gets no link to join by"


# --- inviting ---------------------------------------------------------------------------------------------------------


def test_an_owner_invites_a_pasted_list_and_reads_what_became_of_each(team: Team) -> None:
    client = log_in(team.owner)
    token = once(client.get("/t/acme/admin/invitations/new"))
    data = {"emails": "ada@x.test, MEMBER@acme.test\nnonsense", "role": "member", "once": token}
    reply = client.post("/t/acme/admin/invitations/new", data, follow=True)
    assert reply.redirect_chain == [("/t/acme/admin/invitations", 302)]
    page = text_of(reply)
    assert "ada@x.test Invited" in page
    assert "member@acme.test Not invited Belongs to the team already" in page
    assert "nonsense Not invited Is no email address." in page
    assert f"http://testserver{invitations.path(Invitation.objects.get())}" in page
    assert "What became of the addresses" not in text_of(client.get("/t/acme/admin/invitations"))
    client.post("/t/acme/admin/invitations/new", data)
    assert Invitation.objects.count() == 1


@pytest.mark.parametrize(
    "data",
    [
        {"emails": "", "role": "member"},
        {"emails": " , ", "role": "member"},
        {"emails": "nonsense", "role": "member"},
        {"emails": "a@x.test", "role": "king"},
        {"emails": "a@x.test", "role": ""},
        {"emails": " ".join(f"p{n}@x.test" for n in range(51)), "role": "member"},
        {"emails": "x" * 30_000, "role": "member"},
    ],
)
def test_a_list_that_cannot_be_invited_comes_back_as_it_was_typed(team: Team, data: dict[str, str]) -> None:
    reply = log_in(team.owner).post("/t/acme/admin/invitations/new", data)
    assert reply.status_code == 400
    html = reply.content.decode()
    assert 'class="error"' in html
    assert data["emails"].strip() in html
    assert Invitation.objects.count() == 0


def test_an_invitation_is_sent_again_and_withdrawn(team: Team) -> None:
    client = log_in(team.owner)
    invitation = waiting(team)
    former = invitations.token(invitation)
    base = filled("invitations/INVITATION", team)
    assert "A new link for new@acme.test is made" in text_of(client.post(f"{base}/resend", follow=True))
    assert Client().get(f"/invitations/{former}").status_code == 410
    assert "withdrawn" in text_of(client.post(f"{base}/withdraw", follow=True))
    assert "was withdrawn" in text_of(client.post(f"{base}/resend", follow=True))
    assert "No invitation is open" in text_of(client.get("/t/acme/admin/invitations"))


# --- accepting --------------------------------------------------------------------------------------------------------


def test_the_invited_make_an_account_and_are_in_the_chat(team: Team) -> None:
    path = invitations.path(waiting(team, role="editor"))
    client = Client()
    page = text_of(client.get(path))
    assert "Join Acme" in page
    assert "invites you as prompt editor" in page
    for data, status, said in (
        ({"name": "", "password": PASSWORD, "again": PASSWORD}, 400, "required"),
        ({"name": "New", "password": PASSWORD, "again": "other"}, 400, "two passwords differ"),
        ({"name": "New", "password": "short", "again": "short"}, 400, "too short"),
    ):
        reply = client.post(path, data)
        assert reply.status_code == status
        assert said in text_of(reply)
        assert PASSWORD not in reply.content.decode()
    reply = client.post(path, {"name": "New", "password": PASSWORD, "again": PASSWORD}, follow=True)
    assert reply.redirect_chain == [("/t/acme/", 302)]
    assert reply.status_code == 200
    assert client.get(path)["Location"] == "/t/acme/", "the link leads in who used it"
    assert Client().get(path).status_code == 410
    again = Client()
    login = again.post("/accounts/login/", {"login": "NEW@acme.test", "password": PASSWORD})
    assert login.status_code == 302, "the account works without the link"


def test_signing_up_is_closed_to_everybody_else(db: None) -> None:
    reply = Client().post("/accounts/signup/", {"email": "x@x.test", "password1": PASSWORD, "password2": PASSWORD})
    assert not User.objects.exists()
    assert reply.status_code == 400


def test_who_has_an_account_logs_in_and_joins_by_one_click(team: Team, strangers: Team) -> None:
    path = invitations.path(waiting(team, "member@other.test"))
    client = Client()
    page = client.get(path)
    assert "has an account here already" in text_of(page)
    found = re.search(r'href="(/accounts/login/\?next=[^"]+)"', page.content.decode())
    assert found
    refused = client.post(path, {"name": "Impostor", "password": PASSWORD, "again": PASSWORD})
    assert refused.status_code == 409
    reply = client.post(found[1], {"login": "member@other.test", "password": "a password"}, follow=True)
    assert "You are logged in as member@other.test" in text_of(reply)
    assert client.post(path)["Location"] == "/t/acme/"
    assert client.post(path)["Location"] == "/t/acme/", "a second click leads in as well"
    assert Membership.objects.filter(user=strangers.member.user).count() == 2


def test_who_is_logged_in_as_another_is_told_and_comes_back_after_logging_out(team: Team, strangers: Team) -> None:
    path = invitations.path(waiting(team))
    client = log_in(strangers.member)
    page = text_of(client.get(path))
    assert "The invitation is for new@acme.test , and you are logged in as member@other.test" in page
    assert client.post(path).status_code == 403
    reply = client.post("/accounts/logout/", {"next": path}, follow=True)
    assert reply.redirect_chain[-1][0] == path
    assert "Make account and join" in text_of(reply)


def test_links_that_are_over_say_what_to_do(team: Team) -> None:
    invitation = waiting(team)
    path = invitations.path(invitation)

    def said(path: str) -> tuple[int, str]:
        reply = Client().get(path)
        assert Client().post(path, {"name": "x"}).status_code == reply.status_code
        return reply.status_code, text_of(reply)

    Invitation.objects.update(expires_at=timezone.now())
    assert (said(path)[0], "has expired" in said(path)[1]) == (410, True)
    Tenant.objects.filter(pk=team.tenant.pk).update(suspended_at=timezone.now())
    assert (said(path)[0], "closed at the moment" in said(path)[1]) == (410, True)
    Tenant.objects.filter(pk=team.tenant.pk).update(suspended_at=None)
    invitations.withdraw(access=team.owner, invitation_id=invitation.pk)
    assert (said(path)[0], "was withdrawn" in said(path)[1]) == (410, True)
    for wrong in (path[:-1], path + "x", "/invitations/x", "/invitations/%00", "/invitations/%F0%9F%98%80"):
        status, text = said(wrong)
        assert (status, True) == (404, "is no invitation" in text), wrong


def test_a_link_needs_no_login_and_its_page_is_not_kept(team: Team) -> None:
    reply = Client().get(invitations.path(waiting(team)))
    assert reply.status_code == 200
    assert "no-store" in reply["Cache-Control"]
    assert Client().put(invitations.path(waiting(team, "z@x.test"))).status_code == 405


# --- settings ---------------------------------------------------------------------------------------------------------


def test_an_admin_names_and_colours_the_team(team: Team) -> None:
    client = log_in(join(team.tenant, "admin", Role.ADMIN))
    assert client.get("/t/acme/admin/settings").content.decode().count('name="accent"') == 8
    data = {"name": "  Acme\u202e & Söhne\n ", "accent": "plum"}
    reply = client.post("/t/acme/admin/settings", data, follow=True)
    assert "The settings are saved." in text_of(reply)
    assert 'data-accent="plum"' in reply.content.decode()
    entry = AuditEntry.objects.get()
    assert (entry.action, entry.details) == (
        "team.changed",
        {"name": ["Acme", "Acme & Söhne"], "accent": ["teal", "plum"]},
    )
    client.post("/t/acme/admin/settings", data)
    assert AuditEntry.objects.count() == 1, "what changes nothing is no entry"


@pytest.mark.parametrize(
    "data",
    [
        {"name": "", "accent": "plum"},
        {"name": "\u200b", "accent": "plum"},
        {"name": "x" * 121, "accent": "plum"},
        {"name": "Fine", "accent": "mauve"},
        {"name": "Fine"},
    ],
)
def test_settings_that_make_no_sense_come_back_with_the_field(team: Team, data: dict[str, str]) -> None:
    reply = log_in(team.owner).post("/t/acme/admin/settings", data)
    assert reply.status_code == 400
    assert 'class="error"' in reply.content.decode()
    assert Tenant.objects.get(pk=team.tenant.pk).name == "Acme"
