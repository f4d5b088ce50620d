"""Members, invitations and settings over the HTTP API: the pages' actions for programs."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client

from chatapp.audit.models import AuditEntry
from chatapp.tenants.addresses import Address
from chatapp.tenants.invitations import invite, path
from chatapp.tenants.models import Invitation, Membership, Role, Tenant
from tests.chat.conftest import Team, server, strangers, team
from tests.tenants.people import admin_key, join, log_in, membership

__all__ = ["server", "strangers", "team"]

JSON = "application/json"


@pytest.fixture(autouse=True)
def by_hand(settings: Any) -> None:
    settings.EMAIL_BACKEND = "django.core.mail.backends.console.EmailBackend"


def call(client: Client, method: str, address: str, data: Any = None, **headers: Any) -> tuple[int, Any]:
    reply = getattr(client, method)(f"/api/t/acme/{address}", data, content_type=JSON, **headers)
    return reply.status_code, reply.json() if reply.content else None


def test_members_are_listed_changed_suspended_and_removed(team: Team) -> None:
    client = log_in(team.owner)
    member = membership(team.member)
    status, listed = call(client, "get", "members")
    assert (status, listed["total"], [m["email"] for m in listed["items"]]) == (
        200, 2, ["member@acme.test", "owner@acme.test"],
    )  # fmt: skip
    assert listed["items"][0]["last_seen_at"]
    reply = client.get("/api/t/acme/members?q=MEMBER@&role=member&state=active&page=1").json()
    assert [m["id"] for m in reply["items"]] == [str(member.pk)]
    assert call(client, "get", f"members/{member.pk}")[1]["role"] == "member"
    assert call(client, "patch", f"members/{member.pk}", {"role": "admin"})[1]["role"] == "admin"
    assert call(client, "post", f"members/{member.pk}/suspend")[1]["suspended_at"]
    assert call(client, "post", f"members/{member.pk}/resume")[1]["suspended_at"] is None
    assert call(client, "delete", f"members/{member.pk}") == (204, None)
    assert call(client, "delete", f"members/{member.pk}")[0] == 404
    actions = AuditEntry.objects.order_by("id").values_list("action", flat=True)
    assert list(actions) == ["member.role_changed", "member.suspended", "member.resumed", "member.removed"]


def test_roles_say_what_they_may(team: Team) -> None:
    _, roles = call(log_in(team.owner), "get", "roles")
    assert [role["role"] for role in roles] == Role.values
    assert roles[3]["description"] == "Chat with the assistant."
    assert roles[3]["permissions"] == ["chat"]


def test_the_last_owner_gets_a_conflict_by_every_way(team: Team) -> None:
    client = log_in(team.owner)
    own = membership(team.owner).pk
    for method, address, data in (
        ("patch", f"members/{own}", {"role": "member"}),
        ("delete", f"members/{own}", None),
        ("post", f"members/{own}/suspend", None),
        ("post", "leave", None),
    ):
        assert call(client, method, address, data)[0] == 409, address
    assert membership(team.owner).role == "owner"


def test_ownership_is_handed_over_with_the_address_as_confirmation(team: Team) -> None:
    client = log_in(team.owner)
    body = {"member_id": str(membership(team.member).pk), "confirm": "yes"}
    status, answer = call(client, "post", "ownership", body)
    assert (status, answer["error"]["param"]) == (400, "confirm")
    assert call(client, "post", "ownership", body | {"confirm": "member@acme.test"})[1]["role"] == "owner"
    assert call(client, "post", "ownership", body)[0] == 403, "an admin now"
    assert call(client, "post", "leave") == (204, None)


def test_a_key_of_the_admin_scope_invites_and_reads_and_touches_no_owner(team: Team) -> None:
    key, secret = admin_key(team.tenant)
    bearer = {"headers": {"Authorization": f"Bearer {secret}"}}
    client = Client()
    status, answer = call(client, "post", "invitations", {"emails": ["a@x.test", "zzz"]}, **bearer)
    assert status == 200
    assert [(item["email"], item["outcome"]) for item in answer["items"]] == [
        ("a@x.test", "invited"),
        ("zzz", "invalid"),
    ]
    made = Invitation.objects.get()
    assert made.invited_by is None
    assert made.inviter == str(key.key)
    assert answer["items"][0]["invitation"]["link"] == f"http://testserver{path(made)}"
    assert call(client, "post", "invitations", {"emails": ["b@x.test"], "role": "owner"}, **bearer)[0] == 403
    assert call(client, "patch", f"members/{membership(team.owner).pk}", {"role": "member"}, **bearer)[0] == 403
    assert call(client, "post", "leave", **bearer)[0] == 403
    body = {"member_id": str(membership(team.member).pk), "confirm": "member@acme.test"}
    assert call(client, "post", "ownership", body, **bearer)[0] == 403


def test_invitations_are_listed_sent_again_and_withdrawn(team: Team) -> None:
    client = log_in(team.owner)
    made = invite(access=team.owner, addresses=[Address("a@x.test")], role="owner")[0].invitation
    assert made is not None
    admin = log_in(join(team.tenant, "admin", Role.ADMIN))
    assert call(admin, "get", "invitations")[1]["items"][0]["link"] is None, "it would make an owner"
    former = call(client, "get", "invitations")[1]["items"][0]["link"]
    _, again = call(client, "post", f"invitations/{made.pk}/resend")
    assert again["link"] not in (None, former)
    assert call(client, "delete", f"invitations/{made.pk}") == (204, None)
    assert call(client, "delete", f"invitations/{made.pk}")[0] == 409
    assert call(client, "get", "invitations")[1]["total"] == 0


def test_settings_are_read_and_changed_in_part(team: Team) -> None:
    client = log_in(team.owner)
    assert call(client, "get", "settings")[1]["name"] == "Acme"
    assert call(client, "patch", "settings", {"accent": "moss"})[1]["accent"] == "moss"
    assert call(client, "patch", "settings", {})[0] == 200
    assert call(client, "patch", "settings", {"name": " N\u0000 ew "})[1]["name"] == "N ew"
    status, answer = call(client, "patch", "settings", {"name": " "})
    assert (status, answer["error"]["param"]) == (400, "name")
    assert Tenant.objects.get(pk=team.tenant.pk).accent == "moss"


BAD: list[tuple[str, str, Any, str]] = [
    ("patch", "members/ID", {}, "role"),
    ("patch", "members/ID", {"role": "king"}, "role"),
    ("patch", "members/ID", {"role": None}, "role"),
    ("post", "ownership", {"member_id": "x", "confirm": ""}, "member_id"),
    ("post", "invitations", {"emails": []}, "emails"),
    ("post", "invitations", {"emails": ["  "]}, "emails"),
    ("post", "invitations", {"emails": "a@x.test"}, "emails"),
    ("post", "invitations", {"emails": ["a@x.test"] * 51}, "emails"),
    ("post", "invitations", {"emails": [" ".join(f"b{n}@x.test" for n in range(51))]}, "emails"),
    ("post", "invitations", {"emails": ["a@x.test"], "role": "king"}, "role"),
    ("get", "members?role=king", None, "role"),
    ("get", "members?state=odd", None, "state"),
    ("get", "members?limit=0", None, "limit"),
    ("get", "members?limit=x", None, "limit"),
    ("get", "members?cursor=x", None, "cursor"),
    ("get", "invitations?cursor=WzEsMl0", None, "cursor"),
    ("get", "limits/lower?cursor=bnVsbA", None, "cursor"),
    ("patch", "settings", {"accent": "mauve"}, "accent"),
    ("patch", "settings", {"name": 5}, "name"),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(BAD)))
def test_bad_input_is_refused_with_its_field(team: Team, number: int) -> None:
    method, address, data, param = BAD[number]
    address = address.replace("ID", str(membership(team.member).pk))
    status, answer = call(log_in(team.owner), method, address, data)
    assert status == 400, answer
    assert str(answer["error"]["param"]).split(".")[-1] in (param, "0") or param in str(answer["error"]["param"])
    assert not AuditEntry.objects.exists()


OPERATIONS = [
    ("get", "members"), ("get", "members/MEMBER"), ("patch", "members/MEMBER"), ("delete", "members/MEMBER"),
    ("post", "members/MEMBER/suspend"), ("post", "members/MEMBER/resume"), ("post", "ownership"), ("get", "roles"),
    ("get", "invitations"), ("post", "invitations"), ("post", "invitations/INVITATION/resend"),
    ("delete", "invitations/INVITATION"), ("get", "settings"), ("patch", "settings"),
]  # fmt: skip
BODY = {"role": "admin", "emails": ["x@x.test"], "name": "Mine", "member_id": "MEMBER", "confirm": "member@acme.test"}


@pytest.mark.parametrize(("method", "address"), OPERATIONS)
def test_every_operation_is_unknown_to_strangers_and_refused_to_members(
    team: Team, strangers: Team, method: str, address: str
) -> None:
    """P11: by session, by key, and with the foreign id through one's own team."""
    made = invite(access=team.owner, addresses=[Address("a@x.test")], role="member")[0].invitation
    assert made is not None
    member = str(membership(team.member).pk)
    address = address.replace("MEMBER", member).replace("INVITATION", str(made.pk))
    body = {**BODY, "member_id": member}
    before = AuditEntry.objects.count()
    assert call(log_in(team.member), method, address, body)[0] == 403
    assert call(log_in(strangers.owner), method, address, body)[0] == 404
    key = {"headers": {"Authorization": f"Bearer {strangers.secret}"}}
    assert call(Client(), method, address, body, **key)[0] == 404
    assert call(Client(), method, address, body)[0] == 401
    if member in address or str(made.pk) in address or address == "ownership":
        there = getattr(log_in(strangers.owner), method)(f"/api/t/other/{address}", body, content_type=JSON)
        assert there.status_code == 404
    assert AuditEntry.objects.count() == before
    assert Membership.objects.filter(pk=member, role="member", suspended_at=None).exists()


def test_a_stranger_cannot_leave_for_anybody(team: Team, strangers: Team) -> None:
    """P11."""
    assert call(log_in(strangers.owner), "post", "leave")[0] == 404
    assert Membership.objects.filter(tenant=team.tenant).count() == 2


def test_a_change_by_session_needs_the_csrf_token(team: Team) -> None:
    client = Client(enforce_csrf_checks=True)
    client.force_login(team.owner.user, backend="django.contrib.auth.backends.ModelBackend")
    assert call(client, "post", f"members/{membership(team.member).pk}/suspend")[0] == 403
    assert membership(team.member).suspended_at is None
