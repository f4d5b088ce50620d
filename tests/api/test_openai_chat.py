"""/v1/chat/completions as OpenAI's own client reads it, against an engine that says what the test tells it to."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextvars import copy_context
from typing import Any
from weakref import WeakKeyDictionary

import httpx2
import openai
import pydantic
import pytest
from asgiref.sync import sync_to_async

from chatapp.api import answering
from chatapp.chat.models import Generation
from engine import protocol
from engine.protocol import Finished, Logprob, Part, TokenLogprob, ToolCallPart, Usage
from tests.api.inprocess import Engine, client, engine, http, make, prompt_headers, team, until
from tests.chat.conftest import record, server, worker

__all__ = ["client", "engine", "http", "make", "prompt_headers", "record", "server", "team", "worker"]

HELLO: Any = [{"role": "user", "content": "Hello"}]
WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
TWO = [
    [Part(index=0, text="He", token_ids=[1]), Part(index=1, text="Yo", token_ids=[2])],
    [Part(index=1, text="!", token_ids=[3], finish_reason="length")],
    [Part(index=0, text="llo", token_ids=[4], finish_reason="stop")],
]
CALLS = [
    [Part(tool_calls=[ToolCallPart(id="call_a", name="get_weather")], token_ids=[1])],
    [Part(tool_calls=[ToolCallPart(arguments='{"city": ')], token_ids=[2])],
    [Part(tool_calls=[ToolCallPart(arguments='"Paris"}'), ToolCallPart(call=1, id="call_b", name="get_weather",
                                                                       arguments="{}")], token_ids=[3])],
    [Part(finish_reason="tool_calls")],
]  # fmt: skip
CALLED = Finished(finish_reason="tool_calls", usage=Usage(prompt_tokens=7, cached_tokens=3, completion_tokens=3))


def told(token: str, logprob: float, *top: tuple[str, float], data: list[int] | None = None) -> TokenLogprob:
    return TokenLogprob(token, logprob, 5, data, [Logprob(name, value) for name, value in top])


async def chunks_of(stream: Any) -> list[Any]:
    return [chunk async for chunk in stream]


async def test_a_whole_answer_has_openais_shape(client: openai.AsyncOpenAI, engine: Engine) -> None:
    asked = asyncio.create_task(
        client.chat.completions.with_raw_response.create(
            model="default", messages=HELLO, user="u", store=True, metadata={"a": "b"}, service_tier="auto",
            extra_headers={"x-request-id": "mine-1"}, extra_body={"frobnicate": 1},
        )
    )  # fmt: skip
    await engine.say([Part(text="Hello", token_ids=[1])], [Part(text=" there.", token_ids=[2, 3])])
    raw = await asked
    answer = raw.parse()
    assert (answer.object, answer.service_tier, answer.system_fingerprint) == ("chat.completion", "default", "octavo")
    (choice,) = answer.choices
    assert (choice.index, choice.message.role, choice.message.content) == (0, "assistant", "Hello there.")
    assert (choice.finish_reason, choice.logprobs, choice.message.tool_calls) == ("stop", None, None)
    assert answer.usage is not None
    assert answer.usage.prompt_tokens_details is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.total_tokens) == (7, 3, 10)
    assert answer.usage.prompt_tokens_details.cached_tokens == 3
    assert answer._request_id == raw.headers["x-request-id"] == "mine-1"
    assert int(raw.headers["openai-processing-ms"]) >= 0
    assert raw.headers["openai-version"]


async def test_several_choices_end_each_with_its_own_reason(client: openai.AsyncOpenAI, engine: Engine) -> None:
    end = Finished(finish_reason="stop", usage=Usage(prompt_tokens=7, completion_tokens=4))
    asked = asyncio.create_task(client.chat.completions.create(model="default", messages=HELLO, n=2))
    request = await engine.say(*TWO, end=end)
    assert request.params.n == 2
    answer = await asked
    said = [(choice.index, choice.message.content, choice.finish_reason) for choice in answer.choices]
    assert said == [(0, "Hello", "stop"), (1, "Yo!", "length")]
    stream = asyncio.create_task(
        client.chat.completions.create(
            model="default", messages=HELLO, n=2, stream=True, stream_options={"include_usage": True}
        )
    )
    await engine.say(*TWO, end=end)
    chunks = await chunks_of(await stream)
    assert [chunk.choices[0].delta.role for chunk in chunks[:2]] == ["assistant", "assistant"]
    for index, text, reason in said:
        mine = [chunk.choices[0] for chunk in chunks if chunk.choices and chunk.choices[0].index == index]
        assert "".join(choice.delta.content or "" for choice in mine) == text
        assert [choice.finish_reason for choice in mine if choice.finish_reason] == [reason]
        assert mine[-1].finish_reason == reason, "nothing comes behind a choice's end"
    assert (chunks[-1].choices, chunks[-1].usage.completion_tokens) == ([], 4)
    assert {chunk.usage for chunk in chunks[:-1]} == {None}
    assert len({chunk.id for chunk in chunks}) == 1


async def test_log_probabilities_have_openais_shape_with_their_bytes(
    client: openai.AsyncOpenAI, engine: Engine
) -> None:
    steps = [
        [Part(text="", token_ids=[1], logprobs=[told("\ufffd", -0.5, ("\ufffd", -0.5), data=[240, 159])])],
        [Part(text="👋", token_ids=[2], logprobs=[told("\ufffd", -0.25, ("x", -2.0), data=[145, 139])])],
    ]
    kwargs: Any = {"model": "default", "messages": HELLO, "logprobs": True, "top_logprobs": 1}
    asked = asyncio.create_task(client.chat.completions.create(**kwargs))
    request = await engine.say(*steps)
    assert request.params.logprobs == 1
    logprobs = (await asked).choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    assert bytes(b for token in logprobs.content for b in token.bytes or ()).decode() == "👋"
    assert [token.logprob for token in logprobs.content] == [-0.5, -0.25]
    top = logprobs.content[1].top_logprobs[0]
    assert (top.token, top.bytes, top.logprob) == ("x", [120], -2.0)
    stream = asyncio.create_task(client.chat.completions.create(**kwargs, stream=True))
    await engine.say(*steps)
    tokens = [
        token
        for chunk in await chunks_of(await stream)
        if chunk.choices[0].logprobs
        for token in chunk.choices[0].logprobs.content
    ]
    assert [token.model_dump() for token in tokens] == [token.model_dump() for token in logprobs.content]


async def test_tool_calls_have_openais_shape_whole_and_streamed(client: openai.AsyncOpenAI, engine: Engine) -> None:
    kwargs: Any = {"model": "default", "messages": HELLO, "tools": [WEATHER], "tool_choice": "auto"}
    asked = asyncio.create_task(client.chat.completions.create(**kwargs))
    request = await engine.say(*CALLS, end=CALLED)
    assert [tool.name for tool in request.tools] == ["get_weather"]
    (choice,) = (await asked).choices
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", None)
    calls = choice.message.tool_calls
    assert calls is not None
    assert [(call.id, call.type, call.function.name, call.function.arguments) for call in calls] == [  # type: ignore[union-attr]
        ("call_a", "function", "get_weather", '{"city": "Paris"}'), ("call_b", "function", "get_weather", "{}"),
    ]  # fmt: skip
    # Their own accumulation of the deltas comes to the same.
    opened = asyncio.create_task(engine.say(*CALLS, end=CALLED))
    async with client.chat.completions.stream(**kwargs) as stream:
        final = await stream.get_final_completion()
    await opened
    again = final.choices[0].message.tool_calls
    assert again is not None
    assert [(c.id, c.function.name, c.function.arguments) for c in again] == [
        (c.id, c.function.name, c.function.arguments) for c in calls  # type: ignore[union-attr]
    ]  # fmt: skip
    back = asyncio.create_task(
        client.chat.completions.create(
            model="default",
            tools=[WEATHER],
            messages=[
                *HELLO,
                choice.message.model_dump(exclude_none=True),
                {"role": "tool", "tool_call_id": "call_a", "content": [{"type": "text", "text": "Sunny"}]},
                {"role": "tool", "tool_call_id": "call_b", "content": ""},
            ],
        )
    )
    request = await engine.say([Part(text="It is sunny.", token_ids=[1])])
    assert [(m.role, m.tool_call_id, m.content) for m in request.messages[2:]] == [
        ("tool", "call_a", "Sunny"), ("tool", "call_b", ""),
    ]  # fmt: skip
    assert request.messages[1].tool_calls[0].arguments == '{"city": "Paris"}'
    assert (await back).choices[0].message.content == "It is sunny."


async def test_functions_of_old_are_answered_in_their_own_form(client: openai.AsyncOpenAI, engine: Engine) -> None:
    kwargs: Any = {
        "model": "default",
        "messages": [
            *HELLO,
            {"role": "assistant", "content": None, "function_call": {"name": "get_weather", "arguments": "{}"}},
            {"role": "function", "name": "get_weather", "content": "Rain"},
            {"role": "user", "content": "And in Paris?"},
        ],
        "functions": [WEATHER["function"]],
        "function_call": {"name": "get_weather"},
    }
    steps = [CALLS[0], CALLS[1], [Part(tool_calls=[ToolCallPart(arguments='"Paris"}')], token_ids=[3])], CALLS[3]]
    asked = asyncio.create_task(client.chat.completions.create(**kwargs))
    request = await engine.say(*steps, end=CALLED)
    assert (request.tool_choice, request.tool_name, request.parallel_tool_calls) == ("function", "get_weather", False)
    assert request.messages[2].tool_call_id == request.messages[1].tool_calls[0].id
    (choice,) = (await asked).choices
    assert choice.finish_reason == "function_call"
    assert choice.message.function_call is not None
    assert choice.message.function_call.arguments == '{"city": "Paris"}'
    assert choice.message.tool_calls is None
    stream = asyncio.create_task(client.chat.completions.create(**kwargs, stream=True))
    await engine.say(*steps, end=CALLED)
    deltas = [chunk.choices[0].delta.function_call for chunk in await chunks_of(await stream)]
    assert "".join(delta.arguments or "" for delta in deltas if delta) == '{"city": "Paris"}'
    assert [delta.name for delta in deltas if delta and delta.name] == ["get_weather"]


class Capital(pydantic.BaseModel):
    city: str
    people: int


async def test_an_answer_in_a_form_is_parsed_by_openais_own_client(client: openai.AsyncOpenAI, engine: Engine) -> None:
    asked = asyncio.create_task(client.chat.completions.parse(model="default", messages=HELLO, response_format=Capital))
    request = await engine.say(
        [Part(text='{"city": "Paris", ', token_ids=[1])], [Part(text='"people": 2}', token_ids=[2])]
    )
    assert request.params.grammar is not None
    assert request.params.grammar.kind == "json_schema"
    assert json.loads(request.params.grammar.text)["required"] == ["city", "people"]
    assert (await asked).choices[0].message.parsed == Capital(city="Paris", people=2)


@pytest.mark.parametrize("stream", [False, True])
async def test_what_the_engine_refuses_is_a_400_that_names_the_callers_field(
    http: httpx2.AsyncClient, engine: Engine, stream: bool
) -> None:
    for body, said, param in [
        ({"response_format": {"type": "json_object"}}, "response_format", "response_format"),
        ({"guided_regex": "a"}, "response_format", "guided_regex"),
        ({"tools": [WEATHER]}, "tools", "tools"),
        ({"functions": [WEATHER["function"]]}, "tools", "functions"),
        ({"logit_bias": {"1": 1}}, "logit_bias", "logit_bias"),
    ]:
        asked = asyncio.create_task(
            http.post("/v1/chat/completions", json={"messages": HELLO, "stream": stream, **body})
        )
        await engine.refuse(code="invalid_grammar", param=said, message="It cannot be so.")
        reply = await asked
        assert reply.status_code == 400
        assert reply.json()["error"] == {
            "message": "It cannot be so.", "type": "invalid_request_error", "param": param, "code": "invalid_grammar",
        }  # fmt: skip


async def test_whatever_is_said_an_event_is_one_line_for_those_who_read_by_lines(
    http: httpx2.AsyncClient, engine: Engine
) -> None:
    """httpx, and all that is built on Python's str.splitlines, end a line at these too."""
    said = "one\u2028two\u2029three\x85four\x0b\x0c\x1c\x1d\x1e\r\nfive"
    asked = asyncio.create_task(http.post("/v1/chat/completions", json={"messages": HELLO, "stream": True}))
    await engine.say([Part(text=said, token_ids=[1])])
    lines = [line for line in (await asked).text.splitlines() if line]
    assert lines[-1] == "data: [DONE]"
    chunks = [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]
    assert "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks if chunk["choices"]) == said


async def test_a_fault_behind_the_first_event_comes_in_the_stream_and_ends_it(
    client: openai.AsyncOpenAI, http: httpx2.AsyncClient, engine: Engine
) -> None:
    end = protocol.Failed(code="engine_error", message="Broken.", retryable=True)
    asked = asyncio.create_task(http.post("/v1/chat/completions", json={"messages": HELLO, "stream": True}))
    await engine.say([Part(text="He", token_ids=[1])], end=end)
    reply = await asked
    assert reply.status_code == 200
    lines = [line for line in reply.text.splitlines() if line]
    assert json.loads(lines[-1].removeprefix("data: "))["error"]["code"] == "engine_error"
    assert "[DONE]" not in reply.text
    opening = asyncio.create_task(client.chat.completions.create(model="default", messages=HELLO, stream=True))
    await engine.say([Part(text="He", token_ids=[1])], end=end)
    stream = await opening
    with pytest.raises(openai.APIError, match="Broken"):
        await chunks_of(stream)


async def test_a_client_that_goes_away_while_it_waits_in_the_queue_leaves_it(
    http: httpx2.AsyncClient, engine: Engine, prompt_headers: None
) -> None:
    """C10."""
    async with http.stream("POST", "/v1/chat/completions", json={"messages": HELLO, "stream": True}) as reply:
        assert reply.status_code == 200
    queue = protocol.requests_key(engine.worker.model, str((await sync_to_async(Generation.objects.get)()).tenant_id))
    await until(lambda: engine.worker.redis.xlen(queue) == 0)


async def test_a_quiet_stream_is_kept_alive_and_ends_with_done(
    http: httpx2.AsyncClient, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chatapp.api.openai_calls.HEADERS_AFTER_S", 0.05)
    monkeypatch.setattr("chatapp.api.openai_calls.KEEP_ALIVE_S", 0.05)
    async with http.stream("POST", "/v1/chat/completions", json={"messages": HELLO, "stream": True}) as reply:
        assert reply.headers["content-type"] == "text/event-stream"
        lines = reply.aiter_lines()
        assert await anext(lines) == ": keep-alive"
        await engine.say([Part(text="Hi", token_ids=[1])])
        rest = [line async for line in lines if line and not line.startswith(":")]
    assert rest[-1] == "data: [DONE]"
    assert len(rest) == 4


@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_goes_away_stops_its_answers_at_once(
    http: httpx2.AsyncClient, engine: Engine, prompt_headers: None, stream: bool, n: int
) -> None:
    """C10."""
    body = {"messages": HELLO, "stream": stream, "n": n}
    if stream:
        taking = asyncio.create_task(engine.take())
        async with http.stream("POST", "/v1/chat/completions", json=body) as reply:
            taken = await taking
            engine.tell(taken, protocol.Started(seq=0, prompt_tokens=1, cached_tokens=0))
            async for line in reply.aiter_lines():
                if line:
                    break
    else:
        asked = asyncio.create_task(http.post("/v1/chat/completions", json=body))
        taken = await engine.take()
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked
    await engine.until_stopped(taken)


async def test_openais_client_that_closes_its_stream_stops_it(client: openai.AsyncOpenAI, engine: Engine) -> None:
    taking = asyncio.create_task(engine.take())
    asked = asyncio.create_task(client.chat.completions.create(model="default", messages=HELLO, stream=True))
    taken = await taking
    engine.tell(taken, protocol.Started(seq=0, prompt_tokens=1, cached_tokens=0))
    engine.tell(taken, protocol.Delta(seq=1, parts=[Part(text="Once", token_ids=[1])]))
    stream = await asked
    async for chunk in stream:
        if chunk.choices[0].delta.content:
            break
    await stream.close()
    await engine.until_stopped(taken)


# --- idempotency --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
async def test_a_repeated_idempotency_key_gets_the_answer_that_was_begun(
    http: httpx2.AsyncClient, engine: Engine, stream: bool
) -> None:
    """While it runs, and after it has ended."""
    body = {"messages": HELLO, "stream": stream}
    headers = {"Idempotency-Key": "k1"}
    asked = [asyncio.create_task(http.post("/v1/chat/completions", json=body, headers=headers)) for _ in range(2)]
    await engine.say([Part(text="Once", token_ids=[1])])
    first, second = await asyncio.gather(*asked)
    third = await http.post("/v1/chat/completions", json=body, headers=headers)
    assert first.status_code == 200
    assert first.text == second.text == third.text
    other = await http.post("/v1/chat/completions", json={**body, "n": 2}, headers=headers)
    assert (other.status_code, other.json()["error"]["code"]) == (422, "idempotency_mismatch")


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_that_is_not_kept_any_more_is_gone_for_a_repeated_request(
    http: httpx2.AsyncClient, engine: Engine, record: Callable[[], int], stream: bool
) -> None:
    body, headers = {"messages": HELLO, "stream": stream}, {"Idempotency-Key": "k4"}
    asked = asyncio.create_task(http.post("/v1/chat/completions", json=body, headers=headers))
    request = await engine.say([Part(text="Once", token_ids=[1])])
    assert (await asked).status_code == 200
    assert await asyncio.to_thread(copy_context().run, record) == 1
    engine.worker.redis.delete(protocol.generation_key(request.id), protocol.request_key(request.id))
    again = await http.post("/v1/chat/completions", json=body, headers=headers)
    assert (again.status_code, again.json()["error"]["code"]) == (410, "expired")


async def test_a_caller_that_leaves_does_not_stop_an_answer_that_another_process_follows(
    http: httpx2.AsyncClient, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    body, headers = {"messages": HELLO}, {"Idempotency-Key": "k3"}
    first = asyncio.create_task(http.post("/v1/chat/completions", json=body, headers=headers))
    taken = await engine.take()
    await until(lambda: taken.id in answering._held().holders)
    # As another process, which knows of no other caller.
    monkeypatch.setattr(answering, "_renewals", WeakKeyDictionary())
    second = asyncio.create_task(http.post("/v1/chat/completions", json=body, headers=headers))
    await until(lambda: taken.id in answering._held().holders)
    first.cancel()
    await asyncio.wait([first])
    await until(lambda: not answering._background)
    assert engine.worker.redis.hget(protocol.request_key(taken.id), "cancel") != b"1"
    engine.tell(taken, protocol.Started(seq=0, prompt_tokens=1, cached_tokens=0))
    engine.tell(taken, protocol.Delta(seq=1, parts=[Part(text="Still here", token_ids=[1])]))
    engine.worker.end(taken, Finished(seq=2, finish_reason="stop"))
    assert (await second).json()["choices"][0]["message"]["content"] == "Still here"


async def test_a_repeated_key_begins_anew_where_the_first_call_has_no_answer(
    http: httpx2.AsyncClient, engine: Engine
) -> None:
    """Its client lost the connection, so it was stopped; or the engine failed."""
    body, headers = {"messages": HELLO}, {"Idempotency-Key": "k2"}
    asked = asyncio.create_task(http.post("/v1/chat/completions", json=body, headers=headers))
    taken = await engine.take()
    asked.cancel()
    await engine.until_stopped(taken)
    asked = asyncio.create_task(http.post("/v1/chat/completions", json=body, headers=headers))
    await engine.say(end=protocol.Failed(code="engine_error", message="Broken.", retryable=True))
    broken = await asked
    assert (broken.status_code, broken.headers["Retry-After"]) == (503, "2")
    asked = asyncio.create_task(http.post("/v1/chat/completions", json=body, headers=headers))
    await engine.say([Part(text="At last", token_ids=[1])])
    reply = await asked
    assert reply.json()["choices"][0]["message"]["content"] == "At last"


# --- bad input ----------------------------------------------------------------------------------------------------

BAD: list[tuple[Any, str | None]] = [
    ({}, "messages"),
    ({"messages": "x"}, "messages"),
    ({"messages": []}, "messages"),
    ({"messages": [{"content": "x"}]}, "messages[0].role"),
    ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
     "messages[0].content[0].type"),
    ({"messages": [{"role": "user", "content": " "}]}, "messages[0].content"),
    ({"messages": [{"role": "tool", "content": "x"}, *HELLO]}, "messages[0].tool_call_id"),
    ({"messages": HELLO, "model": 5}, "model"),
    ({"messages": HELLO, "temperature": "hot"}, "temperature"),
    ({"messages": HELLO, "temperature": 2.5}, "temperature"),
    ({"messages": HELLO, "n": 0}, "n"),
    ({"messages": HELLO, "n": 1.5}, "n"),
    ({"messages": HELLO, "top_logprobs": 3}, "top_logprobs"),
    ({"messages": HELLO, "logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    ({"messages": HELLO, "logprobs": 3}, "logprobs"),
    ({"messages": HELLO, "stream_options": {"include_usage": True}}, "stream_options"),
    ({"messages": HELLO, "stream": "yes"}, "stream"),
    ({"messages": HELLO, "response_format": {"type": "yaml"}}, "response_format.type"),
    ({"messages": HELLO, "response_format": {"type": "json_schema", "json_schema": {"name": "a"}}},
     "response_format.json_schema.schema"),
    ({"messages": HELLO, "tools": [{"type": "retrieval"}]}, "tools[0].type"),
    ({"messages": HELLO, "tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name"),
    ({"messages": HELLO, "tool_choice": "required"}, "tool_choice"),
    ({"messages": HELLO, "tools": [WEATHER], "functions": [WEATHER["function"]]}, "functions"),
    ({"messages": HELLO, "functions": [{"name": "a b"}]}, "functions[0].name"),
    ({"messages": HELLO, "functions": [{"name": "a"}, {"name": "a"}]}, "functions[1]"),
    ({"messages": HELLO, "functions": [{"name": "a"}], "function_call": {"name": "b"}}, "function_call.name"),
    ({"messages": [*HELLO, {"role": "assistant", "function_call": {"name": "", "arguments": ""}}]},
     "messages[1].function_call.name"),
    ({"messages": HELLO, "max_completion_tokens": 0}, "max_completion_tokens"),
    ({"messages": HELLO, "max_completion_tokens": 10**7}, "max_completion_tokens"),
    ({"messages": HELLO, "max_tokens": 0}, "max_tokens"),
    ({"messages": HELLO, "audio": {"voice": "x"}}, "audio"),
    ({"messages": HELLO, "modalities": ["text", "audio"]}, "modalities"),
    ({"messages": HELLO, "best_of": 3}, "best_of"),
    ({"messages": HELLO, "prompt_logprobs": 1}, "prompt_logprobs"),
    ({"messages": HELLO, "logit_bias": {"a": 1}}, "logit_bias"),
    ({"messages": HELLO, "metadata": {"a": 1}}, "metadata"),
]  # fmt: skip


async def test_wrong_input_is_a_400_that_names_the_field(http: httpx2.AsyncClient) -> None:
    """C22 and its kind."""
    for body, param in BAD:
        reply = await http.post("/v1/chat/completions", json=body)
        error = reply.json()["error"]
        assert (reply.status_code, error["param"]) == (400, param), (body, reply.text)
        assert error["message"]
        assert error["type"] == "invalid_request_error"
        assert reply.headers["x-request-id"]
    for content in (b"", b"{", b"[1]", b"null", b"\xff\xfe", b"[" * 9000, b'{"messages": "\xed\xa0\x80"}'):
        reply = await http.post("/v1/chat/completions", content=content)
        assert reply.status_code == 400, content
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"):
        reply = await http.post("/v1/chat/completions", content=b"{}", headers={"Content-Type": kind})
        assert (reply.status_code, reply.json()["error"]["code"]) == (400, "unsupported_content_type")
    reply = await http.post(
        "/v1/chat/completions", content=b"{}", headers={"Content-Type": "Application/JSON; charset=utf-8"}
    )
    assert reply.json()["error"]["param"] == "messages"
