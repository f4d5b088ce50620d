"""Operators read a team's chats only for a reason and a time, and the team sees each step at once."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import pytest
import time_machine
from django.core.cache import cache
from django.db import DatabaseError, transaction
from django.test import Client
from django.utils import timezone

from chatapp.accounts.models import User
from chatapp.audit import break_glass
from chatapp.audit.models import AuditEntry, BreakGlass
from chatapp.audit.tasks import end_expired_readings
from chatapp.chat import services
from chatapp.chat.models import Conversation, Message
from chatapp.errors import BadInput, Forbidden, NotFound
from chatapp.ids import new_id
from chatapp.scope import no_scope
from tests.chat.conftest import Team, server, strangers, team

__all__ = ["server", "strangers", "team"]

REASON = "Ticket 4711: a member asks why an answer was cut."
SECRET = "My question about xylotomous things"
FIRST = "/admin/break-glass/"


@pytest.fixture(autouse=True)
def _fresh_cache() -> None:
    cache.clear()


def make_operator(email: str = "op@octavo.test") -> User:
    return User.objects.create_superuser(email, "a password")


def log_in(user: Any) -> Client:
    client = Client()
    client.force_login(user, backend="django.contrib.auth.backends.ModelBackend")
    return client


@pytest.fixture
def op(db: None) -> User:
    return make_operator()


@pytest.fixture
def operator(op: User) -> Client:
    return log_in(op)


def chat(team: Team, text: str = SECRET) -> Conversation:
    generation = services.ask(access=team.member, text=text)
    assert generation.conversation is not None
    return generation.conversation


def open_by(client: Client, **fields: str) -> str:
    """The address of a new reading."""
    answer = client.post(FIRST, {"team": "acme", "reason": REASON, "minutes": "15", **fields})
    assert answer.status_code == 302, answer.content.decode()
    return str(answer["Location"])


def log_of(team: Team) -> list[tuple[str, str]]:
    entries = AuditEntry.objects.filter(tenant=team.tenant).order_by("at", "id")
    return [(entry.action, entry.actor_name) for entry in entries if entry.action.startswith("break_glass")]


def owners_page(team: Team) -> str:
    return log_in(team.owner.user).get("/t/acme/admin/audit").content.decode()


def test_reading_is_asked_for_told_read_and_closed(team: Team, operator: Client) -> None:
    conversation = chat(team)
    path = open_by(operator)
    page = owners_page(team)
    assert "op@octavo.test, an operator of this Octavo, can read chats" in page
    assert page.count(REASON) == 2, "in the banner and in the entry"

    listed = operator.get(path).content.decode()
    assert "member@acme.test" in listed
    assert "xylotomous" not in listed, "a title tells of a chat"
    assert [action for action, _ in log_of(team)] == ["break_glass.opened"]

    read = operator.get(f"{path}c/{conversation.pk}").content.decode()
    assert SECRET in read
    assert "The team sees it" in read
    entry = AuditEntry.objects.get(action="break_glass.read")
    assert (entry.object_id, entry.details) == (str(conversation.pk), {"reason": REASON})
    assert "xylotomous" not in str(vars(entry))
    operator.get(f"{path}c/{conversation.pk}")
    assert operator.post(f"{path}close").status_code == 302
    assert operator.post(f"{path}close").status_code == 302, "again is harmless"
    assert log_of(team) == [
        ("break_glass.opened", "op@octavo.test"),
        ("break_glass.read", "op@octavo.test"),
        ("break_glass.read", "op@octavo.test"),
        ("break_glass.closed", "op@octavo.test"),
    ]
    assert "can read chats" not in owners_page(team)
    for gone in (path, f"{path}c/{conversation.pk}"):
        answer = operator.get(gone, follow=True)
        assert answer.redirect_chain[-1][0] == FIRST
        assert "time for reading is over" in answer.content.decode()
        assert "xylotomous" not in answer.content.decode()


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"reason": ""}, "required"),
        ({"reason": "because"}, "at least 20"),
        ({"reason": "because" + " " * 40 + "so"}, "20 characters at least"),
        ({"reason": "\u200b" * 30}, "20 characters at least"),
        ({"reason": "because\u202e" + "\u2066" * 40}, "20 characters at least"),
        ({"reason": "x" * 1001}, "at most 1000"),
        ({"team": "nowhere"}, "no such team"),
        ({"team": ""}, "required"),
        ({"minutes": "600"}, "not one of the available"),
        ({"minutes": ""}, "required"),
        ({"conversation": "the last one"}, "valid UUID"),
    ],
)
def test_without_a_reason_or_for_longer_nothing_opens(
    team: Team, operator: Client, fields: dict[str, str], words: str
) -> None:
    asked = {"team": "acme", "reason": REASON, "minutes": "15", **fields}
    answer = operator.post(FIRST, asked)
    assert answer.status_code == 400
    assert words in answer.content.decode()
    if "reason" not in fields:
        assert REASON in answer.content.decode(), "what was typed is kept"
    assert not BreakGlass.objects.exists()
    assert log_of(team) == []


def test_the_rules_hold_below_the_form_too(team: Team, op: User) -> None:
    for reason, minutes, param in (("short", 15, "reason"), (REASON, 61, "minutes"), (REASON + "\0", 15, "reason")):
        with pytest.raises(BadInput) as found:
            break_glass.open_reading(user=op, tenant=team.tenant, reason=reason, minutes=minutes)
        assert found.value.param == param
    now = timezone.now()
    with pytest.raises(DatabaseError), transaction.atomic():
        BreakGlass.objects.create(
            tenant=team.tenant, operator=op, operator_name="x", reason="x", opened_at=now, expires_at=now
        )


@pytest.mark.parametrize("minutes", [15, 60])
def test_its_time_ends_in_the_middle_and_the_log_says_so_once(team: Team, op: User, minutes: int) -> None:
    conversation = chat(team)
    start = timezone.now()
    with time_machine.travel(start, tick=False) as clock:
        path = open_by(log_in(op), minutes=str(minutes))
        clock.move_to(start + timedelta(minutes=minutes, seconds=-1))
        operator = log_in(op)
        assert SECRET in operator.get(f"{path}c/{conversation.pk}").content.decode()
        assert break_glass.end_expired() == 0
        clock.move_to(start + timedelta(minutes=minutes))
        for gone in (path, f"{path}c/{conversation.pk}"):
            assert operator.get(gone)["Location"] == FIRST
        assert "can read chats" not in owners_page(team)
        operator.post(f"{path}close")
        with no_scope():
            end_expired_readings()
            end_expired_readings()
    assert [action for action, _ in log_of(team)] == ["break_glass.opened", "break_glass.read", "break_glass.expired"]


def test_of_two_operators_each_reads_with_the_own_leave(team: Team, operator: Client) -> None:
    conversation = chat(team)
    other = log_in(make_operator("second@octavo.test"))
    path = open_by(operator)
    for way in (path, f"{path}c/{conversation.pk}"):
        assert other.get(way).status_code == 404
    assert other.post(f"{path}close").status_code == 404
    own = open_by(other, reason="The second operator looks for something else.")
    assert own != path
    assert SECRET in other.get(f"{own}c/{conversation.pk}").content.decode()
    page = owners_page(team)
    assert page.count("can read chats") == 2
    other.post(f"{own}close")
    assert operator.get(path).status_code == 200, "the first goes on"
    assert ("break_glass.read", "second@octavo.test") in log_of(team)
    assert ("break_glass.read", "op@octavo.test") not in log_of(team)


@pytest.mark.parametrize("lost", ["is_staff", "is_superuser", "is_active"])
def test_an_operator_who_is_none_any_more_reads_nothing(team: Team, op: User, operator: Client, lost: str) -> None:
    conversation = chat(team)
    path = open_by(operator)
    User.objects.filter(pk=op.pk).update(**{lost: False})
    for method, way in (
        ("get", path),
        ("get", f"{path}c/{conversation.pk}"),
        ("post", f"{path}close"),
        ("get", FIRST),
        ("post", FIRST),
    ):
        answer = getattr(operator, method)(way, {"team": "acme", "reason": REASON, "minutes": "15"})
        assert answer.status_code in (302, 403), way
        assert SECRET not in answer.content.decode()
    assert BreakGlass.objects.count() == 1
    # Also where a request began before the right was taken.
    stale = User.objects.get(pk=op.pk)
    setattr(stale, lost, True)
    with pytest.raises(Forbidden):
        break_glass.reading(user=stale, reading_id=BreakGlass.objects.get().pk)


def test_nobody_of_a_team_gets_in(team: Team, operator: Client) -> None:
    conversation = chat(team)
    path = open_by(operator)
    for user in (team.owner.user, team.member.user):
        client = log_in(user)
        for way in (FIRST, path, f"{path}c/{conversation.pk}"):
            assert client.get(way).status_code in (302, 403), way
    assert Client().get(path).status_code == 302


def test_a_reading_shows_its_own_team_alone(team: Team, strangers: Team, operator: Client) -> None:
    foreign = chat(strangers, "A foreign secret")
    own = chat(team)
    path = open_by(operator)
    assert operator.get(f"{path}c/{foreign.pk}").status_code == 404
    assert operator.get(f"{path}c/{new_id()}").status_code == 404
    assert "other.test" not in operator.get(path).content.decode()
    assert log_of(strangers) == []
    assert [action for action, _ in log_of(team)] == ["break_glass.opened"], "what was not shown is not told as read"
    Conversation.objects.filter(pk=own.pk).update(deleted_at=timezone.now())
    assert operator.get(f"{path}c/{own.pk}").status_code == 404
    assert "There is nothing to read" in operator.get(path).content.decode()


def test_leave_for_one_conversation_shows_no_other(team: Team, operator: Client) -> None:
    one, other = chat(team), chat(team, "Another secret")
    path = open_by(operator, conversation=str(one.pk))
    listed = operator.get(path).content.decode()
    assert str(one.pk) in listed
    assert str(other.pk) not in listed
    assert operator.get(f"{path}c/{one.pk}").status_code == 200
    assert operator.get(f"{path}c/{other.pk}").status_code == 404
    assert "can read a conversation" in owners_page(team)


def test_reading_changes_nothing(team: Team, operator: Client) -> None:
    conversation = chat(team)
    before = Conversation.objects.values().get(pk=conversation.pk)
    path = open_by(operator)
    for way in (path, f"{path}c/{conversation.pk}"):
        for method in ("post", "put", "patch", "delete"):
            assert getattr(operator, method)(way).status_code == 405
    operator.get(f"{path}c/{conversation.pk}")
    assert Conversation.objects.values().get(pk=conversation.pk) == before
    assert operator.get(f"{path}close").status_code == 405


def test_markup_in_a_chat_is_shown_as_text(team: Team, operator: Client) -> None:
    """P14."""
    conversation = chat(team, "<script>alert(1)</script> <img src=x onerror=alert(1)>")
    page = operator.get(f"{open_by(operator)}c/{conversation.pk}").content.decode()
    assert "<script>alert(1)" not in page
    assert "&lt;img src=x" in page


def test_a_form_that_is_sent_twice_opens_once(team: Team, operator: Client) -> None:
    once = re.search(r'name="once" value="([^"]+)"', operator.get(FIRST).content.decode())
    assert once
    open_by(operator, once=once[1])
    again = operator.post(FIRST, {"team": "acme", "reason": REASON, "minutes": "15", "once": once[1]})
    assert again["Location"] == FIRST
    assert BreakGlass.objects.count() == 1


def test_many_conversations_come_in_pages(team: Team, operator: Client) -> None:
    now = timezone.now()
    Conversation.objects.bulk_create(
        Conversation(tenant=team.tenant, user=team.member.user, title=f"Title {n}", updated_at=now) for n in range(120)
    )
    path = where = open_by(operator)
    seen: set[str] = set()
    for number in (50, 50, 20):
        page = operator.get(where).content.decode()
        found = re.findall(r"/c/([0-9a-f-]{36})", page)
        assert len(found) == number
        seen |= set(found)
        assert "Title" not in page
        older = re.search(r'href="(\?cursor=[^"]+)"', page)
        where = path + older[1] if older else ""
    assert len(seen) == 120
    assert not where
    assert operator.get(f"{path}?cursor=nonsense")["Location"] == path


def test_foreign_readings_are_not_found(op: User) -> None:
    for act in (break_glass.reading, break_glass.close_reading):
        with pytest.raises(NotFound):
            act(user=op, reading_id=new_id())


def test_the_administration_shows_no_chat_anywhere_else(team: Team, operator: Client) -> None:
    """Every list, form, history, search and autocomplete of every model."""
    from django.contrib import admin
    from django.urls import reverse

    conversation = chat(team)
    Message.objects.filter(conversation=conversation).update(text=SECRET)
    fields = [("tenants", "membership", "user"), ("tenants", "apikey", "tenant"), ("tenants", "membership", "tenant")]
    pages = [
        f"{reverse('admin:autocomplete')}?app_label={app}&model_name={model}&field_name={field}"
        for app, model, field in fields
    ]
    for model in admin.site._registry:
        name = f"{model._meta.app_label}_{model._meta.model_name}"
        pages += [reverse(f"admin:{name}_changelist"), f"{reverse(f'admin:{name}_changelist')}?q=question"]
        row = model._default_manager.first()
        if row is not None:
            assert "xylotomous" not in str(row)
            pages += [reverse(f"admin:{name}_{what}", args=[row.pk]) for what in ("change", "history", "delete")]
    for path in pages:
        answer = operator.get(path)
        assert answer.status_code in (200, 302, 403), path
        assert "xylotomous" not in answer.content.decode(), path
    for row in (conversation, Message.objects.first(), conversation.generations.first()):
        assert "xylotomous" not in str(row)


def test_the_platforms_log_is_read_only_and_filters(team: Team, operator: Client) -> None:
    open_by(operator)
    entry = AuditEntry.objects.get()
    base = "/admin/audit/auditentry/"
    listed = operator.get(f"{base}?actor_kind__exact=operator&q=op@octavo").content.decode()
    assert "Opened this team&#x27;s chats" in listed or "Opened this team's chats" in listed
    detail = operator.get(f"{base}{entry.pk}/change/").content.decode()
    assert REASON in detail
    assert operator.get(f"{base}add/").status_code == 403
    assert operator.post(f"{base}{entry.pk}/change/", {"action": "x"}).status_code == 403
    assert operator.post(f"{base}{entry.pk}/delete/", {"post": "yes"}).status_code == 403
    operator.post(base, {"action": "delete_selected", "_selected_action": [str(entry.pk)], "post": "yes"})
    assert AuditEntry.objects.filter(pk=entry.pk).exists()
