"""Whatever comes in, an answer goes out: random frames and bodies against the running product."""

from __future__ import annotations

import json
from typing import Any

import httpx
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from chatapp.api import frames
from tests.stack import Stack

FEW = settings(
    max_examples=60, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
NOBODY = "01890000-0000-7000-8000-000000000000"

scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=30)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
)
# max_tokens small where it is right, so that what happens to be right is soon answered.
params = st.dictionaries(
    st.sampled_from(["temperature", "top_p", "top_k", "min_p", "seed", "stop", "min_tokens", "ignore_eos", "x"]),
    values,
    max_size=3,
).map(lambda chosen: {**chosen, "max_tokens": 1})
messages = st.lists(
    st.fixed_dictionaries({}, optional={"role": st.sampled_from(["user", "assistant", "system", "tool"]) | values,
                                        "content": st.text(max_size=20) | values}),
    max_size=3,
)  # fmt: skip
tools = st.lists(
    st.fixed_dictionaries({"type": st.just("function")},
                          optional={"function": st.fixed_dictionaries({"name": st.text(max_size=5)},
                                                                      optional={"parameters": values}) | values}),
    max_size=2,
)  # fmt: skip
ids = st.sampled_from([NOBODY, "", "x"]) | values
client_frames = st.fixed_dictionaries(
    {"type": st.sampled_from([*frames.CLIENT_TYPES, "response.created"]) | values},
    optional={
        "input": st.text(max_size=30) | messages | values,
        "response_id": ids,
        "conversation_id": ids,
        "parent_id": ids,
        "after": st.integers(-3, 3) | values,
        "params": params | values,
        "model": st.sampled_from(["default"]) | values,
        "idempotency_key": values,
        "stream_id": st.sampled_from(["a", ""]) | values,
        "topic": st.sampled_from(["usage", "conversations"]) | values,
        "tools": tools | values,
        "tool_choice": st.sampled_from(["auto", "required"]) | values,
        "parallel_tool_calls": values,
        "assistant_id": ids,
        "draft_id": ids,
    },
)


@FEW
@given(frame=client_frames)
def test_no_frame_that_is_json_ends_the_socket_or_goes_unanswered(stack: Stack, open_socket: Any, frame: Any) -> None:
    with open_socket() as socket:
        text = json.dumps({**frame, "event_id": "fuzz"}, allow_nan=False) if _is_json(frame) else None
        if text is None:
            return
        socket.connection.send(text)
        reply = socket.read(20)
        assert reply["type"] in ("error", "pong", "response.queued", "subscribed", "unsubscribed"), reply
        assert reply.get("code") not in ("internal", "unavailable"), (text, reply)
        assert reply.get("event_id") == "fuzz", (text, reply)
        socket.send(type="ping", event_id="after")
        while reply["type"] != "pong" or reply.get("event_id") != "after":
            reply = socket.read(20)


@FEW
@given(text=st.text(max_size=200) | st.binary(max_size=50) | client_frames.map(lambda f: repr(f)[:200]))
def test_no_bytes_at_all_hang_the_socket(stack: Stack, open_socket: Any, text: str | bytes) -> None:
    """What is no frame closes it with the reason; the next one opens as ever."""
    if isinstance(text, str):
        text = text.encode("utf-8", "replace").decode()
    with open_socket() as socket:
        socket.connection.send(text)
        reply = socket.read(20)
        assert reply["type"] in ("error", "pong"), reply
        assert reply.get("code") in ("bad_frame", "invalid_frame", None), reply
        if reply.get("code") == "bad_frame":
            assert socket.closed() == frames.CLOSE_BAD_FRAME


def _is_json(value: Any) -> bool:
    try:
        json.dumps(value, allow_nan=False).encode()
    except (ValueError, TypeError):
        return False
    return True


bodies = st.fixed_dictionaries(
    {"max_tokens": st.just(1)},
    optional={
        "messages": messages | values,
        "model": st.sampled_from(["default"]) | values,
        "stream": st.booleans() | values,
        "stream_options": st.fixed_dictionaries({"include_usage": st.booleans()}) | values,
        "temperature": st.floats(0, 2) | values,
        "top_p": values,
        "top_k": st.integers(-2, 10) | values,
        "seed": st.integers() | values,
        "stop": st.lists(st.text(max_size=3), max_size=3) | values,
        "n": st.sampled_from([1, 2]) | values,
        "tools": values,
        "logit_bias": values,
        "response_format": values,
        "cache_salt": values,
        "user": values,
        "stop_token_ids": st.lists(st.integers(), max_size=3) | values,
    },
)


@FEW
@given(body=bodies | values, key=st.none() | st.text(max_size=10))
def test_no_body_makes_the_api_fail(http: httpx.Client, body: Any, key: str | None) -> None:
    headers = {"Content-Type": "application/json"}
    if key is not None:
        headers["Idempotency-Key"] = (
            key.encode("ascii", "replace").decode().translate(dict.fromkeys(range(32), "?")).strip()
        )
    content = json.dumps(body).encode("utf-8", "replace")  # NaN and Infinity too: clients do send them
    reply = http.post("/v1/chat/completions", content=content, headers=headers)
    assert reply.status_code in (200, 400, 403, 404, 422), (body, reply.text)
    if reply.status_code != 200:
        error = reply.json()["error"]
        assert error["message"]
        assert error["type"]
