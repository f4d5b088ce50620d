"""subscribe and unsubscribe: what changes is told to whom it belongs, in every process, and to nobody else."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
import redis
from django.db import transaction
from django.utils import timezone

from chatapp.api.consumers import ResponseConsumer
from chatapp.chat import services
from chatapp.chat.models import Conversation
from chatapp.streaming.topics import channel, listener
from chatapp.tenants.permissions import Role
from tests.api.sockets import Line, Voice, line, ui_line, until, voice
from tests.chat.conftest import Team, record, server, strangers, team

__all__ = ["record", "server", "strangers", "team", "voice"]
pytestmark = pytest.mark.django_db(transaction=True)


async def subscribed(socket: Line, *topics: str) -> None:
    for topic in topics:
        await socket.send(type="subscribe", topic=topic, event_id=topic)
        assert (await socket.read_until("subscribed"))[-1] == {"type": "subscribed", "topic": topic, "event_id": topic}


async def told(socket: Line, kind: str = "conversation.updated") -> dict[str, Any]:
    return (await socket.read_until(kind))[-1]


async def test_a_list_of_conversations_is_kept_up_to_date_in_another_tab(
    team: Team, voice: Voice, record: Callable[[], int]
) -> None:
    """Asked here, answered, asked again, renamed, deleted: old state and what is told give the fresh state."""
    async with ui_line(team.member.user, "acme") as here, ui_line(team.member.user, "acme") as there:
        await subscribed(there, "conversations")
        asked = await here.create(input="What is a prefix cache?")
        item = (await told(there))["conversation"]
        assert item["id"] == asked["conversation_id"]
        assert (item["title"], item["running"]) == ("What is a prefix cache?", True)
        voice.answer("A memory.")
        await asyncio.to_thread(record)
        item = (await told(there))["conversation"]
        assert (item["id"], item["running"]) == (asked["conversation_id"], False)
        found = await asyncio.to_thread(Conversation.objects.get, pk=asked["conversation_id"])
        assert item["updated_at"] == found.updated_at.isoformat()

        def change(**fields: Any) -> None:
            for name, value in fields.items():
                setattr(found, name, value)
            found.save(update_fields=list(fields))

        await asyncio.to_thread(change, title="Caches")
        assert (await told(there))["conversation"] == {**item, "title": "Caches"}
        await asyncio.to_thread(change, deleted_at=timezone.now())
        assert (await told(there, "conversation.deleted"))["conversation_id"] == asked["conversation_id"]
        assert not [frame for frame in here.heard if frame["type"].startswith("conversation.")], "it did not subscribe"


async def test_what_a_response_used_is_told_wherever_it_was_asked_for(
    team: Team, voice: Voice, record: Callable[[], int]
) -> None:
    async with line(team.secret) as socket:
        await subscribed(socket, "usage")
        message = [{"role": "user", "content": "Hello?"}]
        generation = await asyncio.to_thread(services.complete, access=team.key, messages=message)
        voice.answer("Hi", " there.")
        await asyncio.to_thread(record)
        assert await told(socket, "usage.updated") == {
            "type": "usage.updated",
            "response_id": str(generation.pk),
            "model": voice.model,
            "usage": {"prompt_tokens": 7, "cached_tokens": 3, "shared_tokens": 0, "completion_tokens": 2},
        }


async def test_nobody_hears_of_what_is_not_theirs(
    team: Team, strangers: Team, voice: Voice, record: Callable[[], int]
) -> None:
    """P11, and a colleague's chats: another person, another key, another team."""
    async with (
        line(team.secret) as key,
        ui_line(team.owner.user, "acme") as colleague,
        ui_line(strangers.member.user, "other") as stranger,
        ui_line(team.member.user, "acme") as member,
    ):
        for socket in (key, colleague, stranger, member):
            await subscribed(socket, "conversations", "usage")
        await asyncio.to_thread(services.ask, access=team.member, text="A secret of mine.")
        voice.answer("Kept.")
        await asyncio.to_thread(record)
        await told(member, "usage.updated")
        for socket in (key, colleague, stranger):
            await socket.send(type="ping")
            assert [frame["type"] for frame in await socket.read_until("pong")] == ["pong"]


async def test_what_is_undone_is_not_told(team: Team) -> None:
    async with line(team.secret) as socket:
        await subscribed(socket, "conversations")

        def fail() -> None:
            with transaction.atomic():
                Conversation.objects.create(tenant=team.tenant, key=team.key.key, title="never")
                transaction.set_rollback(True)
            Conversation.objects.create(tenant=team.tenant, key=team.key.key, title="kept")

        await asyncio.to_thread(fail)
        assert (await told(socket))["conversation"]["title"] == "kept"


async def test_unsubscribing_ends_it_and_is_answered_always(team: Team, server: redis.Redis) -> None:
    name = channel(team.tenant.pk, team.key.principal)
    async with line(team.secret) as socket:
        await socket.send(type="unsubscribe", topic="usage", event_id="1")
        assert await socket.read() == {"type": "unsubscribed", "topic": "usage", "event_id": "1"}
        await subscribed(socket, "conversations", "usage", "usage")
        await socket.send(type="unsubscribe", topic="usage")
        await socket.read_until("unsubscribed")
        await asyncio.to_thread(Conversation.objects.create, tenant=team.tenant, key=team.key.key, title="one")
        await told(socket)
        await socket.send(type="unsubscribe", topic="conversations")
        await socket.read_until("unsubscribed")
        await until(lambda: not server.pubsub_numsub(name)[0][1])  # type: ignore[index]
        await subscribed(socket, "conversations")
        await asyncio.to_thread(Conversation.objects.create, tenant=team.tenant, key=team.key.key, title="two")
        assert (await told(socket))["conversation"]["title"] == "two"
    await until(lambda: not server.pubsub_numsub(name)[0][1])  # type: ignore[index]
    await until(lambda: listener()._task is None or listener()._task.done())


async def test_after_a_lost_connection_subscribed_says_that_something_may_have_been_missed(
    team: Team, server: redis.Redis
) -> None:
    async with line(team.secret) as socket, line(team.secret) as other:
        for one in (socket, other):
            await subscribed(one, "conversations")
        server.client_kill_filter(_type="pubsub")
        for one in (socket, other):
            assert await told(one, "subscribed") == {"type": "subscribed", "topic": "conversations"}
        await asyncio.to_thread(Conversation.objects.create, tenant=team.tenant, key=team.key.key, title="after")
        for one in (socket, other):
            assert (await told(one))["conversation"]["title"] == "after"


async def test_many_changes_of_one_conversation_pile_up_nowhere(team: Team, monkeypatch: pytest.MonkeyPatch) -> None:
    """A socket that is not read keeps the newest of each."""
    reads, send = asyncio.Event(), ResponseConsumer._send_text

    async def slowly(self: ResponseConsumer, text: str) -> None:
        if "conversation.updated" in text:
            await reads.wait()
        await send(self, text)

    monkeypatch.setattr(ResponseConsumer, "_send_text", slowly)
    async with line(team.secret) as socket:
        await subscribed(socket, "conversations")
        found = await asyncio.to_thread(Conversation.objects.create, tenant=team.tenant, key=team.key.key, title="0")

        def rename() -> None:
            for number in range(1, 200):
                found.title = str(number)
                found.save(update_fields=["title"])

        await asyncio.to_thread(rename)
        await socket.send(type="ping")
        await asyncio.sleep(0.1)
        reads.set()
        titles = [frame["conversation"]["title"] for frame in (await socket.read_until("pong"))[:-1]]
        assert titles[-1] == "199"
        assert len(titles) <= 3


async def test_who_cannot_take_what_is_told_keeps_it_from_nobody(server: redis.Redis) -> None:
    heard: list[Any] = []

    def broken(what: dict[str, Any] | None) -> None:
        if what is not None:
            raise ValueError(what)

    ends = [listener().listen("octavo:topics:a", broken), listener().listen("octavo:topics:b", heard.append)]
    await until(lambda: heard == [None])
    await asyncio.to_thread(server.publish, "octavo:topics:a", b"{}")
    await asyncio.to_thread(server.publish, "octavo:topics:b", b'{"n":1}')
    await until(lambda: len(heard) > 1)
    assert heard == [None, {"n": 1}], "at once, on the connection that was there"
    for end in ends:
        end()


async def test_a_role_without_chats_hears_nothing(team: Team) -> None:
    def auditor() -> Any:
        from chatapp.accounts.models import User
        from chatapp.tenants.services import add_member

        user = User.objects.create_user("auditor@acme.test", "a password")
        add_member(tenant=team.tenant, user=user, role=Role.AUDITOR)
        return user

    async with ui_line(await asyncio.to_thread(auditor), "acme") as socket:
        await socket.send(type="subscribe", topic="conversations", event_id="x")
        error = (await socket.read_until("error"))[-1]
        assert (error["code"], error["event_id"]) == ("not_allowed", "x")


async def test_a_quiet_connection_is_asked_and_stays(
    team: Team, server: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is missed, and nothing is told twice, however often it had to ask."""
    monkeypatch.setattr("chatapp.streaming.topics.QUIET_S", 0.02)
    async with line(team.secret) as socket:
        await subscribed(socket, "conversations")
        for number in range(5):
            asked = int(server.info("commandstats").get("cmdstat_ping", {}).get("calls", 0))  # type: ignore[union-attr]
            await until(
                lambda asked=asked: server.info("commandstats").get("cmdstat_ping", {}).get("calls", 0) > asked + 1  # type: ignore[union-attr]
            )
            await asyncio.to_thread(
                Conversation.objects.create, tenant=team.tenant, key=team.key.key, title=str(number)
            )
            assert (await told(socket))["conversation"]["title"] == str(number)
        assert [frame["type"] for frame in socket.heard].count("subscribed") == 1
