"""What may be asked for, in whose words complaints come, and that no body at all ends in a 500."""

from __future__ import annotations

import asyncio
import json
from typing import Any, Literal

import openai
import pytest
from django.test import AsyncClient
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from chatapp.chat.models import Generation
from chatapp.responses.models import StoredResponse
from chatapp.tenants.models import KeyScope
from chatapp.tenants.services import create_api_key
from engine.protocol import Logprob, Part, TokenLogprob
from tests.api.inprocess import openai_client
from tests.chat.conftest import Team
from tests.responses.conftest import Script, call

pytestmark = pytest.mark.django_db(transaction=True)

WEATHER = {
    "type": "function",
    "name": "weather",
    "description": "The weather of a place.",
    "parameters": {"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]},
}
PICTURE = {"type": "input_image", "image_url": "https://example.org/a.png"}
ASK = {"role": "user", "content": "?"}


async def post(secret: str, body: Any, path: str = "/v1/responses", **headers: str) -> Any:
    sent = body if isinstance(body, bytes) else json.dumps(body).encode()
    return await AsyncClient().post(
        path, sent, content_type="application/json", headers={"Authorization": f"Bearer {secret}", **headers}
    )


async def get(secret: str, path: str, **headers: str) -> Any:
    return await AsyncClient().get(path, headers={"Authorization": f"Bearer {secret}", **headers})


BAD: list[tuple[dict[str, Any], int, str | None]] = [
    ({}, 400, "input"),
    ({"input": None}, 400, "input"),
    ({"input": []}, 400, "input"),
    ({"input": 5}, 400, "input"),
    ({"input": " \n"}, 400, "input[0].content"),
    ({"input": [{"role": "user", "content": ""}]}, 400, "input[0].content"),
    ({"input": [{"role": "user"}]}, 400, "input[0].content"),
    ({"input": [{"role": "king", "content": "x"}]}, 400, "input[0].role"),
    ({"input": [{"role": "system", "content": "x"}]}, 400, "input"),
    ({"input": [ASK, {"role": "user", "content": [PICTURE]}]}, 400, "input[1].content[0].type"),
    ({"input": [{"role": "user", "content": [{"type": "input_text"}]}]}, 400, "input[0].content[0].text"),
    ({"input": [{"role": "user", "content": [{"type": "input_text", "text": 1}]}]}, 400, "input[0].content[0].text"),
    ({"input": [{"type": "reasoning", "summary": []}]}, 400, "input[0].type"),
    ({"input": [{"type": "computer_call"}]}, 400, "input[0].type"),
    ({"input": [{"type": "function_call", "call_id": "c", "name": "f"}]}, 400, "input[0].arguments"),
    ({"input": [ASK, {"type": "function_call_output", "call_id": "c", "output": "x"}]}, 400, "input[1].call_id"),
    ({"input": [ASK, {"type": "function_call_output", "output": "x"}]}, 400, "input[1].call_id"),
    (
        {"input": [ASK, {"type": "function_call", "call_id": "c", "name": "a b", "arguments": "{}"}]},
        400,
        "input[1].name",
    ),
    ({"input": [{"type": "item_reference", "id": "msg_none"}]}, 400, "input[0].id"),
    ({"input": [{"id": "msg_none"}]}, 400, "input[0].id"),
    ({"input": [{}]}, 400, "input[0].id"),
    ({"input": "x", "model": "gpt-17"}, 404, "model"),
    ({"input": "x", "model": "assistant:none"}, 404, "model"),
    ({"input": "x", "model": 3}, 400, "model"),
    ({"input": "x", "temperature": "hot"}, 400, "temperature"),
    ({"input": "x", "temperature": 3}, 400, "temperature"),
    ({"input": "x", "max_output_tokens": 0}, 400, "max_output_tokens"),
    ({"input": "x", "max_output_tokens": 10**9}, 400, "max_output_tokens"),
    ({"input": "x", "top_logprobs": 21}, 400, "top_logprobs"),
    ({"input": "x", "previous_response_id": "resp_none"}, 400, "previous_response_id"),
    ({"input": "x", "previous_response_id": 1}, 400, "previous_response_id"),
    ({"input": "x", "background": True, "store": False}, 400, "background"),
    ({"input": "x", "store": "no"}, 400, "store"),
    ({"input": "x", "stream": 1}, 400, "stream"),
    ({"input": "x", "include": ["everything"]}, 400, "include[0]"),
    ({"input": "x", "metadata": {"a": 1}}, 400, "metadata"),
    ({"input": "x", "metadata": {str(n): "v" for n in range(17)}}, 400, "metadata"),
    ({"input": "x", "metadata": {"k" * 65: "v"}}, 400, "metadata"),
    ({"input": "x", "metadata": {"key": "v" * 513}}, 400, "metadata.key"),
    ({"input": "x", "truncation": "auto"}, 400, "truncation"),
    ({"input": "x", "conversation": "conv_1"}, 400, "conversation"),
    ({"input": "x", "prompt": {"id": "pmpt_1"}}, 400, "prompt"),
    ({"input": "x", "reasoning": {"effort": "high"}}, 400, "reasoning.effort"),
    ({"input": "x", "text": {"verbosity": "low"}}, 400, "text.verbosity"),
    ({"input": "x", "text": {"format": {"type": "xml"}}}, 400, "text.format.type"),
    ({"input": "x", "text": {"format": {"type": "json_schema", "name": "n"}}}, 400, None),
    ({"input": "x", "text": {"format": {"type": "json_schema", "name": "n", "schema": 1}}}, 400, None),
    ({"input": "x", "tools": [{"type": "web_search"}]}, 400, "tools[0].type"),
    ({"input": "x", "tools": [{"type": "function", "name": "a b"}]}, 400, "tools[0].name"),
    ({"input": "x", "tools": [WEATHER, WEATHER]}, 400, "tools[1]"),
    ({"input": "x", "tools": [WEATHER], "tool_choice": {"type": "function", "name": "no"}}, 400, "tool_choice.name"),
    ({"input": "x", "tool_choice": "required"}, 400, "tool_choice"),
    ({"input": "x", "max_tool_calls": 0}, 400, "max_tool_calls"),
    ({"input": "x", "user": "u" * 600}, 400, "user"),
    ({"messages": [ASK]}, 400, "messages"),
    ({"input": "x", "max_tokens": 5}, 400, "max_tokens"),
    ({"input": "x", "response_format": {"type": "json_object"}}, 400, "response_format"),
    ({"input": "x", "n": 2}, 400, "n"),
]


async def test_bad_input_is_refused_with_the_field_named_in_the_callers_words(team: Team) -> None:
    """C22 and its kind."""
    for body, status, param in BAD:
        reply = await post(team.secret, {"background": True, **body})  # should one be taken, nobody has to answer it
        assert reply.status_code == status, (body, reply.content)
        error = reply.json()["error"]
        assert error["message"], body
        if param is None:
            assert error["param"].startswith("text.format"), (body, error)
        else:
            assert error["param"] == param, (body, error)
        assert reply["x-request-id"]
    for raw in (b"{", b"[1]", b"\xff\xfe", b'"text"', b"[" * 5000, b'{"background":true,"input":"\xff"}'):
        assert (await post(team.secret, raw)).status_code == 400, raw
    assert not await Generation.objects.aexists()
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"):
        body = b'{"input": "?", "background": true}'
        headers = {"Authorization": f"Bearer {team.secret}"}
        reply = await AsyncClient().post("/v1/responses", body, content_type=kind, headers=headers)
        assert (reply.status_code, reply.json()["error"]["code"]) == (400, "unsupported_content_type"), kind
    assert not await Generation.objects.aexists()
    for query, param in (
        ("?stream=perhaps", "stream"),
        ("?stream=true&starting_after=-1", "starting_after"),
        ("?stream=true&starting_after=x", "starting_after"),
        ("?include=all", "include[0]"),
        ("/input_items?limit=0", "limit"),
        ("/input_items?limit=101", "limit"),
        ("/input_items?order=up", "order"),
    ):
        reply = await get(team.secret, f"/v1/responses/resp_1{query}")
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, param), query
    reply = await get(team.secret, "/v1/responses/resp_1?stream=true", **{"Last-Event-ID": "seven"})
    assert reply.json()["error"]["param"] == "Last-Event-ID"
    for method, path in (("PUT", ""), ("GET", ""), ("POST", "/resp_1"), ("GET", "/resp_1/cancel")):
        reply = await AsyncClient().generic(
            method, f"/v1/responses{path}", headers={"Authorization": f"Bearer {team.secret}"}
        )
        assert reply.status_code == 405, (method, path)


async def test_what_changes_nothing_here_is_taken_and_told_back(client: openai.AsyncOpenAI, script: Script) -> None:
    extra = {
        "nobody_knows_this": {"a": 1}, "service_tier": "auto", "truncation": "disabled", "prompt_cache_key": "p",
        "include": ["reasoning.encrypted_content"], "reasoning": {"effort": None}, "max_tool_calls": 3,
        "text": {"format": {"type": "text"}, "verbosity": "medium"}, "stream_options": {"include_obfuscation": False},
    }  # fmt: skip
    asking = client.responses.create(model="default", input="Odd: \0 \U0001f468\u200d\U0001f469", extra_body=extra)
    made, request = await asyncio.gather(asking, script.answer("Yes"))
    assert request.messages[0].content == "Odd:  \U0001f468\u200d\U0001f469"
    assert (made.prompt_cache_key, made.max_tool_calls, made.service_tier) == ("p", 3, "default")
    assert made.text is not None
    assert made.text.to_dict() == {"format": {"type": "text"}, "verbosity": "medium"}


async def test_only_a_key_that_may_sends_instructions_of_its_own(team: Team, script: Script) -> None:
    secret = (await asyncio.to_thread(create_api_key, tenant=team.tenant, name="chat", scopes=(KeyScope.CHAT,)))[1]
    for body, param in (
        ({"input": "x", "instructions": "Obey."}, "instructions"),
        ({"input": [{"role": "developer", "content": "Obey."}, ASK]}, "input"),
    ):
        reply = await post(secret, body)
        assert (reply.status_code, reply.json()["error"]["param"]) == (403, param)
    usage = (await asyncio.to_thread(create_api_key, tenant=team.tenant, name="u", scopes=(KeyScope.USAGE,)))[1]
    assert (await post(usage, {"input": "x"})).status_code == 403
    assert (await get(usage, "/v1/responses/resp_1")).status_code == 403
    made, request = await asyncio.gather(
        openai_client(team.secret).responses.create(model="default", input="x", instructions="Obey."),
        script.answer("y"),
    )
    assert [text.text for text in request.system][-1] == "Obey."
    assert made.instructions == "Obey."


async def test_a_function_is_called_answered_and_gone_on_from(client: openai.AsyncOpenAI, script: Script) -> None:
    tools: Any = [WEATHER]
    say: Any = [*[Part(text="Let me look.", token_ids=[1])]]
    first, request = await asyncio.gather(
        client.responses.create(model="default", input="Weather in Oslo?", tools=tools, tool_choice="required"),
        script.answer(say, call(0, '{"pla', "weather"), call(0, 'ce":"Oslo"}'), finish_reason="tool_calls"),
    )
    assert (request.tools[0].name, request.tool_choice) == ("weather", "required")
    assert request.tools[0].parameters == WEATHER["parameters"]
    assert [item.type for item in first.output] == ["message", "function_call"]
    called = first.output[1]
    assert called.type == "function_call"
    assert (called.name, called.arguments, called.status) == ("weather", '{"place":"Oslo"}', "completed")
    assert first.tools[0].to_dict()["parameters"] == WEATHER["parameters"]
    result: Any = [{"type": "function_call_output", "call_id": called.call_id, "output": "Rain"}]
    for go_on in (
        {"previous_response_id": first.id, "input": result},
        {"input": [{"role": "user", "content": "Weather in Oslo?"}, *first.output, *result]},
    ):
        done, request = await asyncio.gather(
            client.responses.create(model="default", tools=tools, **go_on),  # type: ignore[call-overload]
            script.answer("Rain."),
        )
        question, asked, told = request.messages
        assert (question.role, asked.role, told.role) == ("user", "assistant", "tool")
        assert (asked.content, [made.name for made in asked.tool_calls]) == ("Let me look.", ["weather"])
        assert (told.content, told.tool_call_id) == ("Rain", called.call_id)
        assert done.output_text == "Rain."


async def test_calls_stream_and_a_call_that_was_cut_is_not_gone_on_from(
    client: openai.AsyncOpenAI, script: Script
) -> None:
    tools: Any = [WEATHER]

    async def read() -> list[Any]:
        async with client.responses.stream(model="default", input="Weather?", tools=tools) as stream:
            return [event async for event in stream]

    seen, _ = await asyncio.gather(
        read(),
        script.answer(call(0, "", "weather"), call(0, "{}"), call(1, '{"a', "weather"), finish_reason="length"),
    )
    snapshots = [event.snapshot for event in seen if event.type == "response.function_call_arguments.delta"]
    assert snapshots == ["{}", '{"a']
    last = seen[-1]
    assert last.type == "response.incomplete"
    assert last.response.incomplete_details.reason == "max_output_tokens"
    assert [item.status for item in last.response.output] == ["completed", "incomplete"]
    made, request = await asyncio.gather(
        client.responses.create(
            model="default",
            previous_response_id=last.response.id,
            input=[{"type": "function_call_output", "call_id": "call_0", "output": "Rain"}],
        ),
        script.answer("Rain."),
    )
    assert [len(message.tool_calls) for message in request.messages] == [0, 1, 0]
    assert made.output_text == "Rain."


async def test_a_form_is_parsed_by_the_client_and_log_probabilities_come_along(
    client: openai.AsyncOpenAI, script: Script
) -> None:
    class Mood(BaseModel):
        mood: Literal["good", "bad"]

    parsed, request = await asyncio.gather(
        client.responses.parse(model="default", input="How are you?", text_format=Mood),
        script.answer('{"mood":"good"}'),
    )
    assert parsed.output_parsed == Mood(mood="good")
    assert request.params.grammar is not None
    assert request.params.grammar.kind == "json_schema"
    token = TokenLogprob(token="Hi", logprob=-0.25, top=[Logprob(token="Ho", logprob=-1.5)])
    made, request = await asyncio.gather(
        client.responses.create(
            model="default", input="Hello", include=["message.output_text.logprobs"], top_logprobs=1
        ),
        script.answer([Part(text="Hi", token_ids=[1], logprobs=[token])]),
    )
    assert request.params.logprobs == 1
    text = made.output[0].content[0]  # type: ignore[union-attr]
    assert text.logprobs[0].to_dict() == {  # type: ignore[index,union-attr]
        "token": "Hi", "bytes": [72, 105], "logprob": -0.25,
        "top_logprobs": [{"token": "Ho", "bytes": [72, 111], "logprob": -1.5}],
    }  # fmt: skip


# --- anything at all ----------------------------------------------------------------------------------------------

scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=12) | st.just("\0\ud800")
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3)
)
parts = st.fixed_dictionaries(
    {"type": st.sampled_from(["input_text", "output_text", "refusal", "input_image"])},
    optional={"text": st.text(max_size=8) | values, "refusal": values},
)
item = st.fixed_dictionaries(
    {},
    optional={
        "type": st.sampled_from(["message", "function_call", "function_call_output", "item_reference"]) | values,
        "role": st.sampled_from(["user", "assistant", "developer"]) | values,
        "content": st.text(max_size=8) | st.lists(parts, max_size=2) | values,
        "call_id": st.sampled_from(["a", "b"]) | values,
        "name": st.sampled_from(["f", "g"]) | values,
        "arguments": st.sampled_from(["{}", "{"]) | values,
        "output": st.text(max_size=8) | st.lists(parts, max_size=2) | values,
        "id": st.sampled_from(["msg_x", f"msg_{'0' * 32}_0"]) | values,
    },
)
function = st.fixed_dictionaries(
    {"type": st.just("function")},
    optional={
        "name": st.sampled_from("fg"),
        "parameters": st.sampled_from([{}, {"type": "object"}]) | values,
        "strict": values,
    },
)
tools = st.lists(function | values, max_size=2)
bodies = st.fixed_dictionaries(
    {"input": st.text(max_size=8) | st.lists(st.just(ASK) | item, max_size=3) | values},
    optional={
        "model": st.sampled_from(["default"]) | values,
        "instructions": values,
        "previous_response_id": st.sampled_from(["resp_" + "0" * 32]) | values,
        "max_output_tokens": st.integers(1, 5) | values,
        "temperature": values,
        "top_logprobs": st.integers(-1, 21) | values,
        "include": st.lists(st.sampled_from(["message.output_text.logprobs", "x"]), max_size=2) | values,
        "text": st.fixed_dictionaries({"format": st.fixed_dictionaries(
            {"type": st.sampled_from(["text", "json_object", "json_schema", "x"])},
            optional={"name": values, "schema": st.just({"type": "object"}) | values, "strict": values})}) | values,
        "tools": tools | values,
        "tool_choice": st.sampled_from(["auto", "none", "required", {"type": "function", "name": "f"}]) | values,
        "metadata": st.dictionaries(st.text(max_size=4), st.text(max_size=4), max_size=3) | values,
        "store": values,
        "seed": values,
        "logit_bias": values,
        "conversation": values,
        "user": values,
        "anything": values,
    },
)  # fmt: skip


def test_no_body_ends_in_a_500_and_what_is_taken_can_be_read_again(team: Team) -> None:
    """In the background nobody has to answer them. Odd values must survive the database."""

    async def ask(body: dict[str, Any]) -> None:
        reply = await post(team.secret, json.dumps({**body, "background": True}).encode("utf-8", "surrogatepass"))
        assert reply.status_code in (200, 400, 404), (body, reply.content)
        said = reply.json()
        if reply.status_code == 200:
            assert said["status"] == "queued"
            again = await get(team.secret, f"/v1/responses/{said['id']}")
            assert again.json() == said
            assert (await get(team.secret, f"/v1/responses/{said['id']}/input_items")).status_code == 200
        else:
            assert said["error"]["message"]

    taken = 0

    @settings(max_examples=150, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
    @given(body=bodies)
    def run(body: dict[str, Any]) -> None:
        asyncio.run(ask(body))

    run()
    taken = StoredResponse.objects.count()
    assert taken >= 5, "most of what is tried must not end at the first check"
