"""What operators see of the engines and their queues: every worker that was heard of, also those that are silent now,
what waits for which model, who went without a word, and what the recorders have yet to write.

Reads only, in a few pipelines however many workers and queues there are. Ages are by Redis's clock, in seconds. Raises
redis.exceptions.RedisError.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
import redis.exceptions

from chatapp.streaming import connection, finished
from engine import protocol
from engine.occupancy_wire import Figures

MOST_QUEUES = 500
"""Backlogged teams of a model that are looked at one by one; the rest is counted."""


class Seen(msgspec.Struct, kw_only=True):
    """A worker. `beat_s`: since its last heartbeat; `step_s`: since it made a step, or held nothing. `figures`: of its
    memory, None where it has not said any yet. `leaves`: it has signed off, and others take over what it holds."""

    details: protocol.WorkerDetails
    beat_s: float
    step_s: float
    held: int
    drain: bool
    leaves: bool
    figures: Figures | None

    @property
    def alive(self) -> bool:
        return self.beat_s <= protocol.STALE_AFTER_S

    @property
    def stalled(self) -> bool:
        return self.held > 0 and self.step_s > protocol.STALLED_AFTER_S

    @property
    def drains(self) -> bool:
        """The wish counts from when it is set; the worker's own word follows."""
        return self.drain or self.details.draining

    @property
    def takes(self) -> bool:
        return self.alive and self.details.healthy and not self.stalled and not self.drains


class Queue(msgspec.Struct, frozen=True):
    """What waits of a tenant for a model and is not being answered. `service`: what it has received, by its weight."""

    model: str
    tenant: str
    waiting: int
    oldest_s: float
    bytes: int
    service: float


class Backlog(msgspec.Struct):
    """`teams`: how many have something waiting for the model; `queues`: the least served MOST_QUEUES of them."""

    model: str
    teams: int
    queues: list[Queue]


class Vanished(msgspec.Struct, frozen=True):
    worker: str
    model: str
    host: str
    ago_s: float


class Unrecorded(msgspec.Struct, kw_only=True):
    """Ended generations that the database does not have yet. `idle_s`: since a recorder last asked, None: none ever
    did. `aside`: those that could not be recorded and were set apart, for good."""

    waiting: int
    oldest_s: float
    idle_s: float | None
    aside: int
    newest_aside: list[dict[str, str]]


_details = msgspec.json.Decoder(protocol.WorkerDetails)


class _Line(msgspec.Struct):
    figures: Figures


_lines = msgspec.json.Decoder(_Line)


def now_ms(client: connection.Redis) -> int:
    seconds, micros = client.time()
    return int(seconds) * 1000 + int(micros) // 1000


def workers() -> list[Seen]:
    """By model and id. A silent one is here until the others have taken over what it held and forgotten it."""
    client = connection.sync_redis()
    now = now_ms(client)
    listed = [(member.decode(), beat) for member, beat in client.zrange(protocol.WORKERS, 0, -1, withscores=True)]
    pipe = client.pipeline(transaction=False)
    for worker, _ in listed:
        pipe.hmget(protocol.worker_key(worker), "details", "stepped_ms", protocol.DRAIN)
        pipe.scard(protocol.held_key(worker))
        pipe.xrevrange(protocol.line_key(worker), count=1)
    replies = iter(pipe.execute())
    found = []
    for (_, beat), (details, stepped, drain), held, line in zip(listed, replies, replies, replies, strict=True):
        if details is None:  # it was given something before it could say who it is
            continue
        found.append(
            Seen(
                details=_details.decode(details),
                beat_s=max(0.0, now - beat) / 1000 if beat > 0 else 0.0,
                step_s=max(0.0, now - int(stepped or now)) / 1000,
                held=int(held),
                drain=drain is not None,
                leaves=beat <= 0,
                figures=_lines.decode(line[0][1][b"line"]).figures if line else None,
            )
        )
    return sorted(found, key=lambda one: (one.details.model, one.details.id))


def backlogs(models: Iterable[str]) -> list[Backlog]:
    """What waits for each of these models."""
    client = connection.sync_redis()
    names = list(models)
    pipe = client.pipeline(transaction=False)
    for model in names:
        pipe.zcard(protocol.backlog_key(model))
        pipe.zrange(protocol.backlog_key(model), 0, MOST_QUEUES - 1, withscores=True)
    replies = iter(pipe.execute())
    found = []
    for model, teams, scored in zip(names, replies, replies, strict=True):
        served = {tenant.decode(): float(service) for tenant, service in scored}
        found.append(Backlog(model, int(teams), _queues(client, model, served)))
    return found


def queued(tenant: str, models: Iterable[str]) -> dict[str, int]:
    """Model -> what waits of this tenant for it and no engine has taken yet."""
    names = list(models)
    pipe = connection.sync_redis().pipeline(transaction=False)
    for model in names:
        pipe.xlen(protocol.requests_key(model, tenant))
        pipe.xinfo_groups(protocol.requests_key(model, tenant))
    replies = iter(pipe.execute(raise_on_error=False) if names else ())
    return {model: _waiting(length, groups) for model, length, groups in zip(names, replies, replies, strict=True)}


def _waiting(length: Any, groups: Any) -> int:
    """How many entries of a queue were handed to nobody, by what the server says of it."""
    if isinstance(groups, redis.exceptions.ResponseError) or not groups:  # it has just been emptied, or never was
        return 0
    if isinstance(groups, Exception):
        raise groups
    return max(0, int(length) - int(groups[0]["pending"]))


def _queues(client: connection.Redis, model: str, served: dict[str, float]) -> list[Queue]:
    """The head of a queue is the first entry behind the one that was handed out last; its id says when it came."""
    if not served:
        return []
    pipe = client.pipeline(transaction=False)
    pipe.time()
    pipe.hmget(protocol.queued_bytes_key(model), list(served))
    for tenant in served:
        pipe.xlen(protocol.requests_key(model, tenant))
        pipe.xinfo_groups(protocol.requests_key(model, tenant))
    (seconds, _), sizes, *rest = pipe.execute(raise_on_error=False)
    heads = client.pipeline(transaction=False)
    waiting = []
    for tenant, length, groups in zip(served, rest[::2], rest[1::2], strict=True):
        waiting.append(_waiting(length, groups))
        if isinstance(groups, Exception) or not groups:
            heads.echo("")
            continue
        last = groups[0]["last-delivered-id"].decode()
        heads.xrange(protocol.requests_key(model, tenant), min=f"({last}", count=1)
    found = []
    for (tenant, service), count, size, head in zip(served.items(), waiting, sizes, heads.execute(), strict=True):
        if count > 0 and head:
            came_s = int(head[0][0].partition(b"-")[0]) / 1000
            found.append(Queue(model, tenant, count, max(0.0, seconds - came_s), int(size or 0), service))
    return sorted(found, key=lambda queue: -queue.oldest_s)


def vanished() -> list[Vanished]:
    """Workers that went without a word, the newest first."""
    client = connection.sync_redis()
    now = now_ms(client)
    entries = client.xrevrange(protocol.VANISHED, count=20)
    found = []
    for _, fields in entries:
        said = {name.decode(): value.decode() for name, value in fields.items()}
        found.append(Vanished(said["worker"], said["model"], said["host"], max(0.0, now - int(said["beat_ms"])) / 1000))
    return found


def unrecorded() -> Unrecorded:
    client = connection.sync_redis()
    pipe = client.pipeline(transaction=False)
    pipe.time()
    pipe.xlen(protocol.FINISHED)
    pipe.xrange(protocol.FINISHED, count=1)
    pipe.xinfo_consumers(protocol.FINISHED, protocol.RECORDER_GROUP)
    pipe.xlen(finished.ASIDE)
    pipe.xrevrange(finished.ASIDE, count=10)
    (seconds, _), waiting, first, consumers, aside, newest = pipe.execute(raise_on_error=False)
    known = [] if isinstance(consumers, redis.exceptions.ResponseError) else consumers  # the group comes with the first
    return Unrecorded(
        waiting=int(waiting),
        oldest_s=max(0.0, seconds - int(first[0][0].partition(b"-")[0]) / 1000) if first else 0.0,
        idle_s=min((int(one["idle"]) / 1000 for one in known), default=None),
        aside=int(aside),
        newest_aside=[_aside(seconds, entry_id, fields) for entry_id, fields in newest],
    )


def _aside(seconds: int, entry_id: bytes, fields: dict[bytes, bytes]) -> dict[str, str]:
    said = {name.decode(): value.decode() for name, value in fields.items()}
    return {**said, "ago_s": str(max(0, seconds - int(entry_id.partition(b"-")[0]) // 1000))}
