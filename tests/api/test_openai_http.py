"""The OpenAI-compatible API, by OpenAI's own client where it can ask, by httpx where it would not."""

from __future__ import annotations

import asyncio
import json
import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import httpx
import openai
import pytest

from tests.api.conftest import rows
from tests.stack import Stack, wait_for

CAPITAL = [{"role": "user", "content": "What is the capital of France?"}]


def test_a_whole_answer_and_a_streamed_one_are_the_same(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(model="default", messages=CAPITAL, temperature=0, max_tokens=24)
    assert whole.object == "chat.completion"
    assert "Paris" in str(whole.choices[0].message.content)
    assert whole.choices[0].finish_reason == "stop"
    assert whole.usage is not None
    assert whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens
    stream = client.chat.completions.create(
        model=whole.model,
        messages=CAPITAL,
        temperature=0,
        max_tokens=24,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "stop"
    assert chunks[-1].choices == []
    usage = chunks[-1].usage
    assert usage is not None
    assert usage.prompt_tokens_details is not None
    assert usage.prompt_tokens_details.cached_tokens > 0, "the same prompt was just computed"
    assert usage.completion_tokens == whole.usage.completion_tokens


async def test_the_async_client_works_unchanged(stack: Stack) -> None:
    async with openai.AsyncOpenAI(base_url=f"{stack.url}/v1", api_key=stack.key(1), max_retries=0) as client:
        answers = await asyncio.gather(
            *(
                client.chat.completions.create(
                    model="default", messages=[{"role": "user", "content": f"Count to {n}."}], max_tokens=8, seed=n
                )
                for n in range(6)
            )
        )
        assert all(answer.usage and answer.usage.completion_tokens <= 8 for answer in answers)
        names = [model.id async for model in await client.models.list()]
        assert names == [answers[0].model, "assistant:assistant"]
        assert (await client.models.retrieve("default")).id == names[0]
        with pytest.raises(openai.NotFoundError):
            await client.models.retrieve("gpt-17")


def test_the_parameters_reach_the_engine(client: openai.OpenAI) -> None:
    def ask(**settings: Any) -> Any:
        return client.chat.completions.create(model="default", messages=CAPITAL, **settings)

    assert ask(max_tokens=3, temperature=0, extra_body={"ignore_eos": True}).usage.completion_tokens == 3
    assert ask(max_completion_tokens=4, temperature=0, extra_body={"ignore_eos": True}).usage.completion_tokens == 4
    assert ask(max_tokens=3, temperature=0).choices[0].finish_reason == "length"
    stopped = ask(temperature=0, max_tokens=24, stop=[" Paris"]).choices[0]
    assert stopped.message.content == "The capital of France is"
    assert stopped.finish_reason == "stop"
    drawn = [ask(temperature=1.0, seed=seed, max_tokens=16).choices[0].message.content for seed in (3, 3, 4)]
    assert drawn[0] == drawn[1]


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        ({"messages": []}, 400, "messages"),
        ({"messages": [{"role": "user", "content": ""}]}, 400, "messages[0].content"),
        ({"messages": [{"role": "user", "content": " \n\t "}]}, 400, "messages[0].content"),
        ({"messages": [{"role": "user", "content": []}]}, 400, "messages[0].content"),
        ({"messages": [{"role": "tool", "content": "x"}]}, 400, "messages[0].tool_call_id"),
        ({"messages": [{"content": "x"}]}, 400, "messages[0].role"),
        ({"messages": "hello"}, 400, "messages"),
        ({}, 400, "messages"),
        ({"messages": CAPITAL, "temperature": "hot"}, 400, "temperature"),
        ({"messages": CAPITAL, "temperature": 3}, 400, "temperature"),
        ({"messages": CAPITAL, "max_tokens": 0}, 400, "max_tokens"),
        ({"messages": CAPITAL, "max_tokens": 10**9}, 400, "max_tokens"),
        ({"messages": CAPITAL, "stop": [""]}, 400, "stop"),
        ({"messages": CAPITAL, "n": 129}, 400, "n"),
        ({"messages": CAPITAL, "tools": [{"type": "function"}]}, 400, "tools[0].function"),
        ({"messages": CAPITAL, "model": "gpt-17"}, 404, "model"),
    ],
)
def test_bad_input_is_refused_with_the_field_named(http: httpx.Client, body: dict, status: int, param: str) -> None:
    """C22 and its kind."""
    reply = http.post("/v1/chat/completions", json=body)
    assert reply.status_code == status, reply.text
    error = reply.json()["error"]
    assert error["param"] == param
    assert error["message"]
    assert error["type"]
    assert reply.headers["x-request-id"]


def test_a_body_that_is_no_json_or_too_large_is_refused(http: httpx.Client) -> None:
    for body in (b"{", b"[1]", b"\xff\xfe", b'"text"', b"{}" * 10, b"[" * 5000):
        assert http.post("/v1/chat/completions", content=body).status_code == 400
    large = json.dumps({"messages": [{"role": "user", "content": "x" * (1 << 20)}]})
    assert http.post("/v1/chat/completions", content=large).status_code == 413
    assert http.post("/v1/chat/completions", content=large * 3).status_code == 413


@pytest.mark.parametrize("header", ["Content-Length: 268435456", "Transfer-Encoding: chunked"])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/accounts/login/"])
def test_what_is_far_too_large_is_cut_off_while_it_is_sent(stack: Stack, path: str, header: str) -> None:
    """Nobody fills the disk with what is refused anyhow, without so much as an account."""
    host, _, port = stack.url.removeprefix("http://").partition(":")
    part = b"x" * (1 << 20)
    if "chunked" in header:
        part = b"%x\r\n%b\r\n" % (len(part), part)
    sent = 0
    with socket.create_connection((host, int(port)), timeout=20) as connection:
        connection.sendall(f"POST {path} HTTP/1.1\r\nHost: {host}:{port}\r\n{header}\r\n\r\n".encode())
        with suppress(ConnectionError):
            while sent < 256:
                connection.sendall(part)
                sent += 1
    assert 8 <= sent < 64, "what the kernels on both sides hold comes on top"
    assert httpx.get(f"{stack.url}/healthz").status_code == 200


def test_a_prompt_beyond_the_context_is_refused_with_both_numbers(client: openai.OpenAI, stack: Stack) -> None:
    context = wait_for(stack.workers)[0].context
    long = [{"role": "user", "content": "one two three " * 9000}]
    for stream in (False, True):
        with pytest.raises(openai.BadRequestError) as refusal:
            client.chat.completions.create(model="default", messages=long, stream=stream)  # type: ignore[call-overload]
        assert refusal.value.code == "context_length_exceeded"
        assert refusal.value.param == "messages"
        numbers = [int(word) for word in str(refusal.value.body).replace(",", "").split() if word.isdigit()]
        assert context - 1 in numbers, "the answer needs one token at least"
        assert max(numbers) > context
    assert client.chat.completions.create(model="default", messages=CAPITAL, max_tokens=2).choices


@pytest.mark.parametrize("authorization", [None, "", "Bearer", "Bearer octv_wrong", "Basic abc", "Bearer " + "x" * 999])
def test_a_missing_or_wrong_key_is_401(stack: Stack, authorization: str | None) -> None:
    headers = {} if authorization is None else {"Authorization": authorization}
    for method, path in (("POST", "/v1/chat/completions"), ("GET", "/v1/models"), ("GET", "/v1/nothing")):
        reply = httpx.request(method, stack.url + path, headers=headers, json={} if method == "POST" else None)
        assert reply.status_code == 401, (path, reply.text)
        assert reply.json()["error"]["code"] == "invalid_api_key"


def test_unknown_addresses_and_methods_answer_in_openais_shape(http: httpx.Client) -> None:
    assert http.post("/v1/embeddings", json={}).status_code == 404
    assert http.get("/v1/chat/completions").status_code == 405
    assert http.get("/v1/chat/completions").json()["error"]["message"]


def test_an_idempotency_key_gives_the_same_answer_once(http: httpx.Client) -> None:
    body = {"messages": [{"role": "user", "content": "Say a word."}], "max_tokens": 6, "temperature": 1}
    headers = {"Idempotency-Key": "word-1"}
    first, second = (http.post("/v1/chat/completions", json=body, headers=headers) for _ in range(2))
    assert first.json() == second.json()
    other = http.post("/v1/chat/completions", json={**body, "max_tokens": 7}, headers=headers)
    assert other.status_code == 422


@pytest.mark.parametrize("after", [0, 5])
def test_a_client_that_goes_away_frees_the_engines_blocks(http: httpx.Client, stack: Stack, after: int) -> None:
    """C10: after some tokens of 2,048, and before the first one."""
    stack.wait_idle()
    body = {
        "messages": [{"role": "user", "content": f"Tell me a very long story, part {after}."}],
        "max_tokens": 2048,
        "ignore_eos": True,
        "stream": True,
    }
    with http.stream("POST", "/v1/chat/completions", json=body) as reply:
        lines = reply.iter_lines()
        seen = 0
        while seen <= after:
            seen += next(lines).startswith("data:")
        assert stack.running() == 1
    stack.wait_idle()


def test_a_client_that_goes_away_while_it_waits_for_a_whole_answer_frees_the_blocks(stack: Stack) -> None:
    stack.wait_idle()
    body = {"messages": CAPITAL, "max_tokens": 2048, "ignore_eos": True}
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(
            f"{stack.url}/v1/chat/completions",
            json=body,
            headers={"Authorization": f"Bearer {stack.key()}"},
            timeout=httpx.Timeout(5, read=1.0),
        )
    stack.wait_idle()


def test_an_answer_that_somebody_stops_is_not_asked_for_again(stack: Stack, open_socket: Any) -> None:
    stack.wait_idle()
    patient = openai.OpenAI(base_url=f"{stack.url}/v1", api_key=stack.key())  # it retries, as it does by default
    before = rows(stack, "SELECT count(*) FROM chat_generation")
    with open_socket() as socket, ThreadPoolExecutor() as pool:
        asked = pool.submit(
            patient.chat.completions.create,
            model="default",
            messages=CAPITAL,  # type: ignore[arg-type]
            max_tokens=2048,
            extra_body={"ignore_eos": True},
        )
        (held,) = wait_for(
            lambda: [key for name in stack.redis.keys("octavo:held:*") for key in stack.redis.smembers(name)]
        )
        socket.send(type="response.cancel", response_id=held.decode())
        with pytest.raises(openai.ConflictError):
            asked.result(30)
    assert rows(stack, "SELECT count(*) FROM chat_generation")[0][0] == before[0][0] + 1
    stack.wait_idle()


def test_no_tenant_is_told_what_another_has_in_the_cache(stack: Stack, open_socket: Any) -> None:
    """C1, over HTTP and the websocket."""
    messages = [
        {"role": "system", "content": "You are the night clerk of a very old hotel by the sea. " * 8},
        {"role": "user", "content": "Which rooms have a view of the harbour, and which of the garden? " * 8},
    ]

    def cached(tenant: int) -> tuple[int, int]:
        reply = httpx.post(
            f"{stack.url}/v1/chat/completions",
            json={"messages": messages, "max_tokens": 2, "temperature": 0},
            headers={"Authorization": f"Bearer {stack.key(tenant)}"},
            timeout=60,
        ).json()
        usage = reply["usage"]
        return usage["prompt_tokens_details"]["cached_tokens"], usage["prompt_tokens"]

    def cached_by_socket(tenant: int) -> int:
        with open_socket(stack.key(tenant)) as socket:
            frames = socket.answer(input=messages, params={"max_tokens": 2, "temperature": 0})
            return int(frames[-1]["usage"]["cached_tokens"])

    cached(0)
    again, prompt = cached(0)
    assert again >= prompt - 16 - 1, "the same key finds its own prompt again, but for the last block"
    # What another tenant finds is at most its own published prompt: no more than for a prompt that nobody has sent.
    for tenant in (1, 2):
        own, _ = cached(tenant)
        published = stack.published_tokens(tenant)
        assert own <= published, (own, published)
    assert cached_by_socket(3) <= stack.published_tokens(3)
    assert cached_by_socket(0) >= again
