"""What callers say, as the wire wants it: addresses, credentials, requests. Shared by both clients; no IO."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any, TypedDict
from urllib.parse import urlsplit, urlunsplit

import msgspec

from octavo_client.errors import RequestRefused

PATH = "/ws/v1"
SUBPROTOCOL = "octavo.v1"
SCHEMES = {"http": "ws", "https": "wss", "ws": "ws", "wss": "wss"}

# What stands in the frame itself.
BESIDE_PARAMS = (
    "tools", "tool_choice", "parallel_tool_calls", "draft_id", "file_ids", "question_id", "continue_id",
)  # fmt: skip
# What stands in the place of an input.
INSTEAD = ("question_id", "continue_id")

# A text goes to a conversation, where it is kept; a list of messages stands alone, and nothing of it is kept.
Input = str | Sequence[Mapping[str, Any]]


class Params(TypedDict, total=False):
    """How to answer. What a server does not know, it refuses by name."""

    max_tokens: int
    min_tokens: int
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    presence_penalty: float
    frequency_penalty: float
    repetition_penalty: float
    logit_bias: Mapping[str, float]
    stop: str | Sequence[str]
    stop_token_ids: Sequence[int]
    seed: int
    ignore_eos: bool
    n: int
    logprobs: bool
    top_logprobs: int
    prompt_logprobs: int
    response_format: Mapping[str, Any]
    tools: Sequence[Mapping[str, Any]]
    tool_choice: str | Mapping[str, Any]
    parallel_tool_calls: bool
    file_ids: Sequence[str]
    question_id: str
    continue_id: str


def socket_url(url: str | None) -> str:
    """The websocket's address for what people know: the server's, or what OpenAI's clients call the base URL."""
    url = url or os.environ.get("OCTAVO_URL") or ""
    parts = urlsplit(url)
    if parts.scheme not in SCHEMES or not parts.netloc:
        raise ValueError(f"The address of an Octavo server looks like https://chat.example.org, not {url!r}.")
    if parts.query or parts.fragment or parts.username:
        raise ValueError("The server's address must hold no user, query or fragment; keys go into api_key.")
    path = parts.path.rstrip("/")
    for known in (PATH, "/v1"):
        path = path.removesuffix(known)
    return urlunsplit((SCHEMES[parts.scheme], parts.netloc, path + PATH, "", ""))


def key_of(api_key: str | None) -> str | None:
    return api_key or os.environ.get("OCTAVO_API_KEY") or None


def request_of(
    input: Input | None,
    *,
    conversation_id: str | None,
    parent_id: str | None,
    assistant_id: str | None,
    model: str | None,
    stream_id: str | None,
    idempotency_key: str | None,
    params: Mapping[str, Any],
) -> dict[str, Any]:
    """The frame response.create, without its type and event_id. Raises RequestRefused for what cannot be sent."""
    named = {name: value for name, value in params.items() if value is not None}
    if not isinstance(input, str) and not (input is None and any(name in named for name in INSTEAD)):
        try:
            input = [dict(message) for message in input]  # type: ignore[union-attr]
        except (TypeError, ValueError):
            raise RequestRefused(
                "The input is a text, or a list of messages with role and content.", code="invalid_type", param="input"
            ) from None
    frame = {
        "input": input,
        "conversation_id": conversation_id,
        "parent_id": parent_id,
        "assistant_id": assistant_id,
        "model": model,
        "stream_id": stream_id,
        "idempotency_key": idempotency_key,
        **{name: named.pop(name, None) for name in BESIDE_PARAMS},
        "params": named or None,
    }
    frame = {name: value for name, value in frame.items() if value is not None}
    try:
        # What has no place in JSON would be told as null, or come to light on somebody else's turn.
        json.dumps(msgspec.to_builtins(frame), allow_nan=False, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise RequestRefused("A text holds half a character (a lone surrogate).", code="invalid_request") from None
    except (TypeError, ValueError, RecursionError) as error:
        raise RequestRefused(f"This cannot be sent as JSON: {error}", code="invalid_request") from None
    return frame
