"""The client knows what this very server says and takes: names do not drift apart."""

from __future__ import annotations

import math
from typing import Any, get_args

import msgspec
import pytest
from octavo_client import frames
from octavo_client.call import Call
from octavo_client.errors import RequestRefused
from octavo_client.options import request_of

from chatapp.api import client_frames, server_frames

# What the client has no use for: the lane comes back as it was given, `unsubscribed` answers what nobody waits for, and
# a chat's blocks are for the page's drawer; a program asks for them over HTTP.
UNUSED = {"stream_id"}
PASSED_OVER = {"unsubscribed", "memory.updated"}


def tag(kind: type[msgspec.Struct]) -> str:
    return str(kind.__struct_config__.tag)


@pytest.mark.parametrize("kind", get_args(server_frames.AnyServerFrame), ids=tag)
def test_every_frame_of_the_server_is_known_with_all_of_its_fields(kind: Any) -> None:
    if tag(kind) in PASSED_OVER:
        return
    known = frames.TYPES[tag(kind)]
    assert set(kind.__struct_fields__) - UNUSED <= set(known.__struct_fields__)


def test_every_field_of_a_request_can_be_given() -> None:
    given: dict[str, Any] = dict.fromkeys(("conversation_id", "parent_id", "assistant_id", "model"), "x")
    frame = request_of(
        "Hi",
        **given,
        stream_id="lane",
        idempotency_key="key",
        params={
            "tools": [],
            "tool_choice": "auto",
            "parallel_tool_calls": True,
            "draft_id": "d",
            "file_ids": [],
            "question_id": "q",
            "continue_id": "a",
            "temperature": 0,
            "seed": None,
        },
    )
    assert set(frame) == set(client_frames.Create.__struct_fields__) - {"event_id"}
    assert frame["params"] == {"temperature": 0}
    told = frames.render({"type": "response.create", "event_id": "e", **frame})
    assert msgspec.json.decode(told, type=client_frames.AnyClientFrame).event_id == "e"


def test_an_answer_is_asked_for_again_and_gone_on_with_without_an_input() -> None:
    for name in ("question_id", "continue_id"):
        frame = request_of(None, **{**NOTHING, "conversation_id": "c"}, params={name: "m"})
        assert frame == {"conversation_id": "c", name: "m"}
        assert not Call(frame).stateless, "the server keeps it"


NOTHING: dict[str, Any] = dict.fromkeys(
    ("conversation_id", "parent_id", "assistant_id", "model", "stream_id", "idempotency_key")
)


@pytest.mark.parametrize("odd", [None, 5, b"x", [5], ["text"], object()])
def test_an_input_that_is_neither_text_nor_messages_is_refused_by_name(odd: Any) -> None:
    with pytest.raises(RequestRefused) as refused:
        request_of(odd, **NOTHING, params={})
    assert refused.value.param == "input"


@pytest.mark.parametrize(
    ("input", "params"),
    [
        ("a\ud800b", {}),
        ([{"role": "user", "content": "a\ud800b"}], {}),
        ("Hi", {"temperature": math.nan}),
        ("Hi", {"temperature": math.inf}),
        ("Hi", {"stop": [object()]}),
    ],
)
def test_what_has_no_place_in_json_is_refused_before_it_is_sent(input: Any, params: dict[str, Any]) -> None:
    with pytest.raises(RequestRefused):
        request_of(input, **NOTHING, params=params)
