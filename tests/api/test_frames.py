"""What is a frame and what is none: the parser alone, and random frames against a socket of this process."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from chatapp.api import frames
from chatapp.api.frames import FrameError
from tests.api.sockets import Line, line
from tests.api.test_fuzz import client_frames
from tests.chat.conftest import Team, server, strangers, team

__all__ = ["server", "strangers", "team"]

NINES = "9" * 5000
STRANGE = [
    # (text, the code of the error or None where it is a frame, the field)
    ('{"type":"ping","x":1e999}', None, None),
    (f'{{"type":"ping","x":{NINES}}}', None, None),
    ('{"type":"ping","event_id":"\\ud800"}', None, None),
    ('{"type":"ping","event_id":"\\u0000"}', None, None),
    ('{"type":"ping","\\ud800\\u0000":1}', None, None),
    ('{"type":"response.resume","type":"ping"}', "invalid_frame", "type"),
    ('{"event_id":"a","event_id":"b","type":"ping"}', None, None),
    (' \n\t{"type":"ping"}\r\n', None, None),
    ('{"type":"response.create"}', "invalid_frame", "input"),
    ('{"type":"response.create","input":null}', "invalid_frame", "input"),
    ('{"type":"response.create","question_id":"q"}', None, None),
    ('{"type":"response.create","continue_id":5}', "invalid_frame", "continue_id"),
    ('{"type":"response.create","input":"half \\ud83d of it"}', None, None),
    ('{"type":"response.create","input":"x","params":{"seed":1e999}}', "invalid_frame", "params"),
    (f'{{"type":"response.create","input":"x","params":{{"seed":{NINES}}}}}', "invalid_frame", "params"),
    ('{"type":"response.resume","response_id":"x","after":1e999}', "invalid_frame", "after"),
    (f'{{"type":"response.resume","response_id":"x","after":-{NINES}}}', "invalid_frame", "after"),
    ('{"type":"response.resume","response_id":"x","after":1e2}', "invalid_frame", "after"),
    ('{"type":"response.resume","response_id":"x","after":-0}', None, None),
    ('{"type":"response.resume","response_id":"x","after":true}', "invalid_frame", "after"),
    ('{"type":"ping","event_id":"' + "\\ud800" * 129 + '"}', None, None),
    ('{"type":"\\ud800ping"}', None, None),
    ("null", "invalid_frame", None),
    ("1e999", "invalid_frame", None),
    ("[]", "invalid_frame", None),
    ('{"type":"ping","x":NaN}', "bad_frame", None),
    ('{"type":"ping","x":-Infinity}', "bad_frame", None),
    ('{"type":"ping","x":01}', "bad_frame", None),
    ('{"type":"ping",}', "bad_frame", None),
    ("\ufeff" + '{"type":"ping"}', "bad_frame", None),
    ("{'type':'ping'}", "bad_frame", None),
    ("", "bad_frame", None),
]


@pytest.mark.parametrize(("text", "code", "param"), STRANGE, ids=lambda value: str(value)[:40])
def test_json_by_its_grammar_is_a_frame_or_an_error_and_only_what_is_no_json_closes(
    text: str, code: str | None, param: str | None
) -> None:
    if code is None:
        frames.parse(text)
        return
    with pytest.raises(FrameError) as error:
        frames.parse(text)
    assert (error.value.code, error.value.param) == (code, param)
    assert error.value.close == (4400 if code == "bad_frame" else None)


FEW = settings(
    max_examples=60, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
odd_numbers = st.sampled_from(["1e999", "-0", "1E2", NINES[:400], NINES, "0.1e-400", "-1", "true", "null"])
odd_texts = st.sampled_from(['"\\ud800"', '"\\u0000"', '"\\udfff\\ud800"', '""', '" "', '"' + "x" * 200 + '"'])
odd_values = st.recursive(
    odd_numbers | odd_texts,
    lambda inner: (
        st.lists(inner, max_size=3).map(lambda found: f"[{','.join(found)}]")
        | st.lists(st.tuples(odd_texts, inner), max_size=3).map(
            lambda found: "{" + ",".join(f"{name}:{value}" for name, value in found) + "}"
        )
    ),
    max_leaves=6,
)
names = st.sampled_from(
    [
        "input", "params", "stream_id", "conversation_id", "parent_id", "question_id", "continue_id", "response_id",
        "after", "topic", "tools", "tool_choice", "model", "idempotency_key", "draft_id", "assistant_id",
        "parallel_tool_calls", "x",
    ]
)  # fmt: skip
fields = st.lists(st.tuples(names, odd_values), max_size=4)  # a name may come twice


async def answered(secret: str, texts: list[str]) -> None:
    async with line(secret) as socket:
        for text in texts:
            await one_answer(socket, text)


async def one_answer(socket: Line, text: str) -> None:
    """The frame has one answer with its event_id, and the socket is as good as before."""
    await socket.communicator.send_to(text_data=text)
    while (reply := await socket.read()).get("event_id") != "fuzz":
        assert reply["type"] in ("response.queued", "rate_limits.updated", "response.created"), (text, reply)
    assert reply["type"] in ("error", "pong", "response.queued", "subscribed", "unsubscribed"), (text, reply)
    assert reply.get("code") not in ("internal", "unavailable"), (text, reply)
    await socket.send(type="ping", event_id="after")
    await socket.read_until("pong", event_id="after")


@pytest.mark.django_db(transaction=True)
def test_a_frame_of_any_type_with_odd_values_is_answered_and_the_socket_stays(team: Team) -> None:
    @FEW
    @given(kinds=st.lists(st.tuples(st.sampled_from(frames.CLIENT_TYPES), fields), min_size=1, max_size=6))
    def tried(kinds: list[Any]) -> None:
        texts = []
        for kind, given_fields in kinds:
            parts = [f'"{name}":{value}' for name, value in given_fields]
            texts.append("{" + ",".join([f'"type":"{kind}"', '"event_id":"fuzz"', *parts]) + "}")
        asyncio.run(answered(team.secret, texts))

    tried()


@pytest.mark.django_db(transaction=True)
def test_a_frame_of_any_shape_is_answered_and_the_socket_stays(team: Team) -> None:
    @FEW
    @given(frame=client_frames)
    def tried(frame: Any) -> None:
        text = json.dumps({**frame, "event_id": "fuzz"})
        if "NaN" not in text and "Infinity" not in text:  # which are no JSON
            asyncio.run(answered(team.secret, [text]))

    tried()
