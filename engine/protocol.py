"""What web and engine say to each other: messages, Redis keys, and the calls of the function library.

This module owns the vocabulary of the wire and nothing else: it opens no connection and imports neither redis, Django
nor torch, so both sides may import it. The functions themselves are in `wire.lua`; each is one atomic call. The
helpers below return the arguments of FCALL and parse its replies, so that no caller spells a key or an argument order:
`reply = redis.fcall(*protocol.take(...))`.

Sequence numbers. Every event that an engine tells carries `seq`: `started` has 0, deltas count from 1 without a gap,
the terminal event has the last number + 1. A stream id is `<attempt>-<seq + 1>`; `<attempt>-0` is `claimed`. The
numbers go on across attempts, so a reader that knows a `seq` finds its place in any log, from any process.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal, TypeAlias
from urllib.parse import unquote

import msgspec

from engine.grammar_spec import GrammarError as GrammarError
from engine.grammar_spec import GrammarSpec as GrammarSpec
from engine.regions import PUBLIC_SALT as PUBLIC_SALT
from engine.sampling_params import MOST_BIASES as MOST_BIASES
from engine.sampling_params import MOST_LOGPROBS as MOST_LOGPROBS
from engine.sampling_params import SamplingParams

WIRE_VERSION = 1
LIBRARY = f"octavo_{WIRE_VERSION}"
LIBRARY_SOURCE = Path(__file__).with_name("wire.lua")
# Raised with the first change of wire.lua behind a release. Processes of two releases run side by side while one takes
# the other's place, on one library: the newer one, whoever was started last. So within a WIRE_VERSION a function takes
# what the release before sends, and answers what it understands.
LIBRARY_BUILD = 1
LIBRARY_KEY = "octavo:library"
"""The build that is loaded. Releases before 0.2 do not say theirs."""

HEARTBEAT_S = 1.0
STALE_AFTER_S = 3.0
STALLED_AFTER_S = 20.0
LEASE_S = 10.0
LOG_TTL_S = 3600
LIVE_STATES = ("queued", "running")

# What one tenant may have waiting for one model. Redis never evicts, so admission bounds its memory.
MAX_QUEUED = 512
MAX_QUEUED_BYTES = 32 * 1024 * 1024
# And all tenants together, running ones included. A tenant that has less than four waiting gets in beyond that, up to a
# quarter more, so that others' floods do not shut it out (wire.lua).
MAX_IN_ALL = 8192
MAX_BYTES_IN_ALL = 256 * 1024 * 1024
# The part of Redis's maxmemory from which on nothing new is accepted: what runs needs the rest for its answers.
MAX_MEMORY = 0.85

REQUEST_GROUP = "workers"
RECORDER_GROUP = "recorders"
FINISHED = "octavo:finished"
WORKERS = "octavo:workers"
SERVER = "octavo:server"
"""Hash: `run_id` of the server that workers met last, and `since_ms`, when: so long they have had to come back."""
VANISHED = "octavo:vanished"
"""A stream, bounded: workers that were forgotten without having said goodbye: worker, model, host, beat_ms."""
DEAD = "octavo:dead"
"""A stream, bounded: requests that no worker outlived and that were given up: id, tenant, model, worker, attempts."""
DRAIN = "drain"
"""A field of `worker_key`, there while an operator wants the worker to take nothing new."""


def library_is_newer(build: bytes | None, present: object) -> bool:
    """Whether the server has a later build than ours. `build`: what LIBRARY_KEY holds; `present`: the reply of FUNCTION
    LIST for LIBRARY, empty where the library is gone whatever the key says."""
    return bool(present) and int(build or 0) > LIBRARY_BUILD


def load_library(pipe: Any) -> None:
    """For redis-py's `client.transaction(load_library, LIBRARY_KEY)`: brings our library unless a newer one is there.
    Two that do it at once see each other: the key is watched, and the later one begins anew."""
    if not library_is_newer(pipe.get(LIBRARY_KEY), pipe.function_list(LIBRARY)):
        pipe.multi()
        pipe.function_load(LIBRARY_SOURCE.read_text(), replace=True)
        pipe.set(LIBRARY_KEY, LIBRARY_BUILD)


def requests_key(model: str, tenant: str) -> str:
    return f"octavo:requests:{model}:{tenant}"


def queued_bytes_key(model: str) -> str:
    """Hash: tenant -> the bytes of what it has in its queue, until that has ended; and of all tenants together the
    fields #bytes and #count."""
    return f"octavo:queued_bytes:{model}"


def unserved_key(model: str) -> str:
    """When somebody first found no worker of a model, in ms; there while there is none, and for ten minutes at most."""
    return f"octavo:unserved:{model}"


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


def rooms_key(model: str) -> str:
    """Worker -> how many more it can run, below 0 where it has taken more: those that are asked to take something."""
    return f"octavo:rooms:{model}"


def warmth_key(worker: str) -> str:
    """The set of tenants whose published prompts this worker holds."""
    return f"octavo:warmth:{worker}"


def worker_key(worker: str) -> str:
    return f"octavo:worker:{worker}"


def published_key(version: str) -> str:
    return f"octavo:published:{version}"


def forgot_key(tenant: str) -> str:
    """A set: the workers that have dropped all KV of a tenant, since they were told to."""
    return f"octavo:forgot:{tenant}"


def warm_key(version: str) -> str:
    """Hash: the workers that have a published version in memory -> how many of its tokens are pinned there."""
    return f"octavo:warm:{version}"


def count_key(request_id: str) -> str:
    return f"octavo:count:{request_id}"


def counted_key(request_id: str) -> str:
    return f"octavo:counted:{request_id}"


def greeted_key(worker: str) -> str:
    """Set by the product once it has told a new worker of the prompts that were published before it came."""
    return f"octavo:greeted:{worker}"


def control_key(model: str) -> str:
    return f"octavo:control:{model}"


def occupancy_key(worker: str) -> str:
    return f"octavo:occupancy:{worker}"


def line_key(worker: str) -> str:
    return f"octavo:line:{worker}"


def watches_key(model: str) -> str:
    """Sorted set: the chats whose memory somebody looks at (`Watch.member`, the tenant in it), scored by when the look
    ends unless it is renewed."""
    return f"octavo:watches:{model}"


def memory_key(watch: Watch) -> str:
    """Hash: worker -> what it holds of a watched chat, the encoded Memory; and the channel on which each new one is
    published. It goes MEMORY_TTL_S after the last word."""
    return f"octavo:memory:{watch.tenant}:{watch.conversation}:{watch.prompt}"


def wake_key(process: str) -> str:
    return f"octavo:wake:{process}"


def sentinel(url: str) -> tuple[list[tuple[str, int]], str, int, str | None] | None:
    """(sentinels, master, db, password) of `sentinel://[:password@]host:port,host:port/master/db`; of others None."""
    if not url.startswith("sentinel://"):
        return None
    authority, _, path = url.removeprefix("sentinel://").partition("/")
    credentials, _, hosts = authority.rpartition("@")
    master, _, db = path.partition("/")
    sentinels = [(host, int(port or 26379)) for host, _, port in (item.partition(":") for item in hosts.split(","))]
    if not master or not all(host for host, _ in sentinels):
        raise ValueError("REDIS_URL must read sentinel://host:port,host:port/master/db")
    return sentinels, master, int(db or 0), unquote(credentials.rpartition(":")[2]) or None


SENTINEL_WAIT: dict[str, float] = {"socket_timeout": 1.0, "socket_connect_timeout": 1.0}
"""How long a sentinel may be silent before the next one is asked, in the words of redis-py: it may be on the machine
whose loss it should tell of."""


def owner_tag(tenant: str) -> str:
    """The beginning of the names of a tenant's files in the workers' prompt stores: 24 hexadecimal digits."""
    return hashlib.sha256(b"octavo.prompt-owner\0" + tenant.encode()).hexdigest()[:24]


def unwritable(error: str) -> bool:
    """Whether a server that answers says so that it writes nothing for now: its disk is full, or the replicas that it
    wants are away. It passes, as being away does. (redis-py puts words of its own before those of a pipeline's.)"""
    return error.rpartition("caused error: ")[2].startswith(("MISCONF", "NOREPLICAS"))


def model_name(path: str) -> str:
    """The name a model is served under, from its path: the folder's or the file's name, lower case."""
    path = path.rstrip("/")
    stem = Path(path).stem if path.endswith(".gguf") else Path(path).name
    return "".join(c if c.isalnum() or c in "-._" else "-" for c in stem.lower())


MODEL_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,99}")


def served_models(text: str) -> dict[str, str]:
    """Name -> path of "small=/path/a,large=/path/b", in that order; a path alone is served under its own name.

    Raises ValueError, which says what is wrong and what is expected.
    """
    found: dict[str, str] = {}
    for part in text.split(","):
        first, has_name, rest = part.strip().partition("=")
        name, path = (first.strip(), rest.strip()) if has_name else (model_name(first), first)
        if not path:
            raise ValueError(f"{part.strip()!r} names no model; write name=path, separated by commas")
        if not MODEL_NAME.fullmatch(name) or name == "default":
            raise ValueError(f"{name!r} cannot be a model's name: use a-z, 0-9 and . _ -, at most 100, and not default")
        if name in found:
            raise ValueError(f"two models are named {name!r}")
        found[name] = path
    return found


# --- requests -----------------------------------------------------------------------------------------------------


class ToolCall(msgspec.Struct, frozen=True):
    """A function that an answer calls. `arguments`: a JSON object as the model wrote it, or a beginning of one."""

    id: str
    name: str
    arguments: str


class ChatMessage(msgspec.Struct, frozen=True, omit_defaults=True):
    """`tool_calls`: of an assistant. A message of the role tool is what the call `tool_call_id` gave."""

    role: Literal["user", "assistant", "system", "tool"]
    content: str = ""
    tool_calls: list[ToolCall] = []
    tool_call_id: str = ""


class Tool(msgspec.Struct, frozen=True, omit_defaults=True):
    """A function that an answer may call. `parameters`: a JSON schema of the object that it takes; `strict`: a call
    keeps to it in full, whatever `tool_choice` says."""

    name: str
    description: str = ""
    parameters: dict[str, Any] = {}
    strict: bool = False


class SystemText(msgspec.Struct, frozen=True):
    """One part of the system message and the salt its KV blocks are shared under (DESIGN: salt regions).

    Ordered from the most public to the most private: platform preamble, the tenant's prompt, the caller's own.
    """

    text: str
    salt: str


class Request(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One generation to run. `salt` covers everything behind the system texts (a conversation's or a key's own).

    The worker joins `system` with blank lines into one system message, applies the model's chat template to it and
    `messages`, and tokenizes. `deadline_ms` is absolute, in milliseconds of the Unix epoch, by Redis's clock.
    `weight` and `kv_share` (the largest part of an engine's blocks) are the tenant's from this request on. A prompt of
    more than `max_prompt_tokens` is refused; 0: of any length that fits.
    """

    id: str
    tenant: str
    model: str
    messages: list[ChatMessage]
    salt: str
    system: list[SystemText] = []
    text: str | None = None
    """A prompt that no chat template is applied to; then there are neither messages nor system texts."""
    token_ids: list[int] | None = None
    """The same, in tokens."""
    tools: list[Tool] = []
    tool_choice: Literal["auto", "none", "required", "function"] = "auto"
    """required: an answer calls at least one of `tools`; function: it calls `tool_name`, and nothing else."""
    tool_name: str = ""
    parallel_tool_calls: bool = True
    continues: bool = False
    """The last of `messages` is the beginning of the answer, which goes on right there: no turn ends behind it."""
    prompt: str = ""
    """What the prompt is called that `prompt_version` is a version of; empty: the tenant's only one."""
    prompt_version: str = ""
    """Empty also for a prompt that is not published: nothing of it is pinned."""
    params: SamplingParams = SamplingParams()
    deadline_ms: int = 0
    weight: float = 1.0
    kv_share: float = 1.0
    max_prompt_tokens: int = 0
    leased: bool = False
    conversation: str = ""
    """The chat that this is a turn of, by its id; empty: of none. Only for who looks at its memory."""
    request_id: str = ""
    """Of the request or the frame that asked for it: all processes say it in their logs."""
    traceparent: str = ""
    """The span that spans of this generation are children of, as W3C Trace Context writes it."""

    @property
    def prompt_name(self) -> str:
        return self.prompt or self.tenant


class Origin(msgspec.Struct, frozen=True):
    """Of an encoded Request what says where it came from, for who needs no more: the rest is not decoded."""

    request_id: str = ""
    traceparent: str = ""


class PublishedPrompt(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A tenant's prompt that was just published, to be computed before anybody asks.

    It lies under `published_key` for PUBLISHED_TTL_S: the hint on the control stream names only the version, as that
    stream is kept, and this holds a prompt and a salt. `system`, `weight`: as in a Request of this tenant.
    """

    tenant: str
    version: str
    system: list[SystemText]
    prompt: str = ""
    weight: float = 1.0

    @property
    def name(self) -> str:
        return self.prompt or self.tenant


FORGOT_TTL_S = 600
"""How long it is known which workers have forgotten a tenant; who asks asks again until it has seen them all."""
PUBLISHED_TTL_S = 60
WARM_TTL_S = 24 * 3600
"""How long an acknowledgement is kept. A worker says it again whenever it is told of the version again."""
KEPT_S = 0.2
"""How long a request is kept for the worker that suits it best; wire.lua has the same figure."""
CONTROL_LENGTH = 1000
"""Hints that the control stream keeps, about; wire.lua has the same figure."""


def published_hint(version: str, worker: str = "") -> dict[str, str]:
    """On the control stream: a version was published. Every worker of the model, or the one named, looks it up under
    `published_key`, computes it before anybody asks, and says so in the hash `warm_key(version)`."""
    return {"kind": "published", "id": version, "worker": worker}


def released_hint(prompt: str, version: str) -> dict[str, str]:
    """On the control stream: a prompt is published no longer; the workers take off the pins of its blocks."""
    return {"kind": "released", "id": prompt, "version": version}


class CountRequest(msgspec.Struct, frozen=True, kw_only=True):
    """How many tokens would these system texts take? It lies under `count_key(id)` for COUNT_TTL_S and is taken from
    there by the first worker that reads the hint `count_hint(id)`, so one of them answers, and no text stays."""

    id: str
    texts: list[str]


class Counted(msgspec.Struct, frozen=True, kw_only=True):
    """The one item of the list `counted_key(id)`. `tokens`: of all the texts, with the chat template's opening, up to
    where a conversation begins: what is shared. `own_tokens`: of the last text alone. `tenant_blocks`: how much of
    the pool one tenant's requests may use. `error`: the texts cannot be rendered; the sizes are there nevertheless."""

    tokens: int = 0
    own_tokens: int = 0
    block_size: int
    context: int
    tenant_blocks: int
    error: str = ""


class Watch(msgspec.Struct, frozen=True):
    """A look at a chat's memory: at that of `conversation`, or of a new chat where it is empty. `prompt`: the name of
    the published prompt that stands before its next turn. Ids only, so none has a space in it."""

    tenant: str
    conversation: str
    prompt: str

    @property
    def member(self) -> str:
        return f"{self.tenant} {self.conversation} {self.prompt}"


WATCH_TTL_S = 12.0
"""How long a look counts that is not renewed."""
MEMORY_TTL_S = 30

COUNT_TTL_S = 5
MOST_COUNT_BYTES = 1024 * 1024
"""A longer count request is not answered."""


def count_hint(request_id: str) -> dict[str, str]:
    return {"kind": "count", "id": request_id}


# --- events -------------------------------------------------------------------------------------------------------


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """`shared_tokens`: those of the cached ones that are of a text which more than this conversation or key shares."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    shared_tokens: int = 0
    completion_tokens: int = 0


class Timing(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds: in the queue, from there to the first token, and from the first token to the last."""

    queue_s: float = 0.0
    prefill_s: float = 0.0
    decode_s: float = 0.0


class Logprob(msgspec.Struct, frozen=True, omit_defaults=True):
    """A token, and the natural logarithm of its probability. `bytes`: what it stands for where `token` is no text."""

    token: str
    logprob: float
    id: int = -1
    bytes: list[int] | None = None


class TokenLogprob(Logprob, frozen=True, omit_defaults=True):
    """A token of the answer; `top`: the likeliest in its place, best first."""

    top: list[Logprob] = []


class ToolCallPart(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What was added to the call `call` (counted from 0) of a choice. Its first part has `id` and `name`."""

    call: int = 0
    id: str = ""
    name: str = ""
    arguments: str = ""


class Part(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one step added to choice `index`. `token_ids` may come while their `text` is still held back.

    `logprobs`: one for each of `token_ids`, where they were asked for; `prompt_logprobs`: of prompt tokens from the
    second on, with the first choice, in order. `finish_reason`: why this choice has ended: stop, length, tool_calls.
    """

    index: int = 0
    text: str = ""
    token_ids: list[int] = []
    logprobs: list[TokenLogprob] = []
    prompt_logprobs: list[TokenLogprob] = []
    tool_calls: list[ToolCallPart] = []
    finish_reason: str | None = None


class Event(msgspec.Struct, frozen=True, kw_only=True, tag_field="type"):
    seq: int = -1


class Claimed(Event, frozen=True, tag="claimed"):
    worker: str
    attempt: int = 1


class Started(Event, frozen=True, tag="started"):
    """The counts are those of Usage."""

    prompt_tokens: int
    cached_tokens: int
    shared_tokens: int = 0


class Delta(Event, frozen=True, tag="delta"):
    parts: list[Part]


class Terminal(Event, frozen=True):
    """How a generation ended. `finish_reason` only when finished: the first choice's. The others say why in words."""

    usage: Usage | None = None
    timing: Timing | None = None
    finish_reason: str | None = None
    code: str | None = None
    param: str | None = None
    message: str | None = None
    retryable: bool = False


class Finished(Terminal, frozen=True, tag="finished"):
    pass


class Refused(Terminal, frozen=True, tag="refused"):
    pass


class Cancelled(Terminal, frozen=True, tag="cancelled"):
    pass


class TimedOut(Terminal, frozen=True, tag="timeout"):
    pass


class Interrupted(Terminal, frozen=True, tag="interrupted"):
    pass


class Failed(Terminal, frozen=True, tag="failed"):
    pass


AnyTerminal: TypeAlias = Finished | Refused | Cancelled | TimedOut | Interrupted | Failed
AnyEvent: TypeAlias = Claimed | Started | Delta | AnyTerminal

_event_decoder: msgspec.json.Decoder[AnyEvent] = msgspec.json.Decoder(AnyEvent)
_request_decoder = msgspec.json.Decoder(Request)
_origin_decoder = msgspec.json.Decoder(Origin)
_published_decoder = msgspec.json.Decoder(PublishedPrompt)
_count_decoder = msgspec.json.Decoder(CountRequest)
_counted_decoder = msgspec.json.Decoder(Counted)
_encoder = msgspec.json.Encoder()


def encode(message: msgspec.Struct) -> bytes:
    return _encoder.encode(message)


def decode_event(data: bytes | str) -> AnyEvent:
    return _event_decoder.decode(data)


def decode_published(data: bytes | str) -> PublishedPrompt:
    return _published_decoder.decode(data)


def decode_count(data: bytes | str) -> CountRequest:
    return _count_decoder.decode(data)


def decode_counted(data: bytes | str) -> Counted:
    return _counted_decoder.decode(data)


def decode_request(data: bytes | str) -> Request:
    return _request_decoder.decode(data)


def decode_origin(data: bytes | str) -> Origin:
    return _origin_decoder.decode(data)


def stream_id(attempt: int, seq: int) -> str:
    """The id of the event `seq` of an attempt in `octavo:generation:{id}`."""
    return f"{attempt}-{seq + 1}"


# --- calls --------------------------------------------------------------------------------------------------------

Call: TypeAlias = tuple[Any, ...]
"""The arguments of FCALL: the function's name, no declared keys (see wire.lua), the arguments."""


def _call(name: str, *args: str | bytes | float) -> Call:
    return (f"{LIBRARY}_{name}", 0, *args)


def _text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value


class Enqueued(msgspec.Struct, frozen=True):
    """`position` counts from 1 in the tenant's own queue; 0 when it does not wait (any more). Of `full` it is how many
    wait. Of `overloaded` `state` says of what: `queue` (`position`: how many there are in all), `memory` (percent of
    Redis's), `no_worker` (seconds since there was one)."""

    outcome: Literal["ok", "known", "full", "overloaded"]
    state: str
    position: int


def estimated_tokens(request: Request) -> int:
    """What Take charges for a prompt until its true length is known: four characters a token."""
    return prompt_characters(request) // 4 + len(request.token_ids or ()) + 1


def prompt_characters(request: Request) -> int:
    """Of all the texts that a prompt is made of, those of tools and their calls included."""
    texts = [m.content for m in request.messages] + [s.text for s in request.system] + [request.text or ""]
    calls = [call for message in request.messages for call in message.tool_calls]
    tools = len(_encoder.encode(request.tools)) if request.tools else 0
    return sum(map(len, texts)) + sum(len(call.name) + len(call.arguments) for call in calls) + tools


def enqueue(
    request: Request,
    max_queued: int = MAX_QUEUED,
    max_bytes: int = MAX_QUEUED_BYTES,
    *,
    max_in_all: int = MAX_IN_ALL,
    max_bytes_in_all: int = MAX_BYTES_IN_ALL,
    max_memory: float = MAX_MEMORY,
    max_unserved_s: float = 0,
) -> Call:
    """Reply: parse_enqueued. Does nothing to an id that is known already, also as cancelled. `max_memory`: a part of
    Redis's maxmemory; `max_unserved_s`: for how long there may have been no worker of the model, 0: for ever."""
    return _call(
        "enqueue",
        request.id,
        request.model,
        request.tenant,
        encode(request),
        estimated_tokens(request),
        request.weight,
        request.deadline_ms,
        int(request.leased),
        max_queued,
        max_bytes,
        max_in_all,
        max_bytes_in_all,
        max_memory,
        int(max_unserved_s * 1000),
    )


def parse_enqueued(reply: list[Any]) -> Enqueued:
    return Enqueued(_text(reply[0]), _text(reply[1]), int(reply[2]))  # type: ignore[arg-type]


class Taken(msgspec.Struct, frozen=True):
    """A generation that a worker owns now. `payload`: the encoded Request; `seq`: the last logged one, or -1.

    `taken_ms`, `first_ms`: when the attempt that started it was taken, and when it said its first; 0: not yet. `alone`:
    workers seem to have died of it, so nothing else may run until it has said something. `log`: of one that somebody
    else began, what was said of it, for who goes on.
    """

    id: str
    attempt: int
    payload: bytes
    waited_ms: int
    now_ms: int
    seq: int
    taken_ms: int = 0
    first_ms: int = 0
    alone: bool = False
    log: list[AnyEvent] = []


def take(worker: str, model: str, room: int, running: Iterable[str], warm: Iterable[str] | None = None) -> Call:
    """`room`: how many more it can run, below 0 where it has taken more than that; `running`, `warm`: tenants that it
    runs something of, holds a prompt of; `warm` None: the same as the last time. Reply: parse_taken, and where that is
    None parse_wait_s."""
    held = b"" if warm is None else _encoder.encode(sorted(warm))
    return _call("take", worker, model, room, _encoder.encode(sorted(running)), held, "waits")


def parse_taken(reply: list[Any] | int | None) -> Taken | None:
    if not isinstance(reply, list) or not reply:
        return None
    generation, attempt, payload, waited, now, seq, taken, first, alone = reply
    times = int(waited), int(now), int(seq), int(taken), int(first)
    return Taken(_text(generation), int(attempt), bytes(payload), *times, bool(alone))


def parse_wait_s(reply: list[Any] | int | None) -> float | None:
    """When to ask again at the latest: the heads that wait are kept so long for workers that suit them better."""
    return reply / 1000 if isinstance(reply, int) else None


def claim(worker: str, generation_id: str) -> Call:
    """Take over from a stale owner, or take up what we own without knowing it, to go on where its log ends. Reply:
    parse_claimed."""
    return _call("claim", worker, generation_id, "goes on")


def parse_claimed(reply: list[Any]) -> Taken | str:
    """Taken, or why not: gone (has ended), owned (by a live worker), busy (it would run alone, and the worker already
    has one that does); or how it was ended: interrupted (its log may have a hole), dead (no worker outlives it), ended
    (cancelled, or past its deadline)."""
    return parse_taken(reply[1:]) or _text(reply[0])


class Tell(msgspec.Struct, frozen=True):
    """One event for the log. `cost` is charged: for the uncached prompt tokens of `started`, for a delta's output."""

    id: str
    attempt: int
    event: Started | Delta
    cost: float


def tell(worker: str, tells: Iterable[Tell]) -> Call:
    """All that a step has to say, in one call. Reply: parse_told."""
    args: list[str | bytes | float] = [worker]
    for t in tells:
        args += (t.id, t.attempt, t.event.seq, t.cost, encode(t.event))
    return _call("tell", *args)


class Told(msgspec.Struct, frozen=True):
    """ok | cancelled (logged, but end it) | stale (drop it) | behind (not logged: send again from `last` + 1)."""

    outcome: Literal["ok", "cancelled", "stale", "behind"]
    last: int = -1


def parse_told(reply: list[bytes | str]) -> list[Told]:
    """One for each Tell, in order."""
    return [parse_finished(item) for item in reply]


def parse_finished(reply: bytes | str) -> Told:
    outcome, _, last = _text(reply).partition(" ")
    return Told(outcome, int(last or -1))  # type: ignore[arg-type]


def finish(worker: str, generation_id: str, attempt: int, event: AnyTerminal) -> Call:
    """Reply: parse_finished; saying it again is ok."""
    status = str(event.__struct_config__.tag)
    return _call("finish", worker, generation_id, attempt, event.seq, status, encode(event))


def cancel(generation_id: str) -> Call:
    """Reply: the state after it; `cancelling` while a live worker has yet to hear of it."""
    return _call("cancel", generation_id)


def end(generation_id: str, event: AnyTerminal) -> Call:
    """End it from outside, in any state; the library sets the seq. Reply: the state after it, or `unknown`."""
    return _call("end", generation_id, encode(event))


def renew(generation_id: str) -> Call:
    """Reply: the state, or `unknown`."""
    return _call("renew", generation_id)


def heartbeat(worker: str, details: WorkerDetails) -> Call:
    """Reply: parse_heartbeat."""
    return _call("heartbeat", worker, details.steps, encode(details))


def parse_heartbeat(reply: list[Any]) -> tuple[int, dict[str, str]]:
    """Redis's time in ms, and what the worker holds: id -> run | cancelled | timeout, the latter two to be ended so."""
    return int(reply[0]), {_text(i): _text(flag) for i, flag in zip(reply[1::2], reply[2::2], strict=True)}


def orphans(worker: str, model: str) -> Call:
    """Reply: ids of what dead workers of this model hold."""
    return _call("orphans", worker, model)


def retire(worker: str) -> Call:
    return _call("retire", worker)


def drain(worker: str, *, on: bool = True) -> Call:
    """An operator wants it to take nothing new, finish what it has and stay; `on` False: to take again. Take gives it
    nothing from then on; it hears of the wish by a hint or with its next heartbeat, and says so in its details. Reply:
    draining, taking, or gone where no such worker lives."""
    return _call("drain", worker, int(on))


def watch(model: str, watched: Watch, ttl_s: float = WATCH_TTL_S) -> Call:
    """Somebody looks at a chat's memory, for so long. Workers hear of a new look by a hint. Reply: 1 if it is new."""
    return _call("watch", model, watched.member, int(ttl_s * 1000))


def watched(model: str) -> Call:
    """Reply: parse_watched."""
    return _call("watched", model)


def parse_watched(reply: list[Any]) -> list[Watch]:
    """What is looked at now; what this code cannot read is left out."""
    parts = [_text(member).split(" ") for member in reply]
    return [Watch(*found) for found in parts if len(found) == 3]


def recorded(entry: str, generation_id: str, ttl_s: int = LOG_TTL_S) -> Call:
    return _call("recorded", entry, generation_id, ttl_s)


def place(generation_id: str) -> Call:
    """Reply: the position in its queue, 0 when it does not wait."""
    return _call("place", generation_id)


# --- workers ------------------------------------------------------------------------------------------------------


class WorkerDetails(msgspec.Struct, kw_only=True):
    """The heartbeat's details, JSON in field `details` of `octavo:worker:{id}`; `steps` counts the engine's steps."""

    id: str
    model: str
    context: int
    block_size: int
    num_blocks: int
    pid: int
    tenant_blocks: int = 0  # of num_blocks, for what one tenant runs; 0: all of them
    tools: bool = False  # whether the model's chat template knows of tools
    host: str = ""
    device: str = "cpu"
    dtype: str = ""
    steps: int = 0
    running: int = 0
    waiting: int = 0
    healthy: bool = True
    draining: bool = False  # takes nothing new: it ends, or an operator wants it so
    stopping: bool = False  # it ends once what runs is done
    metrics: str = ""  # where its /metrics is, as host:port; empty: it has none
    version: str = ""
    started_ms: int = 0
    threads: int = 0  # that compute; 0: not known
    step_ms: float = 0.0  # mean of the last steps
    preemptions: int = 0


class MemoryRun(msgspec.Struct, frozen=True, omit_defaults=True):
    """Neighbouring blocks of a chat of which the same can be said.

    `kind`: platform (its preamble), team (the prompt), kept (the chat's own, there before this turn), own (what this
    turn adds), lost (an idle chat's, evicted since). `chats`: how many other chats of the team hold them too. `host`:
    in host memory. `since`: seconds of the Unix epoch, roughly; 0 where it is not known.
    """

    kind: Literal["platform", "team", "kept", "own", "lost"]
    chats: int = 0
    pinned: bool = False
    host: bool = False
    since: int = 0
    blocks: int = 1


class Memory(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a worker holds of a chat: the blocks in the order of its tokens, which fill them from the first on.

    `state`: answering (what the answer under way uses), idle (what the chat's next turn would find), new (what any new
    chat would find: the worker knows nothing of this one). `tokens`: those whose KV is there. `length`: all that the
    chat has. `cached`: prompt tokens that were found as the answer began; `response`, `seq`: which answer, and the last
    event of it that this contains. `lost_at`: when somebody who looked saw blocks go. `outdated`: the prompt has
    another version now, so the next turn finds nothing of this.
    """

    worker: str
    at_ms: int
    state: Literal["answering", "idle", "new"]
    block_size: int
    block_bytes: int
    runs: list[MemoryRun]
    tokens: int = 0
    length: int = 0
    cached: int = 0
    response: str = ""
    seq: int = -1
    lost_at: int = 0
    outdated: bool = False


_memory_decoder = msgspec.json.Decoder(Memory)


def decode_memory(data: bytes | str) -> Memory:
    return _memory_decoder.decode(data)
