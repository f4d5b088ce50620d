"""Requests that crash engines: operators see them, asker and programs are told, and nothing tries them again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import redis
from django.test import Client
from django.urls import reverse

from chatapp.accounts.models import User
from chatapp.api.following import told_by_database
from chatapp.api.responses import problem
from chatapp.audit.models import AuditEntry
from chatapp.chat.models import Generation, State
from chatapp.chat.recorder import Recorder
from chatapp.chat.services import ask
from chatapp.operators import overview
from chatapp.scope import unscoped
from chatapp.streaming import dead
from engine import protocol
from tests.chat.conftest import ScriptedWorker, Team
from tests.tenants.people import log_in

pytestmark = pytest.mark.django_db

QUESTION = "What is the secret of the vault?"
POISON = protocol.Failed(seq=0, code="poison", message="It took workers along.", retryable=False)


@pytest.fixture(autouse=True)
def fresh(server: redis.Redis) -> Iterator[None]:
    overview.forget()
    with unscoped("admin"):
        yield


@pytest.fixture
def operator() -> User:
    return User.objects.create_superuser("op@octavo.test", "a password")


@pytest.fixture
def letter(team: Team, server: redis.Redis, worker: ScriptedWorker) -> Generation:
    """As the wire leaves one behind: on the list, and ended for its asker."""
    generation = ask(access=team.member, text=QUESTION)
    taken = worker.take()
    fields: Any = {
        "id": str(generation.pk), "tenant": str(team.tenant.pk), "model": generation.model, "worker": "w9",
        "attempts": 5,
    }  # fmt: skip
    server.xadd(protocol.DEAD, fields)
    worker.end(taken, POISON)
    assert Recorder(lambda: False).once(block_s=0.05) == 1
    generation.refresh_from_db()
    return generation


def faults() -> list[dict[str, Any]]:
    overview.forget()
    found: list[dict[str, Any]] = [one for one in overview.look()["faults"] if one["kind"] == "dead"]
    return found


def test_a_dead_letter_is_a_fault_that_leads_to_what_it_was_without_its_words(
    letter: Generation, team: Team, operator: User
) -> None:
    (fault,) = faults()
    assert (fault["code"], fault["count"], fault["link"]) == ("poison", 1, reverse("dead-letters"))
    page = log_in(operator).get(fault["link"]).content.decode()
    assert team.tenant.name in page
    assert reverse("admin:chat_generation_change", args=[letter.pk]) in page
    assert "5 attempts, the last on w9" in page
    assert QUESTION not in page


def test_an_operator_takes_it_off_the_list_and_that_stands_in_the_log(
    letter: Generation, operator: User, team: Team
) -> None:
    (entry,) = dead.newest()
    client = log_in(operator)
    reply = client.post(reverse("dead-letter-drop", args=[entry.entry]), follow=True)
    assert b"off the list" in reply.content
    assert (dead.count(), faults()) == (0, [])
    said = AuditEntry.objects.get(action="dead_letter.dropped")
    assert (said.object_name, said.actor_name) == (str(letter.pk), "op@octavo.test")
    assert said.details == {"model": letter.model, "attempts": 5}
    reply = client.post(reverse("dead-letter-drop", args=[entry.entry]), follow=True)
    assert b"not on the list any more" in reply.content
    assert AuditEntry.objects.filter(action="dead_letter.dropped").count() == 1


def test_nobody_but_operators_sees_or_changes_the_list(letter: Generation, team: Team) -> None:
    (entry,) = dead.newest()
    for client in (Client(), log_in(team.owner.user)):  # type: ignore[arg-type]
        assert client.get(reverse("dead-letters")).status_code in (302, 403)
        assert client.post(reverse("dead-letter-drop", args=[entry.entry])).status_code in (302, 403)
    assert dead.count() == 1


def test_its_asker_is_told_not_to_send_it_again_by_the_log_and_by_the_database(letter: Generation) -> None:
    assert (letter.state, letter.error_code) == (State.FAILED, "poison")
    kept = told_by_database(letter, -1)[-1]
    for event in (POISON, kept):
        assert isinstance(event, protocol.Failed)
        told = problem(event)
        assert told is not None
        assert (told.code, told.retryable) == ("poison", False)


def test_without_redis_the_page_says_so(operator: User, settings: Any) -> None:
    settings.REDIS_URL = "unix:///nowhere/valkey.sock"
    reply = log_in(operator).get(reverse("dead-letters"), follow=True)
    assert b"Redis does not answer" in reply.content
