"""What a response's events become on a socket, whoever reads it how, and from which process."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import msgspec
import pytest
import redis
from django.test import AsyncClient

from chatapp.api import desk, outbox
from chatapp.api.consumers import ResponseConsumer
from chatapp.streaming.follow import follower
from engine import protocol
from engine.protocol import Logprob, Part, TokenLogprob, ToolCallPart
from tests.api.conftest import DELTA, text_of
from tests.api.sockets import Voice, delta, line, until, voice
from tests.chat.conftest import Team, server, strangers, team

__all__ = ["server", "strangers", "team", "voice"]
pytestmark = pytest.mark.django_db(transaction=True)
HELLO = [{"role": "user", "content": "Hello?"}]


async def test_choices_calls_and_log_probabilities_are_told_and_resumed_alike(team: Team, voice: Voice) -> None:
    likely = [TokenLogprob("Hi", -0.5, 7, top=[Logprob("Hi", -0.5, 7), Logprob("Ho", -1.5, 8)])]
    prompt = [TokenLogprob("lo", -2.0, 3)]
    events = [
        delta(1, Part(text="Hi", token_ids=[7], logprobs=likely, prompt_logprobs=prompt), Part(index=1, text="Ho")),
        delta(2, Part(index=1, token_ids=[9])),  # held back: nothing to tell yet
        delta(3, Part(tool_calls=[ToolCallPart(id="call_1", name="weather", arguments='{"city":')])),
        delta(4, Part(tool_calls=[ToolCallPart(arguments=' "Oslo"}')]), Part(index=1, text="!", finish_reason="stop")),
        delta(5, Part(tool_calls=[ToolCallPart(call=1, id="call_2", name="time", arguments="{}")])),
        delta(6, Part(finish_reason="tool_calls")),
    ]

    def read(frames: list[dict[str, Any]], after: int) -> dict[int, dict[str, Any]]:
        """As the document says that a client reads: whole ranges, each once."""
        found: dict[int, dict[str, Any]] = {}
        last = after
        for place, frame in enumerate(frames):
            if "first_seq" not in frame:
                continue
            assert frame["first_seq"] == last + 1
            choice = found.setdefault(frame["index"], {"text": "", "calls": {}, "logprobs": [], "end": None})
            if frame["type"] == DELTA:
                choice["text"] += frame["delta"]
                choice["logprobs"] += frame.get("logprobs", [])
                choice["end"] = frame.get("finish_reason", choice["end"])
            elif frame["type"] == "response.output_item.added":
                choice["calls"][frame["call"]] = [frame["item"]["call_id"], frame["item"]["name"], ""]
            else:
                choice["calls"].setdefault(frame["call"], ["", "", ""])[2] += frame["delta"]
            if frame.get("more"):
                following = frames[place + 1]
                assert (following["first_seq"], following["seq"]) == (frame["first_seq"], frame["seq"])
            else:
                last = frame["seq"]
        assert frames[-1]["seq"] == last + 1
        return found

    async with line(team.secret) as socket, line(team.secret) as other:
        asked = await socket.create(input=HELLO, stream_id="x")
        taken = voice.start()
        for event in events:
            voice.say(taken, event)
        voice.finish(taken, 7, "tool_calls")
        frames = await socket.ended(taken.id)
        whole = read(frames, 0)
        assert whole[0]["text"] == "Hi"
        assert whole[0]["calls"] == {
            0: ["call_1", "weather", '{"city": "Oslo"}'],
            1: ["call_2", "time", "{}"],
        }
        assert (whole[0]["end"], whole[1]["end"], whole[1]["text"]) == ("tool_calls", "stop", "Ho!")
        assert whole[0]["logprobs"] == [
            {"token": "Hi", "logprob": -0.5, "id": 7,
             "top": [{"token": "Hi", "logprob": -0.5, "id": 7}, {"token": "Ho", "logprob": -1.5, "id": 8}]}
        ]  # fmt: skip
        assert any(frame.get("prompt_logprobs") for frame in frames)
        assert (frames[-1]["type"], frames[-1]["finish_reason"]) == ("response.completed", "tool_calls")
        for after in range(7):
            await other.send(type="response.resume", response_id=asked["response_id"], after=after)
            rest = read(await other.ended(taken.id), after)
            if after == 0:
                assert rest == whole
            if after >= 4:
                assert 1 not in rest, "the second choice had ended"
            if after == 3:
                assert rest[0]["calls"][0] == ["", "", ' "Oslo"}']


async def test_a_client_that_does_not_read_is_told_that_it_lags_and_then_gets_all_of_it(
    team: Team, voice: Voice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P13: what waits is bounded, nothing is followed meanwhile, and other responses of the socket are not lost."""
    monkeypatch.setattr(outbox, "ROOM_CHARS", 4000)
    monkeypatch.setattr(outbox, "AGAIN_CHARS", 2000)
    monkeypatch.setattr(outbox, "MERGED_CHARS", 1000)
    reads, send = asyncio.Event(), ResponseConsumer._send_text
    consumers: set[ResponseConsumer] = set()

    async def slowly(self: ResponseConsumer, text: str) -> None:
        consumers.add(self)
        if "response." in text:
            await reads.wait()
        await send(self, text)

    monkeypatch.setattr(ResponseConsumer, "_send_text", slowly)
    async with line(team.secret) as socket:
        for _ in range(2):
            await socket.send(type="response.create", input="Tell me everything.", stream_id=str(_))
        (consumer,) = consumers
        await until(lambda: len(consumer.desk._following) == 2)
        taken = [voice.start(), voice.start()]
        texts = [f"{number} " + "x" * 200 for number in range(300)]
        for one in taken:
            for begin in range(0, 300, 50):
                voice.texts(one, begin + 1, *texts[begin : begin + 50])
        await until(lambda: not consumer.outbox._room.is_set())
        await until(lambda: not any(reader.logs for reader in follower()._readers))
        assert consumer.outbox._chars < 4000 + 250
        assert len(consumer.outbox._items) < 40
        await asyncio.sleep(0.1)
        assert consumer.outbox._chars < 4000 + 250, "it stays so"
        reads.set()
        for one in taken:
            voice.finish(one, 301)
        frames: list[dict[str, Any]] = []
        while sum(frame["type"] == "response.completed" for frame in frames) < 2:
            frames.append(await socket.read())
        for one in taken:
            mine = [frame for frame in frames if frame["response_id"] == one.id]
            assert text_of(mine) == "".join(texts)
            last = 0
            for frame in mine:
                last = frame.get("seq", last)
                if frame["type"] == "lagged":
                    assert frame["resume_after"] == last or last == 0
                    assert frame["stream_id"] in "01"
        assert any(frame["type"] == "lagged" for frame in frames)


async def test_a_lagging_reader_whose_log_expires_gets_the_rest_from_the_database(
    team: Team, voice: Voice, server: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    from chatapp.chat.recorder import Recorder

    monkeypatch.setattr(outbox, "ROOM_CHARS", 1000)
    monkeypatch.setattr(outbox, "AGAIN_CHARS", 500)
    reads, send = asyncio.Event(), ResponseConsumer._send_text

    async def slowly(self: ResponseConsumer, text: str) -> None:
        if "response." in text:
            await reads.wait()
        await send(self, text)

    monkeypatch.setattr(ResponseConsumer, "_send_text", slowly)
    async with line(team.secret) as socket:
        await socket.send(type="response.create", input="Tell me everything.")
        await until(lambda: server.exists("octavo:finished") or server.keys("octavo:requests:*"))
        taken = voice.start()
        texts = ["x" * 300 + str(number) for number in range(20)]
        for number, text in enumerate(texts, start=1):
            voice.texts(taken, number, text)
        await until(lambda: not any(reader.logs for reader in follower()._readers))
        voice.finish(taken, 21)
        await asyncio.to_thread(Recorder(lambda: False).once, 0.05)
        server.delete(protocol.generation_key(taken.id), protocol.request_key(taken.id))
        reads.set()
        frames = await socket.ended(taken.id)
        text = ""
        for frame in frames:
            if frame["type"] == DELTA:
                text = frame["delta"] if frame["first_seq"] == 1 else text + frame["delta"]
        assert text == "".join(texts)
        assert frames[-1]["type"] == "response.completed"


async def test_the_queue_is_told_with_the_lane(team: Team, voice: Voice, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(desk, "POSITION_EVERY_S", 0.05)
    async with line(team.secret) as socket:
        await socket.create(input="One.", stream_id="a")
        second = await socket.create(input="Two.", stream_id="b")
        assert second["position"] == 2
        voice.begin("On")
        moved = (await socket.read_until("response.queued"))[-1]
        assert moved == {
            "type": "response.queued", "response_id": second["response_id"], "position": 1, "stream_id": "b"
        }  # fmt: skip


async def test_a_flood_of_frames_closes_the_socket_with_the_reason(team: Team, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chatapp.api.consumers.FRAMES_AT_ONCE", 20)
    monkeypatch.setattr("chatapp.api.consumers.FRAMES_PER_SECOND", 1)
    async with line(team.secret) as socket:
        assert socket.hello["limits"]["frames_at_once"] == 20
        for _ in range(25):
            await socket.send(type="ping")
        assert await socket.closed() == 4429
        assert [frame["type"] for frame in socket.heard[1:]] == ["pong"] * 20 + ["error"]
        assert (socket.heard[-1]["code"], socket.heard[-1]["retryable"]) == ("too_many_frames", True)


async def test_an_idempotency_key_leads_to_the_response_that_is_there(team: Team, voice: Voice) -> None:
    """Also from another socket, and in a lane; with another question it is an error."""
    frame = {"input": "Once.", "idempotency_key": "k", "stream_id": "a"}
    async with line(team.secret) as socket, line(team.secret) as other:
        first = await socket.create(**frame)
        again = await other.create(**frame)
        assert again["response_id"] == first["response_id"]
        voice.answer("Only", " once.")
        for one in (socket, other):
            assert text_of(await one.ended(first["response_id"])) == "Only once."
        await other.send(type="response.create", **{**frame, "input": "Twice."})
        assert (await other.read_until("error"))[-1]["code"] == "idempotency_mismatch"
        third = await other.create(**frame)
        assert third["response_id"] == first["response_id"]
        assert text_of(await other.ended(first["response_id"])) == "Only once."


async def test_a_stateless_call_asks_the_engine_for_what_the_same_call_over_http_does(team: Team, voice: Voice) -> None:
    """n, log probabilities, forms, penalties, tools and the messages of tools: one meaning on both ways in."""
    function = {"name": "get_weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}
    tools = [{"type": "function", "function": function}]
    call = {"id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Oslo"}'}}
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Umbrella?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "Rain."},
    ]
    choice = {"type": "function", "function": {"name": "get_weather"}}
    sampling = {
        "n": 2, "temperature": 0.5, "seed": 7, "stop": ["END"], "max_tokens": 33, "presence_penalty": 0.5,
        "frequency_penalty": -0.5, "repetition_penalty": 1.1, "logit_bias": {"5": 3}, "top_k": 4, "min_p": 0.1,
    }  # fmt: skip
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}}
    cases: list[tuple[dict[str, Any], dict[str, Any]]] = [
        (
            {"params": sampling, "tools": tools, "tool_choice": choice, "parallel_tool_calls": False},
            {**sampling, "tools": tools, "tool_choice": choice, "parallel_tool_calls": False},
        ),
        (
            {"params": {"logprobs": 2, "seed": 1, "response_format": form}},
            {"logprobs": True, "top_logprobs": 2, "seed": 1, "response_format": form},
        ),
    ]

    def asked() -> protocol.Request:
        taken = voice.take()
        voice.finish(taken, 0)
        request = protocol.decode_request(taken.payload)
        return msgspec.structs.replace(request, id="", request_id="", deadline_ms=0)

    for by_socket, by_http in cases:
        async with line(team.secret) as socket:
            await socket.create(input=messages, **by_socket)
            mine = asked()
        posted = asyncio.create_task(
            AsyncClient().post(
                "/v1/chat/completions",
                data=json.dumps({"messages": messages, **by_http}),
                content_type="application/json",
                headers={"Authorization": f"Bearer {team.secret}"},
            )
        )
        await until(lambda posted=posted: voice.redis.keys("octavo:requests:*") or posted.done())
        theirs = asked()
        assert (await posted).status_code == 200
        assert msgspec.to_builtins(mine) == msgspec.to_builtins(theirs)
    assert mine.params.grammar is not None
    assert mine.params.logprobs == 2


async def test_what_is_for_stateless_calls_is_refused_in_a_conversation_by_name(team: Team, voice: Voice) -> None:
    tools = [{"type": "function", "function": {"name": "f"}}]
    async with line(team.secret) as socket:
        for extra, param in (
            ({"params": {"n": 2}}, "n"),
            ({"tools": tools}, "tools"),
            ({"tool_choice": "none"}, "tool_choice"),
        ):
            await socket.send(type="response.create", input="Hello.", event_id="x", **extra)
            error = (await socket.read_until("error"))[-1]
            assert (error["code"], error["param"]) == ("invalid_request", param), error
