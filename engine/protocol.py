"""What web and engine say to each other: messages, Redis keys, and the calls of the function library.

This module owns the vocabulary of the wire and nothing else: it opens no connection and imports neither redis, Django
nor torch, so both sides may import it. The functions themselves are in `wire.lua`; each is one atomic call. The
helpers below return the arguments for FCALL and parse its replies, so that no caller spells a key or an argument order.

Sequence numbers. Every event that an engine tells carries `seq`: `started` has 0, deltas count from 1 without a gap,
the terminal event has the last number + 1. A stream id is `<attempt>-<seq + 1>`; `<attempt>-0` is `claimed`. The
numbers go on across attempts, so a reader that knows a `seq` finds its place in any log, from any process.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal, TypeAlias

import msgspec

from engine.sampling_params import SamplingParams

WIRE_VERSION = 1
LIBRARY = f"octavo_{WIRE_VERSION}"
LIBRARY_SOURCE = Path(__file__).with_name("wire.lua")

HEARTBEAT_S = 1.0
STALE_AFTER_S = 3.0
STALLED_AFTER_S = 20.0
LEASE_S = 10.0
LOG_TTL_S = 3600

REQUEST_GROUP = "workers"
RECORDER_GROUP = "recorders"
FINISHED = "octavo:finished"
WORKERS = "octavo:workers"


def requests_key(model: str, tenant: str) -> str:
    return f"octavo:requests:{model}:{tenant}"


def backlog_key(model: str) -> str:
    return f"octavo:backlog:{model}"


def service_key(model: str) -> str:
    return f"octavo:service:{model}"


def request_key(generation_id: str) -> str:
    return f"octavo:request:{generation_id}"


def generation_key(generation_id: str) -> str:
    return f"octavo:generation:{generation_id}"


def held_key(worker: str) -> str:
    return f"octavo:held:{worker}"


def worker_key(worker: str) -> str:
    return f"octavo:worker:{worker}"


def control_key(model: str) -> str:
    return f"octavo:control:{model}"


def occupancy_key(worker: str) -> str:
    return f"octavo:occupancy:{worker}"


def wake_key(process: str) -> str:
    return f"octavo:wake:{process}"


def model_name(path: str) -> str:
    """The name a model is served under, from its path: the folder's or the file's name, lower case."""
    path = path.rstrip("/")
    stem = Path(path).stem if path.endswith(".gguf") else Path(path).name
    return "".join(c if c.isalnum() or c in "-._" else "-" for c in stem.lower())


# --- requests -----------------------------------------------------------------------------------------------------


class ChatMessage(msgspec.Struct, frozen=True):
    role: Literal["user", "assistant", "system"]
    content: str


class SystemText(msgspec.Struct, frozen=True):
    """One part of the system message and the salt its KV blocks are shared under (DESIGN: salt regions).

    Ordered from the most public to the most private: platform preamble, the tenant's published prompt, the caller's own.
    """

    text: str
    salt: str


class Request(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One generation to run. `salt` covers everything behind the system texts (a conversation's or a key's own).

    The worker joins `system` with blank lines into one system message, applies the model's chat template to it and
    `messages`, and tokenizes. `deadline_ms` is absolute, in milliseconds of the Unix epoch, by Redis's clock.
    """

    id: str
    tenant: str
    model: str
    messages: list[ChatMessage]
    salt: str
    system: list[SystemText] = []
    prompt_version: str = ""
    params: SamplingParams = SamplingParams()
    deadline_ms: int = 0
    weight: float = 1.0
    leased: bool = False


# --- events -------------------------------------------------------------------------------------------------------


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0


class Timing(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds: in the queue, from there to the first token, and from the first token to the last."""

    queue_s: float = 0.0
    prefill_s: float = 0.0
    decode_s: float = 0.0


class Part(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one step added to choice `index`. `token_ids` may come while their `text` is still held back."""

    index: int = 0
    text: str = ""
    token_ids: list[int] = []
    finish_reason: str | None = None


class Event(msgspec.Struct, frozen=True, kw_only=True, tag_field="type"):
    seq: int = -1


class Claimed(Event, tag="claimed"):
    worker: str
    attempt: int = 1


class Started(Event, tag="started"):
    prompt_tokens: int
    cached_tokens: int


class Delta(Event, tag="delta"):
    parts: list[Part]


class Terminal(Event):
    """How a generation ended. `finish_reason` only when finished: stop, length. The others say why in words."""

    usage: Usage | None = None
    timing: Timing | None = None
    finish_reason: str | None = None
    code: str | None = None
    param: str | None = None
    message: str | None = None


class Finished(Terminal, tag="finished"):
    pass


class Refused(Terminal, tag="refused"):
    pass


class Cancelled(Terminal, tag="cancelled"):
    pass


class TimedOut(Terminal, tag="timeout"):
    pass


class Interrupted(Terminal, tag="interrupted"):
    pass


class Failed(Terminal, tag="failed"):
    pass


AnyTerminal: TypeAlias = Finished | Refused | Cancelled | TimedOut | Interrupted | Failed
AnyEvent: TypeAlias = Claimed | Started | Delta | AnyTerminal

_event_decoder: msgspec.json.Decoder[AnyEvent] = msgspec.json.Decoder(AnyEvent)
_request_decoder = msgspec.json.Decoder(Request)
_encoder = msgspec.json.Encoder()


def encode(message: msgspec.Struct) -> bytes:
    return _encoder.encode(message)


def decode_event(data: bytes | str) -> AnyEvent:
    return _event_decoder.decode(data)


def decode_request(data: bytes | str) -> Request:
    return _request_decoder.decode(data)


def stream_id(attempt: int, seq: int) -> str:
    """The id of the event `seq` of an attempt in `octavo:generation:{id}`."""
    return f"{attempt}-{seq + 1}"


# --- workers ------------------------------------------------------------------------------------------------------


class WorkerDetails(msgspec.Struct, kw_only=True):
    """The heartbeat's details, JSON in field `details` of `octavo:worker:{id}`; `steps` counts the engine's steps."""

    id: str
    model: str
    context: int
    block_size: int
    num_blocks: int
    pid: int
    host: str = ""
    device: str = "cpu"
    dtype: str = ""
    steps: int = 0
    running: int = 0
    waiting: int = 0
    healthy: bool = True
    draining: bool = False


class Snapshot(msgspec.Struct, kw_only=True):
    """The block table at one moment, JSON in field `snapshot` of `octavo:occupancy:{worker}`.

    Arrays are indexed by physical block. `state`: 0 free, 1 cached (reference 0, hashed), 2 used. `tenant`: index into
    `tenants`, -1 for none. `pinned` lists block ids. `running`/`waiting` count sequences by tenant.
    """

    worker: str
    at_ms: int
    block_size: int
    state: list[int]
    refs: list[int]
    tenant: list[int]
    filled: list[int]
    tenants: list[str]
    pinned: list[int] = []
    running: dict[str, int] = {}
    waiting: dict[str, int] = {}
    counters: dict[str, float] = {}
