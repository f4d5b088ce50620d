"""The websocket API as an AsyncAPI 3 document, made of the very structs that parse and render its frames.

What a frame looks like is said nowhere else. What cannot be read from the structs stands here: what is ordered, how a
socket is opened, and what its errors and close codes mean. The reference page shows the same (chatapp.api.reference).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, get_args

import msgspec

from chatapp.api import examples, frames

VERSION = "1.0.0"
TITLE = "Octavo websocket API"
ABOUT = """\
Answers as they are written, over one socket: several at a time, in conversations that the server keeps or without, and
resumed after whatever happens to the connection.

Frames are JSON objects in text messages, each with a `type`. Ignore fields and types that you do not know: more will
come. Optional fields that are not set are left out. Nothing here depends on which of the server's processes a socket
reaches."""

ORDER = [
    (
        "What is ordered",
        "The frames of one response come in the order of its events: response.queued, response.created, deltas, one"
        " ending. Responses of one lane (stream_id) come one after the other, in the order of their response.create"
        " frames: the next is asked when the one before has ended, however it ended. Between lanes, and between"
        " responses without a lane, nothing is ordered, and none waits for another. Stops, resumes, pings and"
        " subscriptions do not wait in lanes.",
    ),
    (
        "Numbers",
        "What the model says are events, numbered from 1 without a gap; 0 is the start, and the ending has the last"
        " number plus 1. A delta covers the events first_seq to seq, several where you read slowly. The numbers are"
        " the same on every socket, in every process, and after a restart of the engine: so the last seq that you"
        " have is all that you need to go on with response.resume, for an hour after the end; later, for responses in"
        " conversations, the text comes again as one delta with first_seq 1, which replaces yours.",
    ),
    (
        "Several things at once",
        "Where events hold more than one thing (choices, calls and text), several deltas cover the same events. All"
        " but the last of them have more: true. Apply them together, and count the events as received with the last.",
    ),
    (
        "Retries",
        "Send a question with a new idempotency_key, and send the same frame again if no response.queued has come:"
        " it leads to the same response. Errors with retryable: true may be tried again, after retry_after_ms.",
    ),
    (
        "Slow readers",
        "What waits for a socket is bounded. Deltas that wait are merged; beyond that the response is let go with"
        " lagged, and goes on from its log once you have read. A socket that asks for more than it reads is closed"
        " with 4429.",
    ),
    (
        "Connections",
        "The server sends a websocket ping every 20 seconds, which libraries answer by themselves, and drops a"
        " connection that has not answered for 30. Send the frame ping when nothing has come for heartbeat_s, and"
        " reconnect when no pong comes. At expires_at the server closes with 1001, a minute after session.expiring;"
        " a server that is being stopped says session.expiring some seconds before, with the time that is left, and"
        " answers new handshakes with 503: open the next socket at once, and resume there what runs."
        " Answers in conversations go on without a socket; stateless ones are stopped ten seconds after the last"
        " socket that asked for them has gone. A handshake may bring an X-Request-Id, which the site's logs then have"
        " in session_id's place, and a traceparent (W3C Trace Context): where traces are kept, its answers are a part"
        " of that one.",
    ),
]

CLOSE_CODES: dict[int, tuple[str, str, bool]] = {
    # name, meaning, whether opening another socket at once is of use
    frames.CLOSE_GOING_AWAY: ("going away", "The socket's time is over, or the server restarts.", True),
    frames.CLOSE_INTERNAL: ("internal", "Something went wrong on the server's side, or a part of it is away.", True),
    frames.CLOSE_TRY_LATER: ("try again later", "The server has as many sockets open as it can hold.", True),
    frames.CLOSE_BAD_FRAME: ("bad frame", "A message was no JSON text.", True),
    frames.CLOSE_UNAUTHENTICATED: ("unauthenticated", "No key or ticket was sent, or none that is valid.", False),
    frames.CLOSE_FORBIDDEN: ("forbidden", "A valid key or ticket at a place that it is not for.", False),
    frames.CLOSE_TOO_LARGE: ("too large", "A message was longer than max_frame_bytes.", True),
    frames.CLOSE_RATE: (
        "rate",
        "Frames came faster than the limits say, answers were not read, or too many sockets are open.",
        True,
    ),
    frames.CLOSE_REVOKED: ("revoked", "The key, or the person's part in the team, has ended meanwhile.", False),
}

ERROR_CODES: dict[str, str] = {
    "bad_frame": "A message was no JSON text. The socket closes with 4400.",
    "frame_too_large": "A message was too long. The socket closes with 4413.",
    "invalid_frame": "JSON, but not a frame: an unknown type, a field that is missing or of a wrong type.",
    "invalid_request": "A value that makes no sense; param names it.",
    "unknown_parameter": "params has a name that is not known.",
    "empty": "A text or list that must not be empty.",
    "too_long": "A text that is longer than the server takes.",
    "invalid_grammar": "response_format asks for a form that cannot be held.",
    "invalid_messages": "The model's template does not take these messages.",
    "tools_not_supported": "The model cannot call functions.",
    "context_length_exceeded": "The prompt has more tokens than the model takes, or than fit.",
    "context_too_long": "The files and the conversation have more tokens than the model takes.",
    "too_many_files": "More files than one message takes.",
    "file_not_ready": "A file is still being read: try again in a moment.",
    "file_unreadable": "A file has no text that could be read.",
    "not_found": "There is no such conversation, message, response or assistant of yours.",
    "model_not_found": "There is no such model for your team.",
    "not_allowed": "The key's scopes, or the person's role, do not include it.",
    "conversation_busy": "The conversation is being answered: wait, stop it, or use a lane.",
    "idempotency_mismatch": "The idempotency_key was used for another question.",
    "rate_limit_exceeded": "Requests, tokens or answers at a time of the plan are used up for now.",
    "insufficient_quota": "The month's tokens are used up.",
    "queue_full": "Too many of the team's questions wait already.",
    "overloaded": "The machine has as much to do as it can hold, or as many sockets: try again after retry_after_ms.",
    "no_engine": "No engine has been running for the model for a while: try again after retry_after_ms.",
    "too_many_sockets": "The person, key or team has too many sockets open. The socket closes with 4429.",
    "too_many_responses": "The socket follows max_responses already.",
    "too_many_waiting": "max_waiting questions wait in the socket's lanes already.",
    "too_many_requests": "The socket has too much to do already.",
    "too_many_frames": "Frames came too fast. The socket closes with 4429.",
    "cancelled": "The question still waited in its lane when that was stopped.",
    "expired": "The text of a stateless response is kept for an hour after its end.",
    "deadline": "The response took too long, and was ended.",
    "engine_changed": "No engine that runs now can go on with it as it was begun: what was said stays. Ask again.",
    "engine_fault": "The engine failed in the middle: what it had said stays. Ask again.",
    "poison": "The request stopped the engine several times, and was given up: do not send it again as it is.",
    "engine_error": "The engine failed at the beginning. Ask again.",
    "redis_restarted": "A part of the answer was lost as Redis restarted. Ask again.",
    "redis_lost_it": "The question was lost as Redis restarted. Ask again.",
    "unreadable": "The answer cannot be read any more. Ask again.",
    "unavailable": "A part of the server is away.",
    "internal": "Something went wrong on the server's side.",
    "unauthenticated": "No key or ticket was sent. The socket closes with 4401.",
    "invalid_api_key": "The key is unknown, revoked or expired. The socket closes with 4401.",
    "invalid_ticket": "The ticket is unknown, used or too old. The socket closes with 4401.",
    "key_in_address": "A key was sent in the address: revoke it. The socket closes with 4401.",
    "address_not_allowed": "The key is not for this network. The socket closes with 4403.",
    "origin_not_allowed": "The key or ticket is not for this page. The socket closes with 4403.",
    "team_suspended": "The key's team is suspended. The socket closes with 4403.",
    "revoked": "The key has ended meanwhile. The socket closes with 4440.",
}

_REF = "#/components/schemas/{name}"


def tag(struct: Any) -> str:
    return str(msgspec.inspect.type_info(struct).tag)  # type: ignore[attr-defined]


CLIENT_FRAMES: tuple[Any, ...] = get_args(frames.AnyClientFrame)
SERVER_FRAMES: tuple[Any, ...] = get_args(frames.AnyServerFrame)


def schemas() -> dict[str, Any]:
    """JSON schemas of all frames and of what they hold, by the names of their structs."""
    _, found = msgspec.json.schema_components([*CLIENT_FRAMES, *SERVER_FRAMES], ref_template=_REF)
    for schema in found.values():
        schema["description"] = " ".join(schema.get("description", "").split())
    for struct in (*SERVER_FRAMES, frames.ResponseError):
        properties = found[struct.__name__]["properties"]
        for name, value in properties.items():
            properties[name] = _never_null(value)
    return found


def _never_null(schema: dict[str, Any]) -> dict[str, Any]:
    """A field that is left out where it is not set, and so is null nowhere."""
    kinds = schema.get("anyOf", [])
    if {"type": "null"} not in kinds:
        return schema
    rest = [kind for kind in kinds if kind != {"type": "null"}]
    about = {name: value for name, value in schema.items() if name not in ("anyOf", "default")}
    if len(rest) > 1:
        return {**about, "anyOf": rest}
    # What stands beside a $ref does not count in the drafts that AsyncAPI builds on.
    return {**about, "allOf": rest} if "$ref" in rest[0] and about else {**about, **rest[0]}


def document(*, host: str = "localhost:8000", secure: bool = False) -> dict[str, Any]:
    """The whole document, for a server that is reached as `host`."""
    return {
        "asyncapi": "3.0.0",
        "info": {
            "title": TITLE,
            "version": VERSION,
            "description": "\n\n".join([ABOUT, *(f"## {title}\n\n{text}" for title, text in ORDER)]),
        },
        "defaultContentType": "application/json",
        "servers": {
            "here": {
                "host": host,
                "protocol": "wss" if secure else "ws",
                "security": [{"$ref": f"#/components/securitySchemes/{name}"} for name in ("key", "ticket")],
            }
        },
        "channels": {
            "socket": {
                "address": "/ws/v1",
                "title": "A socket of an API key",
                "description": "Offer the subprotocol octavo.v1 where you offer any.",
                "servers": [{"$ref": "#/servers/here"}],
                "messages": {name: {"$ref": f"#/components/messages/{name}"} for name in _names()},
                "bindings": {"ws": {"method": "GET", "bindingVersion": "0.1.0"}},
            }
        },
        # As AsyncAPI has it, from the side of the server: it receives what a client sends.
        "operations": {
            "fromClient": _operation("receive", "What a client sends", CLIENT_FRAMES),
            "toClient": _operation("send", "What the server sends", SERVER_FRAMES),
        },
        "components": {
            "messages": {tag(struct): _message(struct) for struct in (*CLIENT_FRAMES, *SERVER_FRAMES)},
            "schemas": schemas(),
            "securitySchemes": {
                "key": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "An API key of a team: Authorization: Bearer octv_…, or as the subprotocol"
                    " octavo.key.<key> where headers cannot be set.",
                },
                "ticket": {
                    "type": "httpApiKey",
                    "in": "header",
                    "name": "Sec-WebSocket-Protocol",
                    "description": "A ticket of POST /v1/tickets as the subprotocol octavo.ticket.<ticket>: for one"
                    " socket, within 30 seconds. So a browser need not see the key.",
                },
            },
        },
        "x-close-codes": [
            {"code": code, "name": name, "description": meaning, "reconnect": again}
            for code, (name, meaning, again) in CLOSE_CODES.items()
        ],
        "x-error-codes": ERROR_CODES,
    }


def _names() -> list[str]:
    return [tag(struct) for struct in (*CLIENT_FRAMES, *SERVER_FRAMES)]


def _operation(action: str, title: str, structs: Iterable[Any]) -> dict[str, Any]:
    return {
        "action": action,
        "title": title,
        "channel": {"$ref": "#/channels/socket"},
        "messages": [{"$ref": f"#/channels/socket/messages/{tag(struct)}"} for struct in structs],
    }


def _message(struct: Any) -> dict[str, Any]:
    name = tag(struct)
    return {
        "name": name,
        "title": name,
        "summary": summary(struct),
        "payload": {"$ref": _REF.format(name=struct.__name__)},
        "examples": [{"name": title, "payload": payload} for title, payload in examples_of(name)],
    }


def summary(struct: Any) -> str:
    return " ".join((struct.__doc__ or "").split())


def examples_of(name: str) -> list[tuple[str, dict[str, Any]]]:
    if name in examples.CLIENT:
        return examples.CLIENT[name]
    return [
        (title, msgspec.json.decode(frames.render(frame)))
        for title, frame in examples.SERVER
        if tag(type(frame)) == name
    ]
