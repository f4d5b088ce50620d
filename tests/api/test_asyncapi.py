"""The published document: valid AsyncAPI, made of what parses the frames, and true of what sockets really say."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema_rs
import msgspec
import pytest
from django.test import Client
from octavo_client.core import FATAL

from chatapp.api import asyncapi, examples, frames
from chatapp.chat.models import Conversation
from engine import protocol
from engine.protocol import Logprob, MemoryRun, Part, TokenLogprob, ToolCallPart
from tests.api.sockets import Line, Voice, delta, line, until, voice
from tests.chat.conftest import Team, record, server, strangers, team
from tests.stack import ROOT

__all__ = ["record", "server", "strangers", "team", "voice"]
SPECS = Path(ROOT) / "node_modules/@asyncapi/specs/schemas"


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    return json.loads(json.dumps(asyncapi.document()))


def strict(schema: Any) -> Any:
    """The same schema, but what is not in it is wrong: a field that the document keeps quiet about is found."""
    if isinstance(schema, dict):
        found = {name: strict(value) for name, value in schema.items()}
        if found.get("type") == "object" and "properties" in found:
            found.setdefault("additionalProperties", False)
        return found
    return [strict(value) for value in schema] if isinstance(schema, list) else schema


def validators(document: dict[str, Any]) -> dict[str, Any]:
    """By the type of a frame: what its payload is held against."""
    components = strict(document["components"])
    return {
        name: jsonschema_rs.validator_for({**message["payload"], "components": components})
        for name, message in document["components"]["messages"].items()
    }


def test_it_is_valid_by_the_specification_s_own_schema(document: dict[str, Any]) -> None:
    schema = json.loads((SPECS / "3.0.0-without-$id.json").read_text())
    validator = jsonschema_rs.validator_for(schema)
    assert [f"{list(error.instance_path)}: {error.message}"[:300] for error in validator.iter_errors(document)] == []
    broken = {**document, "channels": {"socket": {"address": 5}}}
    assert not validator.is_valid(broken), "it can fail"


def test_every_reference_leads_somewhere(document: dict[str, Any]) -> None:
    followed = set()

    def walk(value: Any) -> None:
        if isinstance(value, dict):
            if isinstance(value.get("$ref"), str):
                followed.add(value["$ref"])
                here: Any = document
                for part in value["$ref"].removeprefix("#/").split("/"):
                    here = here[part]
            for inner in value.values():
                walk(inner)
        elif isinstance(value, list):
            for inner in value:
                walk(inner)

    walk(document)
    assert {f"#/components/messages/{name}" for name in document["components"]["messages"]} <= followed


def test_every_frame_is_in_it_and_every_field_of_a_frame_is_explained(document: dict[str, Any]) -> None:
    messages = document["components"]["messages"]
    assert set(frames.CLIENT_TYPES) < set(messages)
    assert len(messages) == len(asyncapi.CLIENT_FRAMES) + len(asyncapi.SERVER_FRAMES)
    for name, message in messages.items():
        assert message["summary"], name
        assert message["examples"], name
    sides = document["operations"]
    assert len(sides["fromClient"]["messages"]) == len(asyncapi.CLIENT_FRAMES)
    assert len(sides["toClient"]["messages"]) == len(asyncapi.SERVER_FRAMES)


def test_every_example_is_a_frame(document: dict[str, Any]) -> None:
    checks = validators(document)
    server_frames = msgspec.json.Decoder(frames.AnyServerFrame)
    for name, message in document["components"]["messages"].items():
        for example in message["examples"]:
            payload = example["payload"]
            checks[name].validate(payload)
            if name in examples.CLIENT:
                parsed = frames.parse(json.dumps(payload))
                assert asyncapi.tag(type(parsed)) == name
            else:
                decoded = server_frames.decode(json.dumps(payload))
                assert json.loads(frames.render(decoded)) == payload


def test_the_codes_that_a_socket_closes_with_are_all_in_it(document: dict[str, Any]) -> None:
    defined = {value for name, value in vars(frames).items() if name.startswith("CLOSE_")}
    assert {entry["code"] for entry in document["x-close-codes"]} == defined


@pytest.mark.django_db
def test_the_clients_give_up_after_those_codes_that_the_document_says_another_socket_is_of_no_use_after() -> None:
    useless = {code for code, (_, _, again) in asyncapi.CLOSE_CODES.items() if not again}
    assert set(FATAL) == useless
    written = re.search(r"const FINAL = new Set\(\[([\d, ]+)\]\)", (ROOT / "static/js/octavo.js").read_text())
    assert written is not None
    assert {int(code) for code in written[1].split(",")} == useless


def test_anybody_may_read_it_where_the_socket_is() -> None:
    reply = Client().get("/ws/v1/asyncapi.json", headers={"host": "testserver"})
    assert reply.status_code == 200
    assert reply["Content-Type"].startswith("application/json")
    assert reply["Access-Control-Allow-Origin"] == "*"
    served = reply.json()
    assert served["servers"]["here"]["host"] == "testserver"
    assert served["components"] == json.loads(json.dumps(asyncapi.document()))["components"]
    assert Client().post("/ws/v1/asyncapi.json").status_code == 405


async def refusals(socket: Line) -> None:
    """Frames that are wrong, each in its own way; the socket stays."""
    nobody = "01890000-0000-7000-8000-000000000000"
    hello = [{"role": "user", "content": "x"}]
    for frame in (
        {"type": "response.create", "input": ""},
        {"type": "response.create", "input": "x", "params": {"surprise": 1}},
        {"type": "response.create", "input": "x", "params": {"temperature": "hot"}},
        {"type": "response.create", "input": "x", "conversation_id": nobody},
        {"type": "response.create", "input": hello, "model": "none"},
        {"type": "response.create", "input": hello, "draft_id": nobody},
        {"type": "response.cancel", "response_id": nobody},
        {"type": "response.resume", "response_id": nobody, "stream_id": "y"},
    ):
        await socket.send(**frame, event_id="wrong")
        await socket.read_until("error", event_id="wrong")


@pytest.mark.django_db(transaction=True)
async def test_what_sockets_say_is_what_it_says(
    team: Team, voice: Voice, record: Callable[[], int], document: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A session of all kinds, recorded in both directions and held against the schemas, unknown fields included."""
    monkeypatch.setattr("chatapp.api.desk.POSITION_EVERY_S", 0.05)
    monkeypatch.setattr("chatapp.limits.admission.rates_of", _rates)
    likely = [TokenLogprob("a", -0.5, 7, top=[Logprob("b", -1.0, 8, bytes=[98])])]
    async with line(team.secret) as socket:
        for topic in ("conversations", "usage"):
            await socket.send(type="subscribe", topic=topic, event_id=topic)
            await socket.read_until("subscribed", topic=topic)
        asked = await socket.create(
            input="Hello?", params={"temperature": 0, "max_tokens": 9}, event_id="q", idempotency_key="k", stream_id="a"
        )
        await socket.create(
            input=[
                {"role": "system", "content": [{"type": "text", "text": "Be brief."}]},
                {"role": "user", "content": "Hi."},
            ]
        )
        taken = voice.start()
        voice.say(
            taken,
            delta(1, Part(text="a", token_ids=[7], logprobs=likely, prompt_logprobs=likely), Part(index=1, text="b")),
            delta(2, Part(tool_calls=[ToolCallPart(id="c", name="f", arguments="{}")])),
            delta(3, Part(finish_reason="tool_calls"), Part(index=1, finish_reason="stop")),
        )
        await socket.read_until("response.function_call_arguments.delta")
        voice.finish(taken, 4, "tool_calls")
        await socket.ended(taken.id)
        await asyncio.to_thread(record)
        await socket.read_until("usage.updated")
        await socket.send(
            type="response.resume", response_id=asked["response_id"], after=1, stream_id="b", event_id="r"
        )
        await socket.ended(asked["response_id"])
        second = voice.start()
        voice.finish(second, 1, "length")
        await socket.ended(second.id)
        third = await socket.create(input="And?", stream_id="a", conversation_id=asked["conversation_id"])
        await socket.send(type="response.create", input="Next.", stream_id="a")
        await socket.send(type="response.cancel", stream_id="a", event_id="s")
        await socket.read_until("response.cancelled", response_id=third["response_id"])
        fourth = await socket.create(input="Fail, please.")
        taken = voice.start()
        voice.end(taken, protocol.Failed(seq=1, code="broken", message="It broke.", param="input", retryable=True))
        await socket.read_until("response.failed", response_id=fourth["response_id"])
        await socket.send(type="subscribe", topic="memory", conversation_id=asked["conversation_id"], event_id="m")
        await socket.read_until("subscribed", topic="memory")
        await until(voice.watched)
        voice.remember(voice.watched()[0], MemoryRun("own", blocks=2), tokens=20)
        await socket.read_until("memory.updated")
        await refusals(socket)
        found = await asyncio.to_thread(Conversation.objects.get, pk=asked["conversation_id"])
        found.deleted_at = found.created_at
        await asyncio.to_thread(found.save)
        await socket.read_until("conversation.deleted")
        await socket.send(type="unsubscribe", topic="usage")
        await socket.read_until("unsubscribed")
        await socket.send(type="ping", event_id="p")
        await socket.read_until("pong")
        sent, heard = socket.sent, [socket.hello, *socket.heard]
    monkeypatch.setattr("chatapp.api.consumers.LIFETIME_S", 0.1)
    monkeypatch.setattr("chatapp.api.consumers.EXPIRING_S", 0.05)
    async with line(team.secret) as socket:
        assert await socket.closed() == 1001
        heard += [socket.hello, *socket.heard]
    async with line("octv_wrong" + "x" * 30) as socket:
        await socket.closed()
        heard += [socket.hello, *socket.heard]
    checks = validators(document)
    for frame in (*sent, *heard):
        checks[frame["type"]].validate(frame)
    assert {frame["type"] for frame in sent} == set(frames.CLIENT_TYPES)
    told = {frame["type"] for frame in heard}
    # `lagged` is a slow client's: tests/api/test_telling.py. The rest has been said.
    missing = {asyncapi.tag(struct) for struct in asyncapi.SERVER_FRAMES} - told
    assert missing == {"lagged"}
    codes = {frame["code"] for frame in heard if frame["type"] == "error"}
    assert codes <= set(asyncapi.ERROR_CODES), codes
    assert len(codes) >= 7


def _rates(access: Any, limits: Any, what: str) -> list[Any]:
    from chatapp.limits.rates import Rate

    return [Rate(what, str(access.tenant.pk), access.principal, 1_000_000)]


def test_what_a_response_fails_of_is_in_the_document() -> None:
    """By any part that ends one, or refuses one that names a file or a model."""
    ends = re.compile(
        r'(?:Failed|Refused|Interrupted|TimedOut|RequestRefused)\(\s*(?:[a-z]+=[^,]*,\s*)?(?:code=)?"([a-z_]+)"'
    )
    found = {
        code
        for path in [*ROOT.glob("engine/w*.py"), ROOT / "engine/bus.py", *ROOT.glob("chatapp/streaming/*.py"),
                     ROOT / "chatapp/chat/reaper.py"]
        for code in ends.findall(path.read_text())
    }  # fmt: skip
    found |= set(re.findall(r'code="([a-z_]+)"', (ROOT / "chatapp/chat/attachments.py").read_text()))
    assert {"engine_fault", "engine_changed", "deadline", "tools_not_supported", "file_not_ready"} <= found
    assert found <= set(asyncapi.ERROR_CODES), found - set(asyncapi.ERROR_CODES)
