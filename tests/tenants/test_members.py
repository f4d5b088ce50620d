"""Who belongs to a team and as what: roles, suspension, removal, ownership; and that a team keeps an owner."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextvars import copy_context
from typing import Any

import pytest
from django.db import connection

from chatapp.accounts.models import User
from chatapp.audit.models import AuditEntry, AuditPurge
from chatapp.chat import selectors as chats
from chatapp.chat.services import ask
from chatapp.errors import BadInput, Conflict, Forbidden, NotFound, Refusal
from chatapp.scope import tenant_scope
from chatapp.tenants import members, selectors
from chatapp.tenants.access import Access, NoAccess, access_for_user, revoked
from chatapp.tenants.models import Membership, Role, Tenant
from chatapp.tenants.permissions import OF_ROLE, Permission
from chatapp.tenants.roles import WORDS, descriptions
from tests.chat.conftest import Team
from tests.tenants.people import admin_key, join, membership


def entries() -> list[tuple[str, str, Any]]:
    return [(entry.action, entry.object_name, entry.details) for entry in AuditEntry.objects.order_by("id")]


def test_a_role_changes_with_its_audit_entry_and_the_former_access_ends(team: Team) -> None:
    member = membership(team.member)
    members.change_role(access=team.owner, membership_id=member.pk, role="admin")
    members.change_role(access=team.owner, membership_id=member.pk, role="admin")  # a double click
    assert entries() == [("member.role_changed", "member@acme.test", {"role": ["member", "admin"]})]
    assert revoked({team.member}) == {team.member}, "its open sockets close"
    assert access_for_user(member.user, "acme").role == "admin"


def test_suspension_closes_this_team_and_no_other_and_resuming_opens_it_again(team: Team, strangers: Team) -> None:
    assert team.member.user is not None
    Membership.objects.create(tenant=strangers.tenant, user=team.member.user)
    there = access_for_user(team.member.user, "other")
    member = membership(team.member)
    members.suspend(access=team.owner, membership_id=member.pk)
    members.suspend(access=team.owner, membership_id=member.pk)
    with pytest.raises(NoAccess):
        access_for_user(team.member.user, "acme")
    assert revoked({team.member, there}) == {team.member}
    assert [tenant.slug for tenant in selectors.tenants_of(team.member.user)] == ["other"]
    assert selectors.closed_teams_of(team.member.user) == ["Acme"]
    members.resume(access=team.owner, membership_id=member.pk)
    members.resume(access=team.owner, membership_id=member.pk)
    assert access_for_user(team.member.user, "acme").role == "member"
    assert [action for action, _, _ in entries()] == ["member.suspended", "member.resumed"]


def test_conversations_of_who_is_removed_are_hidden_and_there_again_on_return(team: Team) -> None:
    assert team.member.user is not None
    conversation = ask(access=team.member, text="Mine").conversation_id
    members.remove(access=team.owner, membership_id=membership(team.member).pk)
    with pytest.raises(NoAccess):
        access_for_user(team.member.user, "acme")
    with pytest.raises(NotFound):
        chats.conversation(team.owner, conversation)
    Membership.objects.create(tenant=team.tenant, user=team.member.user)
    again = access_for_user(team.member.user, "acme")
    assert [found.pk for found in chats.conversations(again).items] == [conversation]
    assert entries() == [("member.removed", "member@acme.test", {"role": ["member", None]})]


def test_anybody_leaves_but_no_key(team: Team) -> None:
    for role in (Role.ADMIN, Role.EDITOR, Role.MEMBER, Role.AUDITOR):
        access = join(team.tenant, f"one-{role}", role)
        members.leave(access=access)
        assert not Membership.objects.filter(user=access.user).exists()
        assert entries()[-1] == ("member.left", f"one-{role}@acme.test", {"role": [role.value, None]})
    with pytest.raises(Forbidden):
        members.leave(access=team.key)


LAST: dict[str, Callable[[Access, Membership], Any]] = {
    "leave": lambda access, own: members.leave(access=access),
    "be demoted": lambda access, own: members.change_role(access=access, membership_id=own.pk, role="admin"),
    "be removed": lambda access, own: members.remove(access=access, membership_id=own.pk),
    "be suspended": lambda access, own: members.suspend(access=access, membership_id=own.pk),
}


@pytest.mark.parametrize("action", LAST)
def test_the_last_owner_cannot(team: Team, action: str) -> None:
    """Neither alone, nor with owners beside who cannot act: suspended ones, closed accounts."""
    for name in ("suspended", "closed"):
        join(team.tenant, name, Role.OWNER)
    members.suspend(
        access=team.owner,
        membership_id=Membership.objects.get(user__email="suspended@acme.test", tenant=team.tenant).pk,
    )
    User.objects.filter(email="closed@acme.test").update(is_active=False)
    before = len(entries())
    with pytest.raises(Conflict):
        LAST[action](team.owner, membership(team.owner))
    assert Membership.objects.filter(user=team.owner.user, role="owner", suspended_at=None).exists()
    assert len(entries()) == before, "what did not happen is not in the log"
    assert members.is_last_owner(team.owner)
    assert team.owner.user is not None


def test_with_a_second_owner_the_first_may_step_down_and_go(team: Team) -> None:
    second = join(team.tenant, "second", Role.OWNER)
    assert not members.is_last_owner(team.owner)
    members.change_role(access=team.owner, membership_id=membership(team.owner).pk, role="member")
    assert members.is_last_owner(second)
    assert team.owner.user is not None
    members.leave(access=access_for_user(team.owner.user, "acme"))


def test_another_owner_can_be_suspended_removed_and_demoted_by_owners_alone(team: Team) -> None:
    admin = join(team.tenant, "admin", Role.ADMIN)
    second = membership(join(team.tenant, "second", Role.OWNER))
    tries: list[Callable[[Access], Any]] = [
        lambda a: members.change_role(access=a, membership_id=second.pk, role="member"),
        lambda a: members.suspend(access=a, membership_id=second.pk),
        lambda a: members.resume(access=a, membership_id=second.pk),
        lambda a: members.remove(access=a, membership_id=second.pk),
    ]
    for act in tries:
        with pytest.raises(Forbidden):
            act(admin)
    for act in (tries[1], tries[2], tries[0]):
        act(team.owner)
    second.refresh_from_db()
    assert (second.role, second.suspended_at) == ("member", None)


def test_an_admin_makes_no_owner_and_nobody_raises_himself(team: Team) -> None:
    admin = join(team.tenant, "admin", Role.ADMIN)
    for target in (team.member, admin):
        with pytest.raises(Forbidden):
            members.change_role(access=admin, membership_id=membership(target).pk, role="owner")
    with pytest.raises(Forbidden):
        members.transfer_ownership(access=admin, membership_id=membership(team.member).pk, confirm="member@acme.test")
    for role in (Role.EDITOR, Role.MEMBER, Role.AUDITOR):
        lower = join(team.tenant, f"a-{role}", role)
        with pytest.raises(Forbidden):
            members.change_role(access=lower, membership_id=membership(lower).pk, role="admin")
    members.change_role(access=admin, membership_id=membership(admin).pk, role="editor")  # down he may


def test_a_key_with_the_admin_scope_manages_members_and_no_owners(team: Team) -> None:
    key, _ = admin_key(team.tenant)
    members.change_role(access=key, membership_id=membership(team.member).pk, role="admin")
    assert AuditEntry.objects.get().actor_kind == "key"
    for act in (
        lambda: members.change_role(access=key, membership_id=membership(team.member).pk, role="owner"),
        lambda: members.suspend(access=key, membership_id=membership(team.owner).pk),
        lambda: members.transfer_ownership(access=key, membership_id=membership(team.member).pk, confirm="x"),
    ):
        with pytest.raises(Forbidden):
            act()


def test_an_access_that_has_just_ended_changes_nothing(team: Team) -> None:
    """Between opening the page and sending the form the owner may have taken the admin's role."""
    admin = join(team.tenant, "admin", Role.ADMIN)
    members.change_role(access=team.owner, membership_id=membership(admin).pk, role="member")
    with pytest.raises(Forbidden, match="just changed"):
        members.suspend(access=admin, membership_id=membership(team.member).pk)


def test_members_of_another_team_do_not_exist(team: Team, strangers: Team) -> None:
    """P11."""
    theirs = membership(strangers.member)
    with tenant_scope(team.tenant):
        for act in (
            lambda: members.change_role(access=team.owner, membership_id=theirs.pk, role="admin"),
            lambda: members.suspend(access=team.owner, membership_id=theirs.pk),
            lambda: members.resume(access=team.owner, membership_id=theirs.pk),
            lambda: members.remove(access=team.owner, membership_id=theirs.pk),
            lambda: members.transfer_ownership(access=team.owner, membership_id=theirs.pk, confirm=theirs.user.email),
            lambda: selectors.member(team.owner, theirs.pk),
        ):
            with pytest.raises(NotFound):
                act()
        assert selectors.members_page(team.owner, search="other").total == 0
    theirs.refresh_from_db()
    assert (theirs.role, theirs.suspended_at) == ("member", None)


def test_ownership_goes_to_a_member_whose_address_was_typed(team: Team) -> None:
    target = membership(team.member)
    for typed in ("", "yes", "owner@acme.test"):
        with pytest.raises(BadInput) as refused:
            members.transfer_ownership(access=team.owner, membership_id=target.pk, confirm=typed)
        assert refused.value.param == "confirm"
    members.transfer_ownership(access=team.owner, membership_id=target.pk, confirm=" Member@ACME.test ")
    assert (membership(team.member).role, membership(team.owner).role) == ("owner", "admin")
    assert entries()[-1] == (
        "ownership.transferred",
        "member@acme.test",
        {"roles": {"member@acme.test": ["member", "owner"], "owner@acme.test": ["owner", "admin"]}},
    )


def test_ownership_goes_neither_to_oneself_nor_to_who_cannot_act(team: Team) -> None:
    members.suspend(access=team.owner, membership_id=membership(team.member).pk)
    for target in (team.owner, team.member):
        with pytest.raises(Conflict):
            members.transfer_ownership(
                access=team.owner, membership_id=membership(target).pk, confirm=membership(target).user.email
            )


@pytest.mark.parametrize("role", ["", "king", "OWNER", "owner\0", "9" * 1000])
def test_what_is_no_role_is_refused_with_its_field(team: Team, role: str) -> None:
    with pytest.raises(BadInput) as refused:
        members.change_role(access=team.owner, membership_id=membership(team.member).pk, role=role)
    assert refused.value.param == "role"


@pytest.fixture
def emptied(transactional_db: None) -> Iterator[None]:
    """After a test with real transactions the database is emptied by row; the log's rows have to be let go first."""
    yield
    AuditPurge.objects.bulk_create(AuditPurge(tenant_id=tenant.pk) for tenant in Tenant.objects.all())
    AuditEntry.objects.all().delete()


@pytest.mark.parametrize("action", ["demote", "leave", "remove", "suspend", "transfer"])
def test_two_owners_who_act_on_each_other_at_once_leave_one(emptied: None, team: Team, action: str) -> None:
    """Each in a thread and connection of its own, many times: whoever comes second finds no right any more."""
    second = join(team.tenant, "second", Role.OWNER)
    pairs = ((team.owner, second), (second, team.owner))
    own = {access.user.pk: membership(access).pk for access in (team.owner, second)}  # type: ignore[union-attr]

    def act(access: Access, other: Access) -> None:
        assert access.user is not None
        assert other.user is not None
        target = own[other.user.pk]
        if action == "demote":
            members.change_role(access=access, membership_id=target, role="member")
        elif action == "leave":
            members.leave(access=access)
        elif action == "remove":
            members.remove(access=access, membership_id=target)
        elif action == "suspend":
            members.suspend(access=access, membership_id=target)
        else:
            members.transfer_ownership(access=access, membership_id=target, confirm=other.user.email)

    for _ in range(5):
        at_once = threading.Barrier(2)
        outcomes: list[str] = []

        def run(access: Access, other: Access, at_once: Any = at_once, outcomes: Any = outcomes) -> None:
            try:
                at_once.wait(10)
                act(access, other)
                outcomes.append("done")
            except Refusal as refusal:
                outcomes.append(refusal.code)
            finally:
                connection.close()

        threads = [threading.Thread(target=copy_context().run, args=(run, *pair)) for pair in pairs]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        owners = Membership.objects.filter(tenant=team.tenant, role="owner", suspended_at=None)
        # Who was handed the team may hand it back: that one action works for both, one after the other.
        assert len(outcomes) == 2
        assert outcomes.count("done") == (2 if action == "transfer" else 1), outcomes
        assert owners.count() == 1
        for user, pk in own.items():
            Membership.objects.filter(pk=pk).delete()
            Membership.objects.create(pk=pk, tenant=team.tenant, user_id=user, role="owner")


def test_the_list_is_searched_narrowed_and_paged(team: Team) -> None:
    users = [User(email=f"p{n:05}@big.test", name=f"Person {n:05}") for n in range(10_000)]
    User.objects.bulk_create(users)
    Membership.objects.bulk_create(
        Membership(tenant=team.tenant, user=user, role="auditor" if n % 100 == 0 else "member")
        for n, user in enumerate(users)
    )
    everybody = selectors.members_page(team.owner)
    assert (everybody.total, everybody.pages, len(everybody.items)) == (10_002, 201, 50)
    assert everybody.previous is None
    assert everybody.next == 2
    last = selectors.members_page(team.owner, page=201)
    assert len(last.items) == 2
    assert last.next is None
    assert selectors.members_page(team.owner, page=10**9).number == 201
    assert selectors.members_page(team.owner, page="x").number == 1
    found = selectors.members_page(team.owner, search="PERSON 04242")
    assert [member.user.email for member in found.items] == ["p04242@big.test"]
    assert selectors.members_page(team.owner, role="auditor").total == 100
    assert selectors.members_page(team.owner, role="nonsense", state="odd").total == 10_002
    members.suspend(access=team.owner, membership_id=found.items[0].pk)
    assert [member.pk for member in selectors.members_page(team.owner, state="suspended").items] == [found.items[0].pk]
    assert selectors.members_page(team.owner, state="active").total == 10_001
    for odd in ("%", "_", "\0", "' OR 1=1 --", "\U0001f600", "a" * 5000):
        assert selectors.members_page(team.owner, search=odd).total in (0, 10_002)


def test_last_seen_is_written_every_few_minutes_and_in_this_team_only(team: Team, strangers: Team) -> None:
    assert team.member.user is not None
    first = membership(team.member).last_seen_at
    assert first is not None
    access_for_user(team.member.user, "acme")
    assert membership(team.member).last_seen_at == first
    other = Membership.objects.create(tenant=strangers.tenant, user=team.member.user)
    assert other.last_seen_at is None


def test_every_permission_has_words_and_roles_are_described_by_the_table() -> None:
    assert set(WORDS) == set(Permission)
    said = {one.role: one.may for one in descriptions()}
    assert said[Role.MEMBER] == "Chat with the assistant."
    assert said[Role.ADMIN].startswith("All that a prompt editor and an auditor may. Also: invite, suspend")
    assert said[Role.OWNER].startswith("All that an admin may. Also: make, change and remove owners")
    assert said[Role.AUDITOR].endswith("Reads no chats, and has none.")
    for role in Role:
        for permission in OF_ROLE[role]:
            heirs = [other for other in Role if OF_ROLE[other] <= OF_ROLE[role]]
            spoken = any(WORDS[permission][1:] in said[other] for other in heirs)
            assert spoken or permission.value.endswith(".read"), (role, permission)
