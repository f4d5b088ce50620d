"""Whatever body comes, the API answers it: never with a 500, never not at all. In one process, with an engine that
says a word to whatever reaches it."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine import protocol
from engine.protocol import Finished, Part
from tests.api.inprocess import Engine, engine, http_client, make, team
from tests.chat.conftest import Team, server, worker

__all__ = ["engine", "make", "server", "team", "worker"]

FEW = settings(
    max_examples=120, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
)

scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
)


def some(**fields: Any) -> Any:
    """An object with some of these fields, each right more often than not."""
    return st.fixed_dictionaries({}, optional={name: kind | kind | values for name, kind in fields.items()})


names = st.sampled_from(["f", "get_weather", "a b", ""])
schemas = st.sampled_from([{}, {"type": "object"}, {"type": "object", "properties": {"a": {"enum": [1]}}}])
functions = some(name=names, description=st.text(max_size=5), parameters=schemas, strict=st.booleans(),
                 arguments=st.sampled_from(["{}", "{", ""]))  # fmt: skip
tools = some(type=st.just("function"), function=functions, name=names)
calls = some(id=st.sampled_from(["a", "b", ""]), type=st.just("function"), function=functions)
contents = st.text(max_size=20) | st.lists(some(type=st.sampled_from(["text", "refusal", "image_url"]),
                                                text=st.text(max_size=5)), max_size=2)  # fmt: skip
messages = some(
    role=st.sampled_from(["user", "assistant", "system", "developer", "tool", "function"]),
    content=contents,
    tool_calls=st.lists(calls, max_size=2),
    tool_call_id=st.sampled_from(["a", "b"]),
    function_call=functions,
    name=names,
)
hello = {"role": "user", "content": "Hello"}
drawing: dict[str, Any] = {
    "model": st.sampled_from(["default", "assistant:assistant"]),
    "stream": st.booleans(),
    "stream_options": some(include_usage=st.booleans()),
    "temperature": st.floats(0, 2),
    "top_k": st.integers(-2, 9),
    "seed": st.integers(-(2**64), 2**64),
    "stop": st.lists(st.text(max_size=3), max_size=3) | st.text(max_size=3),
    "n": st.integers(0, 3),
    "logit_bias": st.dictionaries(st.sampled_from(["1", "²", "-1", "9" * 30]), st.floats(-101, 101), max_size=2),
    "presence_penalty": st.floats(-3, 3),
    "structured_outputs": some(json=schemas, regex=st.text(max_size=5), choice=st.lists(st.text(max_size=3))),
    "guided_choice": st.lists(st.text(max_size=3), max_size=2),
    "cache_salt": st.text(max_size=5),
    "max_tokens": st.integers(-1, 5),
}
chats = st.fixed_dictionaries(
    {"messages": st.lists(messages, max_size=3).map(lambda some: [hello, *some]) | values},
    optional={
        **{name: kind | values for name, kind in drawing.items()},
        "logprobs": st.booleans(),
        "top_logprobs": st.integers(-1, 21) | values,
        "response_format": some(type=st.sampled_from(["text", "json_object", "json_schema"]),
                                json_schema=some(name=names, schema=schemas, strict=st.booleans())),
        "tools": st.lists(tools, max_size=3) | values,
        "tool_choice": st.sampled_from(["auto", "none", "required"]) | tools | values,
        "parallel_tool_calls": st.booleans() | values,
        "functions": st.lists(functions, max_size=2),
        "function_call": st.sampled_from(["auto", "none"]) | functions,
        "metadata": values,
    },
)  # fmt: skip
prompts = st.text(max_size=9) | st.lists(st.text(max_size=9), max_size=3) | st.lists(st.integers(-1, 9), max_size=3)
completions = st.fixed_dictionaries(
    {"prompt": prompts | st.lists(st.lists(st.integers(0, 9), max_size=3), max_size=3) | values},
    optional={
        **{name: kind | values for name, kind in drawing.items()},
        "echo": st.booleans() | values,
        "logprobs": st.integers(-1, 21) | values,
        "best_of": st.integers(0, 3) | values,
        "suffix": st.text(max_size=3) | values,
    },
)
keys = st.none() | st.sampled_from(["k", "ä", "x" * 300]) | st.text(max_size=5)


async def serve(engine: Engine) -> None:
    while True:
        taken = await engine.take()
        wanted = protocol.decode_request(taken.payload).params.n
        parts = [Part(index=index, text="a", token_ids=[1], finish_reason="stop") for index in range(wanted)]
        engine.tell(
            taken, protocol.Started(seq=0, prompt_tokens=1, cached_tokens=0), protocol.Delta(seq=1, parts=parts)
        )
        engine.worker.end(taken, Finished(seq=2, finish_reason="stop"))


def test_no_body_makes_the_api_fail_or_hang(team: Team, engine: Engine) -> None:
    statuses: set[int] = set()

    async def ask(path: str, body: Any, key: str | None) -> None:
        headers = {"Content-Type": "application/json"}
        if key is not None:
            headers["Idempotency-Key"] = key.encode("ascii", "replace").decode().translate(dict.fromkeys(range(32)))
        content = json.dumps(body).encode("utf-8", "replace")  # NaN and Infinity too: clients do send them
        serving = asyncio.create_task(serve(engine))
        async with http_client(team.secret) as client:
            reply = await asyncio.wait_for(client.post(path, content=content, headers=headers), 20)
        serving.cancel()
        statuses.add(reply.status_code)
        assert reply.status_code in (200, 400, 403, 404, 410, 422), (body, reply.text)
        if reply.status_code == 200:
            assert reply.text.endswith("data: [DONE]\n\n") or reply.json()["choices"]
        else:
            error = reply.json()["error"]
            assert error["message"]
            assert error["type"]

    @FEW
    @given(
        asked=st.tuples(st.just("/v1/chat/completions"), chats | values)
        | st.tuples(st.just("/v1/completions"), completions | values),
        key=keys,
    )
    def run(asked: tuple[str, Any], key: str | None) -> None:
        with asyncio.Runner() as runner:
            runner.run(ask(*asked, key))

    run()
    assert {200, 400} <= statuses, "some of it is right, and some is not"
