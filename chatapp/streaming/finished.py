"""The recorder's side of the wire: terminal events to record, logs to read, generations to end from outside.

Entries of octavo:finished are handed to one recorder at a time and stay until `ack`; `takeover` gets those of a
recorder that died. Recording itself, and its exactly-once, is the caller's.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import msgspec
import redis.exceptions
from django.conf import settings

from chatapp.streaming import connection
from engine import protocol

ASIDE = "octavo:finished:aside"
# Somebody looks at them, or nobody will: Redis evicts nothing by itself.
MOST_ASIDE = 1000
ASIDE_TTL_S = 30 * 24 * 3600


class Entry(msgspec.Struct, frozen=True):
    """`status` is the terminal event's type: finished, refused, cancelled, timeout, interrupted or failed."""

    entry_id: str
    generation_id: str
    status: str
    tenant: str
    model: str

    @property
    def ended_at(self) -> float:
        """Seconds of the Unix epoch, by Redis's clock."""
        return int(self.entry_id.partition("-")[0]) / 1000


def _entries(items: list[Any]) -> list[Entry]:
    found = []
    for entry_id, fields in items:
        if fields:  # an entry deleted meanwhile has none
            get = {name.decode(): value.decode() for name, value in fields.items()}
            found.append(Entry(entry_id.decode(), get["id"], get["status"], get["tenant"], get["model"]))
    return found


@cache
def _client(url: str) -> connection.Redis:
    return connection.blocking_redis()


def _waiting() -> connection.Redis:
    """The process's client for waiting."""
    return _client(settings.REDIS_URL)


def _with_group(read: Any) -> Any:
    try:
        return read()
    except redis.exceptions.ResponseError as error:
        if "NOGROUP" not in str(error):
            raise
    try:
        # From 0: what ended before the first recorder started is recorded too.
        connection.sync_redis().xgroup_create(protocol.FINISHED, protocol.RECORDER_GROUP, "0", mkstream=True)
    except redis.exceptions.ResponseError as error:
        if "BUSYGROUP" not in str(error):
            raise
    return read()


def read(consumer: str, count: int = 16, block_s: float = 2.0) -> list[Entry]:
    """New entries for this consumer; waits up to `block_s` (at most connection.BLOCK_S) for the first."""
    client = _waiting()

    def once() -> Any:
        return client.xreadgroup(
            protocol.RECORDER_GROUP, consumer, {protocol.FINISHED: ">"}, count=count, block=int(block_s * 1000) or None
        )

    reply = _with_group(once)
    return _entries(reply[0][1]) if reply else []


def takeover(consumer: str, idle_s: float, count: int = 16) -> list[Entry]:
    """Entries that some recorder was given at least `idle_s` ago and has not acknowledged; now this consumer's."""
    client = connection.sync_redis()

    def once() -> Any:
        return client.xautoclaim(
            protocol.FINISHED, protocol.RECORDER_GROUP, consumer, int(idle_s * 1000), "0-0", count=count
        )

    return _entries(_with_group(once)[1])


def deliveries(entry: Entry) -> int:
    """How often the entry has been handed out: after the fifth it goes aside."""
    pending = connection.sync_redis().xpending_range(
        protocol.FINISHED, protocol.RECORDER_GROUP, entry.entry_id, entry.entry_id, 1
    )
    return int(pending[0]["times_delivered"]) if pending else 0


def ack(entry: Entry, ttl_s: int = protocol.LOG_TTL_S) -> None:
    """It is recorded: forget the entry, and let the log expire. Safe to repeat."""
    connection.call(protocol.recorded(entry.entry_id, entry.generation_id, ttl_s))


def set_aside(entry: Entry, reason: str) -> None:
    """It cannot be recorded: keep it and its log apart for ASIDE_TTL_S, and block nobody. No text in `reason`."""
    pipe = connection.sync_redis().pipeline()
    said = {"id": entry.generation_id, "status": entry.status, "tenant": entry.tenant, "reason": reason}
    pipe.xadd(ASIDE, said, maxlen=MOST_ASIDE, approximate=False)
    for key in (protocol.generation_key(entry.generation_id), protocol.request_key(entry.generation_id)):
        pipe.expire(key, ASIDE_TTL_S)
    pipe.xack(protocol.FINISHED, protocol.RECORDER_GROUP, entry.entry_id)
    pipe.xdel(protocol.FINISHED, entry.entry_id)
    pipe.execute()


def read_log(generation_id: str) -> list[protocol.AnyEvent]:
    """All that was said about a generation, in order; empty when nothing was or it has expired."""
    log: Any = connection.sync_redis().xrange(protocol.generation_key(generation_id))
    return [protocol.decode_event(fields[b"event"]) for _, fields in log]


def state(generation_id: str) -> str | None:
    """queued, running, a terminal status, or None when Redis does not know it."""
    value: Any = connection.sync_redis().hget(protocol.request_key(generation_id), "state")
    return value.decode() if value else None


def known(generation_id: str) -> bool:
    """Whether Redis knows it, as queued, running or ended a while ago."""
    return state(generation_id) is not None


def end(generation_id: str, event: protocol.AnyTerminal) -> str:
    """End it from outside whatever it does, with this event (its seq is set by the wire); its worker drops it.

    Returns the state after it: one that had ended before keeps its status; `unknown` when Redis knows nothing of it.
    """
    return str(connection.call(protocol.end(generation_id, event)).decode())
