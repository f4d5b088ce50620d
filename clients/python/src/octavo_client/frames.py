"""The frames of the wire as typed structs: the server's, which are also the events of a stream, and the parts of ours.

Reads forgivingly: unknown frames and fields of a newer server are passed over, and nothing here knows a socket.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

# --- parts --------------------------------------------------------------------------------------------------------


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens of the prompt, of which `cached_tokens` were not computed anew, and of the answer. `shared_tokens`: those
    of the cached ones that others of the team share."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    shared_tokens: int = 0
    completion_tokens: int = 0


class Timing(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds: in the queue, from there to the first token, and from the first token to the last."""

    queue_s: float = 0.0
    prefill_s: float = 0.0
    decode_s: float = 0.0


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """Why a response failed."""

    code: str = "unknown"
    message: str = ""
    param: str | None = None
    retryable: bool = False


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What this socket may do; `plan`: what the key's team may, where that is limited."""

    max_frame_bytes: int = 65536
    max_responses: int = 1
    plan: dict[str, Any] = {}


class RateLimit(msgspec.Struct, frozen=True, kw_only=True):
    """`name` is requests or tokens, by the minute; `reset_seconds` until all of `limit` is there again."""

    name: str
    limit: int
    remaining: int
    reset_seconds: float


# --- what the server says -----------------------------------------------------------------------------------------


class Frame(msgspec.Struct, frozen=True, kw_only=True):
    """Any frame of the server."""


class SessionCreated(Frame, frozen=True, kw_only=True):
    """The socket is open; `heartbeat_s`: ask when nothing came for so long, `expires_at`: seconds of the Unix epoch."""

    session_id: str = ""
    limits: Limits = msgspec.field(default_factory=Limits)
    heartbeat_s: float = 25.0
    expires_at: float = 0.0


class SessionExpiring(Frame, frozen=True, kw_only=True):
    """The server ends this socket soon."""

    expires_at: float = 0.0


class Queued(Frame, frozen=True, kw_only=True):
    """The request is accepted; `position` before it in the queue, told again when that changes."""

    response_id: str
    position: int = 0
    event_id: str | None = None
    stream_id: str | None = None
    conversation_id: str | None = None
    message_id: str | None = None
    parent_id: str | None = None
    model: str | None = None


class Started(Frame, frozen=True, kw_only=True):
    """The answer begins: its prompt is read."""

    response_id: str
    prompt_tokens: int = 0
    cached_tokens: int = 0
    shared_tokens: int = 0
    conversation_id: str | None = None


class Delta(Frame, frozen=True, kw_only=True):
    """More of choice `index`. `first_seq` to `seq`: the events of the whole response that it covers; `more`: further
    frames cover the same ones."""

    response_id: str
    index: int = 0
    first_seq: int
    seq: int
    more: bool = False


class TextDelta(Delta, frozen=True, kw_only=True):
    """More text. `logprobs`: of its tokens, and `prompt_logprobs` of the prompt's, where they were asked for.
    `finish_reason`: why this choice has ended, in its last one."""

    delta: str = ""
    finish_reason: str | None = None
    logprobs: list[Any] | None = None
    prompt_logprobs: list[Any] | None = None


class FunctionCall(msgspec.Struct, frozen=True, kw_only=True):
    call_id: str = ""
    name: str = ""


class ToolCallBegun(Delta, frozen=True, kw_only=True):
    """The choice calls a function, as its call `call`, counted from 0. The arguments follow."""

    call: int = 0
    item: FunctionCall = msgspec.field(default_factory=FunctionCall)


class ToolCallDelta(Delta, frozen=True, kw_only=True):
    """More of the arguments (JSON text) of the call `call`."""

    call: int = 0
    delta: str = ""


class Ended(Frame, frozen=True, kw_only=True):
    """How a response ended; `seq` is its last number."""

    response_id: str
    seq: int = 0
    finish_reason: str | None = None
    conversation_id: str | None = None
    message_id: str | None = None
    usage: Usage | None = None
    timing: Timing | None = None
    error: Problem | None = None


class Completed(Ended, frozen=True, kw_only=True):
    """The answer came to its end."""


class Incomplete(Ended, frozen=True, kw_only=True):
    """The answer was cut by its limit of tokens."""


class Cancelled(Ended, frozen=True, kw_only=True):
    """The answer was stopped."""


class Failed(Ended, frozen=True, kw_only=True):
    """The answer failed; `error` says why."""


class RateLimitsUpdated(Frame, frozen=True, kw_only=True):
    rate_limits: list[RateLimit] = []


class Lagged(Frame, frozen=True, kw_only=True):
    """The socket is read too slowly for this response. The server goes on by itself behind `resume_after`."""

    response_id: str
    resume_after: int = -1


class ErrorFrame(Frame, frozen=True, kw_only=True):
    """What could not be done. With `event_id` it answers that frame, with `response_id` it concerns that response."""

    code: str = "unknown"
    message: str = ""
    event_id: str | None = None
    response_id: str | None = None
    param: str | None = None
    retryable: bool = False
    retry_after_ms: int | None = None


class Subscribed(Frame, frozen=True, kw_only=True):
    """From here on changes of the topic are told: load what you show of it now. It comes again whenever something may
    have been missed, after a lost connection for one."""

    topic: str = ""
    event_id: str | None = None


class ConversationItem(msgspec.Struct, frozen=True, kw_only=True):
    """A conversation as lists show it; `updated_at` in ISO 8601."""

    id: str
    title: str = ""
    updated_at: str = ""
    running: bool = False


class ConversationUpdated(Frame, frozen=True, kw_only=True):
    """Topic conversations: one is new, was asked something, has been answered, or has another title."""

    conversation: ConversationItem


class ConversationDeleted(Frame, frozen=True, kw_only=True):
    """Topic conversations."""

    conversation_id: str


class UsageUpdated(Frame, frozen=True, kw_only=True):
    """Topic usage: a response has ended, wherever it was asked for, and this is what it used."""

    response_id: str
    model: str = ""
    usage: Usage = msgspec.field(default_factory=Usage)


class Pong(Frame, frozen=True, kw_only=True):
    event_id: str | None = None


class Unknown(Frame, frozen=True, kw_only=True):
    """A frame of a newer server. Its numbers still count: they leave no gap."""

    type: str = ""
    response_id: str | None = None
    first_seq: int | None = None
    seq: int | None = None
    more: bool = False


TYPES: dict[str, type[Frame]] = {
    "session.created": SessionCreated,
    "session.expiring": SessionExpiring,
    "response.queued": Queued,
    "response.created": Started,
    "response.output_text.delta": TextDelta,
    "response.output_item.added": ToolCallBegun,
    "response.function_call_arguments.delta": ToolCallDelta,
    "response.completed": Completed,
    "response.incomplete": Incomplete,
    "response.cancelled": Cancelled,
    "response.failed": Failed,
    "rate_limits.updated": RateLimitsUpdated,
    "lagged": Lagged,
    "error": ErrorFrame,
    "pong": Pong,
    "subscribed": Subscribed,
    "conversation.updated": ConversationUpdated,
    "conversation.deleted": ConversationDeleted,
    "usage.updated": UsageUpdated,
}

# The ways in which an answer ends, as its `status`.
STATUS: dict[type[Ended], str] = {
    Completed: "completed",
    Incomplete: "incomplete",
    Cancelled: "cancelled",
    Failed: "failed",
}

Struct = TypeVar("Struct", bound=msgspec.Struct)
_encoder = msgspec.json.Encoder()
_heads = msgspec.json.Decoder(Unknown)
_decoders: dict[str, msgspec.json.Decoder[Any]] = {name: msgspec.json.Decoder(kind) for name, kind in TYPES.items()}


def parse(text: str | bytes) -> Frame | None:
    """The frame, `Unknown` for a kind of frame that this version does not know, None for what is no frame at all."""
    try:
        head = _heads.decode(text)
    except msgspec.DecodeError:  # a ValidationError is one too
        return None
    decoder = _decoders.get(head.type)
    if decoder is None:
        return head
    try:
        frame: Frame = decoder.decode(text)
    except msgspec.DecodeError:
        return head
    return frame


def render(frame: Mapping[str, Any]) -> str:
    """A frame of ours as JSON text; what is None is left out."""
    return _encoder.encode({name: value for name, value in frame.items() if value is not None}).decode()
