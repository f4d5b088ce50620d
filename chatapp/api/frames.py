"""The frames of the websocket API: what a client may send, what the server sends, and how either looks as JSON.

Owns the shapes (msgspec structs) and their parsing; knows no socket, no database and no Redis. `parse` gives a typed
client frame or raises `FrameError`; `render` gives the text of a server frame. A frame's fields are checked for their
types here; what they mean (is this text empty, does this conversation exist) is for the services behind.

Unknown fields are ignored, so that a newer client can talk to an older server; an unknown `type` is an error.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, TypeAlias

import msgspec

from engine.protocol import Timing, Usage

MAX_FRAME_BYTES = 64 * 1024
# Client-made ids come back in our answers; longer ones than this are somebody's mistake.
MAX_EVENT_ID = 128

CLOSE_BAD_FRAME = 4400
CLOSE_UNAUTHENTICATED = 4401
CLOSE_FORBIDDEN = 4403
CLOSE_TOO_LARGE = 4413
CLOSE_REVOKED = 4440
CLOSE_GOING_AWAY = 1001
CLOSE_INTERNAL = 1011


class FrameError(Exception):
    """A frame that cannot be served. `close` is the close code where the socket must end, None where it goes on."""

    def __init__(
        self,
        code: str,
        message: str,
        *,
        param: str | None = None,
        event_id: str | None = None,
        close: int | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.param = param
        self.event_id = event_id
        self.close = close


# --- client frames ------------------------------------------------------------------------------------------------


class InputText(msgspec.Struct, frozen=True, tag_field="type", tag="text"):
    """A part of a message's content; text is the only kind there is."""

    text: str


class InputMessage(msgspec.Struct, frozen=True):
    """One message of a stateless request; roles are checked by the service."""

    role: str
    content: str | list[InputText]

    @property
    def text(self) -> str:
        return self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)


class ClientFrame(msgspec.Struct, frozen=True, kw_only=True, tag_field="type"):
    event_id: str | None = None


class Create(ClientFrame, frozen=True, kw_only=True, tag="response.create"):
    """Ask. `input` as a string goes to a conversation, a new one when none is named; a list is a stateless call.

    `assistant_id`: who answers in a new conversation, or the stateless call. `draft_id`: a prompt's draft is tried out,
    by a stateless call of who may edit prompts.
    """

    input: str | list[InputMessage]
    conversation_id: str | None = None
    parent_id: str | None = None
    assistant_id: str | None = None
    draft_id: str | None = None
    model: str | None = None
    params: dict[str, Any] = {}
    idempotency_key: str | None = None


class Cancel(ClientFrame, frozen=True, kw_only=True, tag="response.cancel"):
    response_id: str


class Resume(ClientFrame, frozen=True, kw_only=True, tag="response.resume"):
    """Follow a response from behind `after`, the last `seq` that the client has; -1 for all of it."""

    response_id: str
    after: Annotated[int, msgspec.Meta(ge=-1, le=2**53)] = -1


class Ping(ClientFrame, frozen=True, kw_only=True, tag="ping"):
    pass


AnyClientFrame: TypeAlias = Create | Cancel | Resume | Ping

_decoder: msgspec.json.Decoder[AnyClientFrame] = msgspec.json.Decoder(AnyClientFrame)
_loose = msgspec.json.Decoder()
_PATH = re.compile(r" - at `\$?\.?(?P<path>[^`]*)`$")
_MISSING = re.compile(r"missing required field `(?P<name>[^`]*)`")
_DICT_KEY = re.compile(r"\[\.\.\.\]")


def where(error: msgspec.ValidationError) -> tuple[str, str | None]:
    """What a validation error says, as (message, param): "Expected `int`, got `str`", "messages[0].content"."""
    text = str(error)
    path = None
    found = _PATH.search(text)
    if found:
        text, path = text[: found.start()], _DICT_KEY.sub("", found["path"]).removeprefix(".") or None
    missing = _MISSING.search(text)
    if missing:
        path = f"{path}.{missing['name']}" if path else missing["name"]
    return text, path


def parse(text: str | None) -> AnyClientFrame:
    """The frame in `text`; None stands for a binary frame. Raises FrameError."""
    if text is None:
        raise FrameError("bad_frame", "Frames are JSON text; this one is binary.", close=CLOSE_BAD_FRAME)
    # A text of n characters has n to 4n bytes: only those in between need counting.
    if len(text) > MAX_FRAME_BYTES or (
        len(text) > MAX_FRAME_BYTES // 4 and len(text.encode("utf-8", "surrogatepass")) > MAX_FRAME_BYTES
    ):
        raise FrameError(
            "frame_too_large",
            f"A frame has at most {MAX_FRAME_BYTES:,} bytes; this one has more.",
            close=CLOSE_TOO_LARGE,
        )
    try:
        frame = _decoder.decode(text)
    except msgspec.ValidationError as error:
        raise _explain(text, error) from None
    except (msgspec.DecodeError, RecursionError, UnicodeEncodeError):
        raise FrameError("bad_frame", "This frame is not JSON.", close=CLOSE_BAD_FRAME) from None
    if frame.event_id is not None and len(frame.event_id) > MAX_EVENT_ID:
        raise FrameError(
            "invalid_frame", f"event_id has at most {MAX_EVENT_ID} characters, this one has {len(frame.event_id)}.",
            param="event_id",
        )  # fmt: skip
    return frame


def _explain(text: str, error: msgspec.ValidationError) -> FrameError:
    """What is wrong with a frame that is JSON but not one of ours; only JSON that breaks off closes the socket."""
    try:
        loose = _loose.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return FrameError("bad_frame", "This frame is not JSON.", close=CLOSE_BAD_FRAME)
    message, param = where(error)
    if not isinstance(loose, dict):
        return FrameError("invalid_frame", f"A frame is a JSON object with a `type`. {message}.")
    event_id = loose.get("event_id")
    if not isinstance(event_id, str) or len(event_id) > MAX_EVENT_ID:
        event_id = None
    if param == "type" and isinstance(loose.get("type"), str):
        message = f"Unknown frame type {loose['type'][:64]!r}; known are: {', '.join(CLIENT_TYPES)}"
    return FrameError("invalid_frame", f"{message}.", param=param, event_id=event_id)


CLIENT_TYPES = ("response.create", "response.cancel", "response.resume", "ping")


# --- server frames ------------------------------------------------------------------------------------------------


class ServerFrame(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", omit_defaults=True):
    pass


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """The socket's own limits, and under `plan` those of the one who asks (chatapp.limits.values), where there are."""

    max_frame_bytes: int = MAX_FRAME_BYTES
    max_responses: int
    plan: dict[str, int | float] = {}


class SessionCreated(ServerFrame, frozen=True, kw_only=True, tag="session.created"):
    """The first frame of every socket that may go on. `heartbeat_s`: ping when nothing came for so long;
    `expires_at`: seconds of the Unix epoch at which the server ends this socket."""

    session_id: str
    limits: Limits
    heartbeat_s: float
    expires_at: int


class Queued(ServerFrame, frozen=True, kw_only=True, tag="response.queued"):
    response_id: str
    position: int
    event_id: str | None = None
    conversation_id: str | None = None
    message_id: str | None = None
    parent_id: str | None = None
    model: str | None = None


class Created(ServerFrame, frozen=True, kw_only=True, tag="response.created"):
    response_id: str
    prompt_tokens: int
    cached_tokens: int
    conversation_id: str | None = None


class RateLimit(msgspec.Struct, frozen=True, kw_only=True):
    """`name` is requests or tokens, by the minute; `reset_seconds` until all of `limit` is there again."""

    name: str
    limit: int
    remaining: int
    reset_seconds: float


class RateLimitsUpdated(ServerFrame, frozen=True, kw_only=True, tag="rate_limits.updated"):
    """After each response that was asked for, where something is limited by the minute."""

    rate_limits: list[RateLimit]


class TextDelta(ServerFrame, frozen=True, kw_only=True, tag="response.output_text.delta"):
    """Text of choice `index`, covering the events `first_seq` to `seq` of the whole response."""

    response_id: str
    index: int
    first_seq: int
    seq: int
    delta: str


class ResponseError(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    code: str
    message: str
    param: str | None = None
    retryable: bool = False


class Ended(ServerFrame, frozen=True, kw_only=True):
    """How a response ended; `seq` is the last number of the response."""

    response_id: str
    seq: int
    finish_reason: str | None = None
    conversation_id: str | None = None
    message_id: str | None = None
    usage: Usage | None = None
    timing: Timing | None = None
    error: ResponseError | None = None


class Completed(Ended, frozen=True, kw_only=True, tag="response.completed"):
    pass


class Incomplete(Ended, frozen=True, kw_only=True, tag="response.incomplete"):
    pass


class Cancelled(Ended, frozen=True, kw_only=True, tag="response.cancelled"):
    pass


class Failed(Ended, frozen=True, kw_only=True, tag="response.failed"):
    pass


class Error(ServerFrame, frozen=True, kw_only=True, tag="error"):
    """What could not be done. With `event_id` it answers that frame, with `response_id` it concerns that response."""

    code: str
    message: str
    event_id: str | None = None
    response_id: str | None = None
    param: str | None = None
    retryable: bool
    retry_after_ms: int | None = None


class SessionExpiring(ServerFrame, frozen=True, kw_only=True, tag="session.expiring"):
    """The server will end this socket at `expires_at`; open another, and resume there what runs."""

    expires_at: int


class Pong(ServerFrame, frozen=True, kw_only=True, tag="pong"):
    event_id: str | None = None


AnyServerFrame: TypeAlias = (
    SessionCreated
    | SessionExpiring
    | Queued
    | Created
    | RateLimitsUpdated
    | TextDelta
    | Completed
    | Incomplete
    | Cancelled
    | Failed
    | Error
    | Pong
)

_encoder = msgspec.json.Encoder()


def render(frame: ServerFrame) -> str:
    """The frame as JSON text. Optional fields that are not set are left out."""
    return _encoder.encode(frame).decode()
