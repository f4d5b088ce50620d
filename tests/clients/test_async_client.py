"""AsyncOctavo against the product's socket over TCP: asked, streamed, cut, resumed, stopped."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from octavo_client import (
    AsyncOctavo,
    AuthenticationFailed,
    Cancelled,
    Completed,
    ConnectionFailed,
    ConversationUpdated,
    Queued,
    RequestRefused,
    Started,
    Subscribed,
    TextDelta,
)

from chatapp.api import tickets
from engine import protocol
from tests.chat.conftest import Team
from tests.clients.conftest import Engine, Proxy

pytestmark = pytest.mark.django_db(transaction=True)
HI = [{"role": "user", "content": "Hi"}]


def client(proxy: Proxy, team: Team, **options: Any) -> AsyncOctavo:
    return AsyncOctavo(f"http://127.0.0.1:{proxy.port}", api_key=team.secret, **options)


async def test_a_question_a_conversation_and_a_stateless_call_are_answered(
    proxy: Proxy, team: Team, engine: Engine
) -> None:
    async with client(proxy, team) as octavo:
        asked = asyncio.create_task(octavo.complete("Hi", temperature=0))
        await engine.answer("Hel", "lo")
        answer = await asked
        assert (answer.text, answer.status, answer.finish_reason) == ("Hello", "completed", "stop")
        assert answer.usage is not None
        assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (7, 2)
        assert answer.conversation_id
        assert str(answer) == "Hello"

        chat = octavo.conversation()
        for text in ("one", "two"):
            said = asyncio.create_task(chat.ask("And?"))
            await engine.answer(text)
            assert await said == text
        assert chat.id is not None
        assert chat.last is not None
        assert chat.last.conversation_id == chat.id != answer.conversation_id

        told = asyncio.create_task(octavo.complete(HI))
        await engine.answer("alone")
        alone = await told
        assert (alone.text, alone.conversation_id) == ("alone", None)
        with pytest.raises(RequestRefused) as refused:
            await octavo.ask("Hi", extra={"warmth": 3})
        assert (refused.value.code, refused.value.param) == ("unknown_parameter", "warmth")
        assert octavo.state == "open"
    assert octavo.state == "ended"


async def test_a_stream_tells_its_events_in_order_and_several_run_at_once(
    proxy: Proxy, team: Team, engine: Engine
) -> None:
    async with client(proxy, team) as octavo:
        first, second = octavo.stream("First?"), octavo.stream("Second?")
        ones = [await engine.begin("1"), await engine.begin("2")]
        texts = {}
        for stream in (second, first):
            kinds = [type(await anext(stream)) for _ in range(3)]
            assert kinds == [Queued, Started, TextDelta]
            texts[stream.response_id] = stream.answer.text
        assert {taken.id: text for taken, text in zip(ones, ("1", "2"), strict=True)} == texts
        for taken in ones:
            await engine.say(taken, 2, " and", " more")
            await engine.end(taken, 4)
        for stream in (first, second):
            *_, last = [event async for event in stream]
            assert isinstance(last, Completed)
            assert stream.answer.text.endswith(" and more")


async def test_a_connection_that_is_cut_in_the_middle_loses_and_repeats_nothing(
    proxy: Proxy, team: Team, engine: Engine
) -> None:
    async with client(proxy, team) as octavo:
        stream = octavo.stream("Tell me.")
        taken = await engine.begin("a", "b")
        text = ""
        async for piece in stream.texts():
            text += piece
            if text == "ab":
                proxy.cut()
                await engine.say(taken, 3, "c", "d")
            if text == "abcd":
                proxy.cut()
                await engine.say(taken, 5, "e")
                await engine.end(taken, 6)
        assert text == "abcde"
        assert stream.answer.status == "completed"
        assert proxy.connections == 3


async def test_a_request_whose_acknowledgement_is_lost_is_asked_once(proxy: Proxy, team: Team, engine: Engine) -> None:
    async with client(proxy, team) as octavo:
        proxy.flows.clear()
        asked = asyncio.create_task(octavo.complete("Once?"))
        taken = await engine.begin("only")
        proxy.cut()
        proxy.flows.set()
        await engine.end(taken, 2)
        answer = await asked
        assert (answer.text, answer.response_id) == ("only", taken.id)
        assert engine.worker.redis.xlen(f"octavo:requests:{engine.worker.model}:{team.tenant.pk}") == 0


async def test_leaving_a_stream_stops_the_answer(proxy: Proxy, team: Team, engine: Engine) -> None:
    async with client(proxy, team) as octavo:
        stream = octavo.stream("Long?")
        taken = await engine.begin("a")
        async for event in stream:
            if isinstance(event, TextDelta):
                break
        del stream
        assert await engine.cancelled(taken)

        running = asyncio.create_task(octavo.ask("Longer?"))
        taken = await engine.begin("a")
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert await engine.cancelled(taken)


async def test_a_stopped_answer_keeps_what_it_said(proxy: Proxy, team: Team, engine: Engine) -> None:
    async with client(proxy, team) as octavo:
        stream = octavo.stream("Long?")
        taken = await engine.begin("a")
        async for event in stream:
            if isinstance(event, TextDelta):
                stream.cancel()
                assert await engine.cancelled(taken)
                await sync_to_async(engine.worker.end)(taken, protocol.Cancelled(seq=2))
        assert isinstance(event, Cancelled)
        assert (stream.answer.text, stream.answer.status) == ("a", "cancelled")


async def test_another_client_reads_on_from_where_the_first_one_was(proxy: Proxy, team: Team, engine: Engine) -> None:
    async with client(proxy, team) as one, client(proxy, team) as other:
        stream = one.stream("Tell me.")
        taken = await engine.begin("a", "b")
        while stream.answer.text != "ab":
            await anext(stream)
        rest = other.resume(taken.id, after=stream.position)
        await engine.say(taken, 3, "c")
        await engine.end(taken, 4)
        assert "".join([piece async for piece in rest.texts()]) == "c"
        *_, last = [event async for event in stream]
        assert isinstance(last, Completed)
        assert stream.answer.text == "abc"


async def test_a_key_that_opens_nothing_says_so_and_an_address_where_nobody_is_too(proxy: Proxy, team: Team) -> None:
    url = f"http://127.0.0.1:{proxy.port}"
    with pytest.raises(AuthenticationFailed) as refused:
        await AsyncOctavo(url, api_key="octv_wrong").connect()
    assert refused.value.code == "invalid_api_key"
    with pytest.raises(AuthenticationFailed):
        async with AsyncOctavo(url, ticket=lambda: "used-up"):
            pass

    def fails() -> str:
        raise KeyError("no such user")

    with pytest.raises(ConnectionFailed, match="no such user"):
        async with AsyncOctavo(url, ticket=fails):
            pass
    nobody = AsyncOctavo("http://127.0.0.1:9", api_key=team.secret, connect_timeout=0.3)
    with pytest.raises(ConnectionFailed, match="could not be reached"):
        await nobody.connect()
    for wrong in ("", "chat.example.org", "ftp://x", "https://user@x", "https://x/?key=1"):
        with pytest.raises(ValueError, match="address"):
            AsyncOctavo(wrong, api_key="k")
    assert AsyncOctavo("https://x/octavo/v1", api_key="k").url == "wss://x/octavo/ws/v1"


async def test_a_ticket_opens_each_connection(proxy: Proxy, team: Team, engine: Engine) -> None:
    given = []

    async def ticket() -> str:
        given.append(await sync_to_async(tickets.issue)(access=team.key, allowed_origins=[]))
        return given[-1].ticket

    async with AsyncOctavo(f"http://127.0.0.1:{proxy.port}", ticket=ticket) as octavo:
        asked = asyncio.create_task(octavo.ask("Hi"))
        taken = await engine.begin("a")
        proxy.cut()
        await engine.end(taken, 2)
        assert await asked == "a"
    assert len(given) == 2


async def test_several_choices_and_tool_calls_come_in_order_through_cuts(
    proxy: Proxy, team: Team, engine: Engine
) -> None:
    """A stateless call is asked anew when its connection breaks, as long as nobody has read any of it."""
    tool = {"type": "function", "function": {"name": "look_up", "parameters": {"type": "object"}}}

    def tell(taken: Any, *parts: protocol.Part) -> None:
        events = [protocol.Delta(seq=seq, parts=[part]) for seq, part in enumerate(parts, start=1)]
        told = [protocol.Tell(taken.id, taken.attempt, event, 1.0) for event in events]
        engine.worker._call(protocol.tell(engine.worker.name, told))

    async with client(proxy, team) as octavo:
        asked = asyncio.create_task(octavo.complete(HI, n=2, extra={"seed": 1}))
        for _ in range(2):
            taken = await engine.begin()
            await sync_to_async(tell)(
                taken,
                protocol.Part(index=0, text="a"),
                protocol.Part(index=1, text="x", finish_reason="stop"),
                protocol.Part(index=0, text="b", finish_reason="length"),
            )
            if proxy.connections == 1:
                proxy.cut()
                assert await engine.cancelled(taken)  # the server stops what nobody can receive
                await sync_to_async(engine.worker.end)(taken, protocol.Cancelled(seq=4))
        await engine.end(taken, 4)
        answer = await asked
        assert answer.texts == ["ab", "x"]
        assert [choice.finish_reason for choice in answer.choices] == ["length", "stop"]
        assert proxy.connections == 2

        asked = asyncio.create_task(octavo.complete(HI, tools=[tool], tool_choice="auto"))
        taken = await engine.begin()
        call = protocol.ToolCallPart
        await sync_to_async(tell)(
            taken,
            protocol.Part(tool_calls=[call(call=0, id="c1", name="look_up", arguments='{"q"')]),
            protocol.Part(tool_calls=[call(call=0, arguments=": 1}")], finish_reason="tool_calls"),
        )
        await engine.end(taken, 3, "tool_calls")
        answer = await asked
        assert [(one.name, one.parsed()) for one in answer.tool_calls] == [("look_up", {"q": 1})]
        assert answer.message["tool_calls"][0]["id"] == "c1"


async def test_a_subscription_hears_of_conversations_and_goes_on_after_a_cut(
    proxy: Proxy, team: Team, engine: Engine
) -> None:
    async with client(proxy, team) as octavo, octavo.subscribe("conversations") as changes:
        assert isinstance(await anext(changes), Subscribed)
        proxy.cut()
        assert isinstance(await anext(changes), Subscribed)
        stream = octavo.stream("Hello there")
        change = await anext(changes)
        assert isinstance(change, ConversationUpdated)
        assert (change.conversation.title, change.conversation.running) == ("Hello there", True)
        await engine.answer("a")
        assert (await stream.whole()).conversation_id == change.conversation.id
