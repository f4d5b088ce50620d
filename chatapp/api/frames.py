"""The frames of the websocket API as JSON: `parse` gives a typed client frame or raises `FrameError`; `render` gives
the text of a server frame. Knows no socket, no database and no Redis.

Unknown fields are ignored, so that a newer client can talk to an older server; an unknown `type` is an error.
"""

from __future__ import annotations

import json
import re
from typing import Any, get_args

import msgspec

from chatapp.api.client_frames import *  # noqa: F403  who speaks of frames means both sides'
from chatapp.api.client_frames import MAX_EVENT_ID, AnyClientFrame, Cancel, Create
from chatapp.api.server_frames import *  # noqa: F403
from chatapp.api.server_frames import MAX_FRAME_BYTES, ServerFrame

CLOSE_BAD_FRAME = 4400
CLOSE_UNAUTHENTICATED = 4401
CLOSE_FORBIDDEN = 4403
CLOSE_TOO_LARGE = 4413
CLOSE_RATE = 4429
CLOSE_REVOKED = 4440
CLOSE_GOING_AWAY = 1001
CLOSE_INTERNAL = 1011
CLOSE_TRY_LATER = 1013


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


CLIENT_TYPES = tuple(
    str(msgspec.inspect.type_info(kind).tag)  # type: ignore[attr-defined]
    for kind in get_args(AnyClientFrame)
)
_decoder: msgspec.json.Decoder[AnyClientFrame] = msgspec.json.Decoder(AnyClientFrame)
# Python refuses to read integers of thousands of digits; no field takes any of so many.
MOST_DIGITS = 400
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
        raise _explain(_loosely(text), error) from None
    except (msgspec.DecodeError, RecursionError, UnicodeEncodeError):
        loose = _loosely(text)
        try:
            frame = msgspec.convert(loose, AnyClientFrame)
        except msgspec.ValidationError as error:
            raise _explain(loose, error) from None
    if (missing := _missing(frame)) is not None:
        raise FrameError(
            "invalid_frame",
            f"Object missing required field `{missing.rpartition('.')[2]}`.",
            param=missing,
            event_id=frame.event_id,
        )
    return frame


def _missing(frame: AnyClientFrame) -> str | None:
    """A field that may be left out, but not in this frame."""
    if isinstance(frame, Cancel) and frame.response_id is None and frame.stream_id is None:
        return "response_id"
    if isinstance(frame, Create) and frame.input is frame.question_id is frame.continue_id is None:
        return "input"
    if isinstance(frame, Create) and isinstance(frame.input, list):
        for position, message in enumerate(frame.input):
            if message.content is None and not message.tool_calls:
                return f"input[{position}].content"
    return None


def _loosely(text: str) -> Any:
    """All that is JSON by its grammar, also what msgspec refuses: numbers beyond any type are infinite, and half
    characters, as browsers write of a broken text, are left out. Raises FrameError."""
    try:
        return _whole(json.loads(text, parse_int=_integer, parse_constant=_no_json))
    except (ValueError, RecursionError):
        raise FrameError("bad_frame", "This frame is not JSON.", close=CLOSE_BAD_FRAME) from None


def _integer(digits: str) -> int | float:
    return int(digits) if len(digits) < MOST_DIGITS else float(digits)


def _no_json(name: str) -> None:
    raise ValueError(name)


def _whole(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "ignore").decode()
    if isinstance(value, list):
        return [_whole(inner) for inner in value]
    if isinstance(value, dict):
        return {_whole(name): _whole(inner) for name, inner in value.items()}
    return value


def _explain(loose: Any, error: msgspec.ValidationError) -> FrameError:
    """What is wrong with a frame that is JSON but not one of ours."""
    message, param = where(error)
    if not isinstance(loose, dict):
        return FrameError("invalid_frame", f"A frame is a JSON object with a `type`. {message}.")
    event_id = loose.get("event_id")
    if not isinstance(event_id, str) or len(event_id) > MAX_EVENT_ID:
        event_id = None
    if param == "type" and isinstance(loose.get("type"), str):
        message = f"Unknown frame type {loose['type'][:64]!r}; known are: {', '.join(CLIENT_TYPES)}"
    return FrameError("invalid_frame", f"{message}.", param=param, event_id=event_id)


_encoder = msgspec.json.Encoder()


def render(frame: ServerFrame) -> str:
    """The frame as JSON text. Optional fields that are not set are left out."""
    return _encoder.encode(frame).decode()
