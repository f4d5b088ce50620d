"""A snapshot for the team: of one branch at one moment, for whoever of the team has the link, until it ends."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from chatapp.accounts.models import User
from chatapp.audit.models import AuditEntry
from chatapp.chat.conversations import delete, restore
from chatapp.chat.models import Conversation, Message
from chatapp.chat.services import ask
from chatapp.data.own import delete_account
from chatapp.data.retention import purge_conversations, sweep_all
from chatapp.errors import BadInput, Conflict, Forbidden, NotFound
from chatapp.shares import services
from chatapp.shares.models import Share
from chatapp.tenants.access import Access, access_for_user
from chatapp.tenants.members import leave, suspend
from chatapp.tenants.models import Membership, Role
from chatapp.tenants.services import add_member
from tests.chat.conftest import Team
from tests.moving.conftest import a_tree, logged_in, server, strangers, team, worker

__all__ = ["server", "strangers", "team", "worker"]

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _commits(monkeypatch: pytest.MonkeyPatch) -> None:
    from django.db import transaction

    monkeypatch.setattr(transaction, "on_commit", lambda work, **kw: work())


def someone(team: Team, role: Role) -> Access:
    user = User.objects.create_user(f"{role}-two@acme.test", "a password")
    add_member(tenant=team.tenant, user=user, role=role)
    return access_for_user(user, "acme")


def page(access: Access, made: Share) -> Any:
    return logged_in(access).get(f"/t/acme/shared/{made.pk}")


def test_a_snapshot_is_the_shown_branch_as_it_was(team: Team) -> None:
    chat = a_tree(team.member)
    made = services.share(access=team.member, conversation_id=chat.pk)
    assert [one["text"] for one in made.messages][-1] == "# Both\n\npull."
    assert made.messages[-1]["model"] == "small"
    assert len(made.messages) == 2
    Message.objects.create(conversation=chat, role="user", text="LATER", parent=chat.messages.last())
    chat.messages.filter(text="# Both\n\npull.").update(text="CHANGED")
    text = page(team.owner, made).content.decode()
    assert "# Both" in text
    assert "LATER" not in text
    assert "CHANGED" not in text
    other = services.share(
        access=team.member, conversation_id=chat.pk, leaf_id=chat.messages.get(text="And the sun?").pk
    )
    assert [one["text"] for one in other.messages][1:] == ["The moon pulls.", "And the sun?"]


@pytest.mark.parametrize("role", list(Role))
def test_every_role_of_the_team_reads_it_and_only_who_may_chat_goes_on(team: Team, role: Role) -> None:
    made = services.share(access=team.member, conversation_id=a_tree(team.member).pk)
    reader = someone(team, role)
    reply = page(reader, made)
    assert reply.status_code == 200
    assert ("Continue in a chat of your own" in reply.content.decode()) == (role != Role.AUDITOR)
    assert ("Revoke" in reply.content.decode()) == (role in (Role.OWNER, Role.ADMIN))
    went = logged_in(reader).post(f"/t/acme/shared/{made.pk}", {"action": "continue", "once": "1"})
    assert went.status_code == (403 if role == Role.AUDITOR else 302)
    copies = Conversation.objects.filter(user=reader.user)
    assert copies.count() == (0 if role == Role.AUDITOR else 1)


def test_strangers_and_those_without_a_login_find_nothing(team: Team, strangers: Team, client: Any) -> None:
    """P11."""
    made = services.share(access=team.member, conversation_id=a_tree(team.member).pk)
    assert page(strangers.owner, made).status_code == 404
    assert logged_in(strangers.owner).get(f"/t/other/shared/{made.pk}").status_code == 404
    assert client.get(f"/t/acme/shared/{made.pk}").status_code == 302
    for act in (services.read, lambda access, found: services.go_on(access=access, share_id=found)):
        with pytest.raises(NotFound):
            act(strangers.owner, made.pk)
    with pytest.raises(NotFound):
        services.revoke(access=strangers.owner, share_id=made.pk)
    assert services.own(team.owner)[0] == [], "the list is of one's own"


def test_going_on_makes_the_readers_own_tree_which_the_engine_is_given(team: Team, worker: Any) -> None:
    chat = a_tree(team.member)
    made = services.share(access=team.member, conversation_id=chat.pk)
    client = logged_in(team.owner)
    reply = client.post(f"/api/t/acme/shares/{made.pk}/continue")
    assert reply.status_code == 201, reply.content
    copy = Conversation.objects.get(pk=reply.json()["conversation_id"])
    assert (copy.user, copy.title, copy.salt != chat.salt) == (team.owner.user, chat.title, True)
    assert [message.status for message in copy.messages.all()] == ["done", "stopped"], "as it was, and as it is shown"
    ask(access=team.owner, text="And Mars?", conversation_id=copy.pk)
    request = worker.answer("No seas.")
    assert [message.role for message in request.messages] == ["user", "assistant", "user"]
    assert chat.messages.count() == 4, "the owner's own is untouched"
    services.revoke(access=team.member, share_id=made.pk)
    assert Conversation.objects.filter(pk=copy.pk).exists(), "a copy is its reader's"
    note = client.get(f"/api/t/acme/conversations/{copy.pk}/notes").json()
    assert note["imported"]["source"] == "share"


def test_its_owner_and_the_admins_revoke_it_and_nobody_else(team: Team) -> None:
    chat = a_tree(team.member)
    member = someone(team, Role.EDITOR)
    made = services.share(access=team.member, conversation_id=chat.pk)
    with pytest.raises(Forbidden, match="owners and admins"):
        services.revoke(access=member, share_id=made.pk)
    services.revoke(access=someone(team, Role.ADMIN), share_id=made.pk)
    assert page(team.member, made).status_code == 404
    assert not Share.objects.exists(), "its text is gone as well"
    again = services.share(access=team.member, conversation_id=chat.pk)
    reply = logged_in(team.member).delete(f"/api/t/acme/shares/{again.pk}")
    assert reply.status_code == 204
    log = [(e.action, e.actor_name, e.object_name) for e in AuditEntry.objects.filter(action__startswith="share.")]
    assert len(log) == 4
    assert not any(chat.title in str(line) or "moon" in str(line) for line in log)


def test_it_ends_with_its_time_its_conversation_and_its_owners_membership(team: Team) -> None:
    chat = a_tree(team.member)
    timed = services.share(access=team.member, conversation_id=chat.pk, days=7)
    assert page(team.owner, timed).status_code == 200
    Share.objects.filter(pk=timed.pk).update(expires_at=timezone.now() - timedelta(seconds=1))
    assert page(team.owner, timed).status_code == 404
    sweep_all()
    assert not Share.objects.exists(), "the night takes what has expired"
    made = services.share(access=team.member, conversation_id=chat.pk)
    delete(access=team.member, conversation_id=chat.pk)
    assert page(team.owner, made).status_code == 404
    restore(access=team.member, conversation_id=chat.pk)
    assert page(team.owner, made).status_code == 200
    membership = Membership.objects.get(user=team.member.user)
    suspend(access=team.owner, membership_id=membership.pk)
    assert page(team.owner, made).status_code == 404
    Membership.objects.filter(pk=membership.pk).update(suspended_at=None)
    leave(access=team.member)
    assert not Share.objects.exists()
    add_member(tenant=team.tenant, user=team.member.user, role=Role.MEMBER)  # type: ignore[arg-type]
    assert page(team.owner, made).status_code == 404, "coming back brings no link back"


def test_deleting_the_account_and_retention_take_it_along(team: Team, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chatapp.data.own._start", lambda leaving: None)
    made = services.share(access=team.member, conversation_id=a_tree(team.member).pk)
    purge_conversations([made.conversation_id])
    assert not Share.objects.exists()
    services.share(access=team.member, conversation_id=a_tree(team.member).pk)
    assert team.member.user is not None
    delete_account(user=team.member.user, confirm=team.member.user.email)
    assert not Share.objects.exists()


def test_what_cannot_be_shared_says_why(team: Team) -> None:
    empty = Conversation.objects.create(tenant=team.tenant, user=team.member.user, title="x")
    with pytest.raises(BadInput, match="Nothing has been said"):
        services.share(access=team.member, conversation_id=empty.pk)
    with pytest.raises(NotFound):
        services.share(access=team.owner, conversation_id=empty.pk)
    with pytest.raises(Forbidden):
        services.share(access=team.key, conversation_id=empty.pk)
    long = a_tree(team.member)
    Message.objects.filter(conversation=long).update(text="x" * 1_000_001)
    with pytest.raises(BadInput, match="too long"):
        services.share(access=team.member, conversation_id=long.pk)
    running = ask(access=team.member, text="Why?")
    with pytest.raises(Conflict, match="being answered"):
        services.share(access=team.member, conversation_id=running.conversation_id)
    for days in (0, 9999):
        reply = logged_in(team.member).post(
            f"/api/t/acme/conversations/{empty.pk}/shares", {"days": days}, content_type="application/json"
        )
        assert reply.status_code == 400


def test_the_list_is_ones_own_newest_first_in_pages(team: Team) -> None:
    chat = a_tree(team.member)
    made = [services.share(access=team.member, conversation_id=chat.pk) for _ in range(5)]
    services.share(access=team.owner, conversation_id=a_tree(team.owner).pk)
    client = logged_in(team.member)
    first = client.get("/api/t/acme/shares?limit=3").json()
    rest = client.get(f"/api/t/acme/shares?limit=3&cursor={first['next']}").json()
    listed = [row["id"] for row in first["items"] + rest["items"]]
    assert listed == [str(share.pk) for share in reversed(made)]
    assert first["items"][0]["url"] == f"/t/acme/shared/{listed[0]}"
    assert "messages" not in first["items"][0]
