"""Titles that the model writes: only where a team wants them, once, and never over what a person has done meanwhile."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import redis
from django.db import transaction

from chatapp.chat import conversations, tasks, titles
from chatapp.chat.models import Conversation, Generation, TitledBy
from chatapp.chat.services import ask
from chatapp.limits import selectors as limits
from chatapp.limits.models import Reservation, TenantLimits
from chatapp.tenants import team as settings_of
from chatapp.usage.models import UsageRow
from engine import protocol
from engine.protocol import Request
from tests.chat.conftest import ScriptedWorker, Team

SECRET = "The vault opens at nine."


@pytest.fixture(autouse=True)
def _commits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transaction, "on_commit", lambda work, **kw: work())  # a test's transaction never commits


@pytest.fixture
def wishes(team: Team, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """What is handed to Celery; the team wants titles."""
    found: list[tuple[str, int]] = []

    def keep(args: list[Any], **options: Any) -> None:
        found.append((args[0], args[1]))
        assert SECRET not in json.dumps([args, options], default=str), "no text in a message of Celery's"

    monkeypatch.setattr(tasks.write_title, "apply_async", keep)
    team.tenant.model_titles = True
    team.tenant.save(update_fields=["model_titles"])
    return found


class Chats:
    def __init__(self, team: Team, worker: ScriptedWorker, record: Callable[[], int]) -> None:
        self.team, self.worker, self.record = team, worker, record

    def begin(self) -> tuple[Conversation, Request]:
        """A question of the member's, answered and recorded."""
        asked = ask(access=self.team.member, text=SECRET)
        request = self.worker.answer("Then be there", " in time.")
        self.record()
        assert asked.conversation is not None
        return asked.conversation, request

    def say(self, *texts: str) -> Request:
        """What the model says where a title is asked for."""
        request = self.worker.answer(*texts)
        self.record()
        return request


@pytest.fixture
def chats(team: Team, worker: ScriptedWorker, record: Callable[[], int]) -> Chats:
    return Chats(team, worker, record)


def now(conversation: Conversation) -> tuple[str, str]:
    conversation.refresh_from_db()
    return conversation.title, conversation.titled_by


def test_the_model_names_a_chat_after_its_first_answer_out_of_the_same_cache(
    team: Team, chats: Chats, wishes: list[tuple[str, int]]
) -> None:
    conversation, first = chats.begin()
    assert wishes == [(str(conversation.pk), 0)]
    assert titles.write(*wishes[0])
    asked = chats.say('**Title: "Opening ', 'hours of the vault."**\n\nAnd more')
    assert now(conversation) == ("Opening hours of the vault", TitledBy.MODEL)
    assert asked.salt == first.salt
    assert asked.system == first.system
    assert [m.content for m in asked.messages[:2]] == [SECRET, "Then be there in time."]
    assert asked.messages[2].content == titles.ASKS
    assert asked.params.max_tokens == titles.PARAMS["max_tokens"]
    assert conversation.messages.count() == 2, "it stands beside the conversation"
    assert UsageRow.objects.count() == 2, "it is counted"
    assert not Reservation.objects.exists()


def test_a_team_that_has_not_asked_for_it_keeps_the_first_words(
    team: Team, chats: Chats, wishes: list[tuple[str, int]]
) -> None:
    settings_of.change_team(access=team.owner, model_titles=False)
    conversation, _ = chats.begin()
    assert wishes == []
    assert not titles.write(str(conversation.pk)), "nor does a message that was on its way"
    assert now(conversation) == (SECRET, TitledBy.WORDS)


def test_a_title_that_a_person_gave_stays_whenever_they_gave_it(
    team: Team, chats: Chats, wishes: list[tuple[str, int]]
) -> None:
    conversation, _ = chats.begin()
    assert titles.write(str(conversation.pk))
    conversations.rename(access=team.member, conversation_id=conversation.pk, name="Mine")
    chats.say("The model's")
    assert now(conversation) == ("Mine", TitledBy.PERSON)
    assert not titles.write(str(conversation.pk))


def test_what_was_deleted_meanwhile_gets_no_title(team: Team, chats: Chats, wishes: list[tuple[str, int]]) -> None:
    conversation, _ = chats.begin()
    assert titles.write(str(conversation.pk))
    conversations.delete(access=team.member, conversation_id=conversation.pk)
    chats.say("The model's")
    assert now(conversation)[0] == SECRET
    assert not titles.write(str(conversation.pk))
    assert not titles.write("01890000-0000-7000-8000-000000000000")


def test_a_message_that_comes_twice_asks_once(chats: Chats, wishes: list[tuple[str, int]]) -> None:
    conversation, _ = chats.begin()
    for _ in range(3):
        assert titles.write(str(conversation.pk))
    assert Generation.objects.count() == 2
    chats.say("Once")
    assert now(conversation)[0] == "Once"


def test_only_the_first_answer_is_named(team: Team, chats: Chats, wishes: list[tuple[str, int]]) -> None:
    conversation, _ = chats.begin()
    ask(access=team.member, text="And then?", conversation_id=conversation.pk)
    chats.say("Then it closes.")
    assert len(wishes) == 1


def test_titles_wait_behind_the_teams_chats_and_give_up_in_the_end(
    team: Team, chats: Chats, wishes: list[tuple[str, int]]
) -> None:
    conversation, _ = chats.begin()
    waiting = ask(access=team.owner, text="A colleague waits")
    for turn in range(len(titles.AGAIN_S) + 1):
        assert not titles.write(str(conversation.pk), turn)
    assert [turn for _, turn in wishes] == list(range(len(titles.AGAIN_S) + 1)), "and then no more"
    assert Generation.objects.filter(conversation=None).count() == 0
    chats.say("Here you are.")
    assert Generation.objects.get(pk=waiting.pk).state == "finished"
    assert titles.write(str(conversation.pk))


def test_without_budget_the_first_words_stay(team: Team, chats: Chats, wishes: list[tuple[str, int]]) -> None:
    conversation, _ = chats.begin()
    wishes.clear()
    assert TenantLimits.objects.filter(tenant=team.tenant).update(tokens_per_month=1)
    limits.forget()
    assert not titles.write(str(conversation.pk))
    assert wishes == []
    assert now(conversation) == (SECRET, TitledBy.WORDS)


def test_a_person_who_has_left_gets_no_title(team: Team, chats: Chats, wishes: list[tuple[str, int]]) -> None:
    conversation, _ = chats.begin()
    team.tenant.memberships.filter(user=team.member.user).delete()
    assert not titles.write(str(conversation.pk))


def test_a_failure_of_the_engine_leaves_the_first_words(
    team: Team, chats: Chats, worker: ScriptedWorker, record: Callable[[], int], wishes: list[tuple[str, int]]
) -> None:
    conversation, _ = chats.begin()
    assert titles.write(str(conversation.pk))
    taken = worker.begin("Half a ti")
    worker.end(taken, protocol.Failed(seq=2, code="step_failed", message="It failed.", retryable=True))
    record()
    assert now(conversation) == (SECRET, TitledBy.WORDS)


def test_without_a_broker_an_answer_is_recorded_all_the_same(
    team: Team, chats: Chats, wishes: list[tuple[str, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(**options: Any) -> None:
        raise redis.exceptions.ConnectionError

    monkeypatch.setattr(tasks.write_title, "apply_async", fail)
    conversation, _ = chats.begin()
    assert now(conversation) == (SECRET, TitledBy.WORDS)
    assert conversation.messages.get(role="assistant").text == "Then be there in time."


def test_a_key_that_looks_like_a_titles_names_nobody_elses_chat(
    team: Team, chats: Chats, wishes: list[tuple[str, int]]
) -> None:
    """P11: whoever sends such an idempotency key could name a chat of their own, and could do that anyway."""
    from chatapp.chat.services import complete

    conversation, _ = chats.begin()
    hello = [{"role": "user", "content": "Hello"}]
    for access in (team.owner, team.key):
        complete(access=access, messages=hello, idempotency_key=f"{titles.KEY}{conversation.pk}", leased=False)
        chats.say("Taken over")
    assert now(conversation) == (SECRET, TitledBy.WORDS)


@pytest.mark.parametrize(
    ("said", "called"),
    [
        ("Opening hours", "Opening hours"),
        ('"Opening hours."', "Opening hours"),
        ("# Titel: Öffnungszeiten", "Öffnungszeiten"),
        ("**Horarios**\nmás", "Horarios"),
        ("金库的开放时间。", "金库的开放时间"),
        ("\u202eOpening\u2066 hours", "Opening hours"),
        ("This conversation is about the opening hours of the vault and what comes after it", None),
        ("<think>Let me see", None),
        ("<script>alert(1)</script>", None),
        ("", None),
        ("...", None),
        ('""', None),
        ("```\n```", None),
    ],
)
def test_what_the_model_says_is_cleaned_and_bounded(said: str, called: str | None) -> None:
    found = titles.cleaned(said)
    if called is None and said.startswith("This"):
        assert found is not None
        assert len(found) <= 61
        assert found.endswith("…")
    else:
        assert found == called
