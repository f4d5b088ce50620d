"""The topic memory, and the same by HTTP: who may look at which blocks, and what it costs."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from django.db import transaction

from chatapp.api import memory_topic
from chatapp.chat import memory, services
from chatapp.chat.models import Conversation
from chatapp.errors import NotFound
from chatapp.prompts.selectors import default_assistant
from chatapp.streaming.memory import best
from engine.protocol import Memory, MemoryRun, Watch
from tests.api.sockets import Line, Voice, ui_line, until, voice
from tests.api.test_product_api import log_in
from tests.chat.conftest import ScriptedWorker, Team, server, strangers, team, worker

__all__ = ["server", "strangers", "team", "voice", "worker"]
pytestmark = pytest.mark.django_db(transaction=True)

SHARED = MemoryRun("team", chats=6, pinned=True, since=5, blocks=11)
OWN = MemoryRun("own", since=9, blocks=7)
NEVER = "01890000-0000-7000-8000-000000000000"


async def looking(socket: Line, conversation_id: str | None = None, **more: Any) -> None:
    about = {"conversation_id": conversation_id} if conversation_id else {}
    await socket.send(type="subscribe", topic="memory", event_id="m", **about, **more)
    assert (await socket.read_until("subscribed", "error"))[-1] == {
        "type": "subscribed",
        "topic": "memory",
        "event_id": "m",
    }


async def told(socket: Line) -> dict[str, Any]:
    return (await socket.read_until("memory.updated"))[-1]


async def watched(voice: Voice, count: int = 1) -> list[Watch]:
    await until(lambda: len(voice.watched()) == count)
    return voice.watched()


async def test_a_chats_blocks_are_told_as_a_worker_says_them_and_only_while_somebody_looks(
    team: Team, voice: Voice
) -> None:
    async with ui_line(team.member.user, "acme") as socket:
        asked = await socket.create(input="What is a prefix cache?")
        chat = asked["conversation_id"]
        assert voice.watched() == []
        await looking(socket, chat)
        (watch,) = await watched(voice)
        assert (watch.tenant, watch.conversation) == (str(team.tenant.pk), chat)
        voice.remember(watch, SHARED, OWN, state="answering", tokens=284, length=285, response=asked["response_id"])
        frame = await told(socket)
        assert (frame["conversation_id"], frame["memory"]["tokens"]) == (chat, 284)
        assert [run["kind"] for run in frame["memory"]["runs"]] == ["team", "own"]
        await socket.send(type="unsubscribe", topic="memory", event_id="u")
        await socket.read_until("unsubscribed", event_id="u")
        voice.remember(watch, SHARED, tokens=1)
        assert await socket.quiet()
        assert socket.heard[-1]["type"] == "pong"
        assert [frame["type"] for frame in socket.heard].count("memory.updated") == 1


async def test_a_new_chat_looks_at_the_instructions_that_wait_for_it(team: Team, voice: Voice) -> None:
    async with ui_line(team.member.user, "acme") as socket:
        await looking(socket)
        (watch,) = await watched(voice)
        assistant = await asyncio.to_thread(default_assistant, team.tenant)
        assert assistant is not None
        assert watch == Watch(str(team.tenant.pk), "", str(assistant.pk))
        voice.remember(watch, SHARED, state="new", tokens=170)
        frame = await told(socket)
        assert "conversation_id" not in frame
        assert frame["memory"]["state"] == "new"


async def test_nobody_looks_at_what_is_not_his_own(team: Team, strangers: Team, voice: Voice) -> None:
    """P11: a colleague's chat, another team's, one that never was, one that was deleted: all the same."""
    async with ui_line(team.member.user, "acme") as socket:
        chat = (await socket.create(input="Mine."))["conversation_id"]
    for user, slug in ((team.owner.user, "acme"), (strangers.member.user, "other")):
        async with ui_line(user, slug) as socket:
            for tried in (chat, NEVER, "no id"):
                await socket.send(type="subscribe", topic="memory", conversation_id=tried, event_id="m")
                error = (await socket.read_until("error"))[-1]
                assert (error["code"], error["param"]) == ("not_found", "conversation_id")
            await socket.send(type="subscribe", topic="memory", assistant_id=NEVER, event_id="m")
            assert (await socket.read_until("error"))[-1]["code"] == "not_found"
    assert voice.watched() == []


async def test_looking_at_another_chat_ends_the_look_at_the_first(team: Team, voice: Voice) -> None:
    async with ui_line(team.member.user, "acme") as socket:
        first = (await socket.create(input="One."))["conversation_id"]
        await looking(socket, first)
        (watch,) = await watched(voice)
        await looking(socket)
        (other,) = [one for one in await watched(voice, 2) if one != watch]
        voice.remember(watch, SHARED, OWN, tokens=200)
        voice.remember(other, SHARED, state="new", tokens=170)
        assert "conversation_id" not in await told(socket)


async def test_a_flood_of_changes_comes_as_a_few_frames_and_the_last_one_is_right(team: Team, voice: Voice) -> None:
    async with ui_line(team.member.user, "acme") as socket:
        await looking(socket)
        (watch,) = await watched(voice)
        began = time.monotonic()
        for number in range(1, 300):
            voice.remember(watch, OWN, tokens=number)
            await asyncio.sleep(0.002)
        while (await told(socket))["memory"]["tokens"] != 299:
            pass
        spent = time.monotonic() - began
        frames = sum(frame["type"] == "memory.updated" for frame in socket.heard)
        assert frames <= 2 + spent / memory_topic.EVERY_S


async def test_a_second_tab_has_at_once_what_was_said_before_it_looked(team: Team, voice: Voice) -> None:
    async with ui_line(team.member.user, "acme") as one, ui_line(team.member.user, "acme") as other:
        await looking(one)
        (watch,) = await watched(voice)
        voice.remember(watch, SHARED, state="new", tokens=170)
        first = await told(one)
        await looking(other)
        assert await told(other) == first


async def test_an_engine_that_says_nothing_is_told_to_be_away_once_and_is_back_when_it_speaks(
    team: Team, voice: Voice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory_topic, "FIRST_S", 0.1)
    monkeypatch.setattr(memory_topic, "SILENT_S", 0.3)
    monkeypatch.setattr("chatapp.streaming.memory.RENEW_S", 0.2)
    async with ui_line(team.member.user, "acme") as socket:
        await looking(socket)
        assert "memory" not in await told(socket)
        (watch,) = await watched(voice)
        voice.remember(watch, SHARED, state="new", tokens=170)
        assert (await told(socket))["memory"]["tokens"] == 170
        assert "memory" not in await told(socket)
        await socket.send(type="ping")
        assert (await socket.read())["type"] == "pong", "once is enough"


async def test_an_engine_that_is_gone_is_not_believed_again_however_long_one_looks(
    team: Team, voice: Voice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it said stays in Redis while somebody looks, and is read again now and then."""
    monkeypatch.setattr(memory_topic, "SILENT_S", 0.3)
    monkeypatch.setattr(memory_topic, "ALLOWED_EVERY_S", 0.2)
    monkeypatch.setattr("chatapp.streaming.memory.RENEW_S", 0.1)
    async with ui_line(team.member.user, "acme") as socket:
        await looking(socket)
        (watch,) = await watched(voice)
        voice.remember(watch, SHARED, OWN, state="answering", tokens=284)
        await socket.read_until("memory.updated")
        await asyncio.sleep(1.5)
        await socket.send(type="ping")
        told = [frame for frame in await socket.read_until("pong") if frame["type"] == "memory.updated"]
        assert [frame.get("memory") for frame in told] == [None]


async def test_the_look_ends_with_the_chat(team: Team, voice: Voice, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_topic, "ALLOWED_EVERY_S", 0.1)
    async with ui_line(team.member.user, "acme") as socket:
        chat = (await socket.create(input="Mine."))["conversation_id"]
        await looking(socket, chat)
        await asyncio.to_thread(Conversation.objects.filter(pk=chat).delete)
        assert (await socket.read_until("unsubscribed"))[-1] == {"type": "unsubscribed", "topic": "memory"}


async def test_a_look_that_cannot_go_on_says_so(team: Team, voice: Voice, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: object, **given: object) -> None:
        raise RuntimeError("the database is away")

    monkeypatch.setattr(memory_topic, "ALLOWED_EVERY_S", 0.1)
    async with ui_line(team.member.user, "acme") as socket:
        await looking(socket)
        monkeypatch.setattr(memory, "look", broken)
        assert (await socket.read_until("unsubscribed"))[-1] == {"type": "unsubscribed", "topic": "memory"}


def test_of_several_workers_the_one_is_believed_that_has_the_chat() -> None:
    def said(state: Any, tokens: int) -> Memory:
        return Memory(worker=state, at_ms=1, state=state, block_size=16, block_bytes=1, runs=[], tokens=tokens)

    new, idle, short, answering = said("new", 900), said("idle", 300), said("idle", 20), said("answering", 1)
    assert best([new, idle, short, answering]) is answering
    assert best([new, short, idle]) is idle
    assert best([new]) is new
    assert best([]) is None


@pytest.fixture
def chat(team: Team, server: Any, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(transaction, "on_commit", lambda work, **kw: work())
    return str(services.ask(access=team.member, text="Mine.").conversation_id)


def test_a_program_asks_for_the_present_state(
    team: Team, chat: str, worker: ScriptedWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = f"/api/t/acme/conversations/{chat}/memory"
    member = log_in(team, "member")
    monkeypatch.setattr("chatapp.api.product.conversations.once", _quick)
    assert member.get(path).json() == {"memory": None}
    (watch,) = worker.watched()
    worker.remember(watch, SHARED, MemoryRun("kept", blocks=7), tokens=284, length=284)
    said = member.get(path).json()["memory"]
    assert (said["state"], said["tokens"], said["worker"]) == ("idle", 284, "scripted")
    assert said["runs"][0] == {"kind": "team", "blocks": 11, "chats": 6, "pinned": True, "host": False, "since": 5}
    assert log_in(team, "owner").get(path).status_code == 404
    monkeypatch.setattr("chatapp.streaming.memory.SILENT_S", 0.0)  # it has said nothing for too long: it is gone
    assert member.get(path).json() == {"memory": None}


def _quick(look: memory.Look) -> Memory | None:
    from chatapp.streaming.memory import once

    return once(look, within_s=0.05)


def test_what_an_assistant_of_another_team_has_is_not_found(team: Team, strangers: Team) -> None:
    theirs = default_assistant(strangers.tenant)
    assert theirs is not None
    with pytest.raises(NotFound):
        memory.look(team.member, assistant_id=str(theirs.pk))


def test_a_request_says_which_chat_it_is_a_turn_of(team: Team, chat: str, worker: ScriptedWorker) -> None:
    assert worker.answer("Yes.").conversation == chat
