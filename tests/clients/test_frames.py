"""The client knows what this very server says and takes: names do not drift apart."""

from __future__ import annotations

from typing import Any, get_args

import msgspec
import pytest
from octavo_client import frames
from octavo_client.options import request_of

from chatapp.api import client_frames, server_frames

# What the client has no use for: the lane comes back as it was given, and `unsubscribed` answers what nobody waits for.
UNUSED = {"stream_id"}
PASSED_OVER = {"unsubscribed"}


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
            "temperature": 0,
            "seed": None,
        },
    )
    assert set(frame) == set(client_frames.Create.__struct_fields__) - {"event_id"}
    assert frame["params"] == {"temperature": 0}
    told = frames.render({"type": "response.create", "event_id": "e", **frame})
    assert msgspec.json.decode(told, type=client_frames.AnyClientFrame).event_id == "e"
