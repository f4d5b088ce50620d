"""How Redis itself is: what an operator would ask it by hand. Raises redis.exceptions.RedisError when it is away."""

from __future__ import annotations

import time

import msgspec
from django.conf import settings

from chatapp import ticks
from chatapp.streaming import connection

ANSWERS_WITHIN_S = 2.0


class Server(msgspec.Struct, frozen=True, kw_only=True):
    """`total_memory`: the machine's; `most_memory`: what it may use, 0 for no limit. `append_only`, `saved`: it writes
    its append-only file, and the last write went well."""

    name: str
    answers_ms: float
    uptime_s: int
    memory: int
    most_memory: int
    total_memory: int
    policy: str
    clients: int
    most_clients: int
    rejected: int
    append_only: bool
    saved: bool
    evicted: int
    calls_per_s: int
    replicas: int


def answers() -> bool:
    """Whether it answers at all, known within seconds, and by a new connection."""
    try:
        with connection.hasty_redis(ANSWERS_WITHIN_S) as client:
            client.ping()
    except connection.AWAY:
        return False
    return True


def look() -> Server:
    client = connection.sync_redis()
    client.ping()  # a connection may have to be made first
    started = time.perf_counter()
    client.ping()
    answers_ms = (time.perf_counter() - started) * 1000
    said = client.info()
    name = said.get("server_name") or "redis"
    return Server(
        name=f"{name.capitalize()} {said.get(f'{name}_version') or said.get('redis_version', '')}".strip(),
        answers_ms=answers_ms,
        uptime_s=int(said.get("uptime_in_seconds", 0)),
        memory=int(said.get("used_memory", 0)),
        most_memory=int(said.get("maxmemory", 0)),
        total_memory=int(said.get("total_system_memory", 0)),
        policy=str(said.get("maxmemory_policy", "")),
        clients=int(said.get("connected_clients", 0)),
        most_clients=int(said.get("maxclients", 0)),
        rejected=int(said.get("rejected_connections", 0)),
        append_only=bool(int(said.get("aof_enabled", 0))),
        saved=said.get("aof_last_write_status", "ok") == "ok" and said.get("aof_last_bgrewrite_status", "ok") == "ok",
        evicted=int(said.get("evicted_keys", 0)),
        calls_per_s=int(said.get("instantaneous_ops_per_sec", 0)),
        replicas=int(said.get("connected_slaves", 0)),
    )


class Failure(msgspec.Struct, frozen=True):
    task: str
    error: str
    ago_s: float


class Background(msgspec.Struct, frozen=True, kw_only=True):
    """Celery. Ages are None where there never was such a sign in the last days."""

    beat_s: float | None
    worker_s: float | None
    queued: int
    failures: list[Failure]


def background() -> Background:
    client = connection.sync_redis()
    pipe = client.pipeline(transaction=False)
    pipe.time()
    pipe.xrevrange(ticks.BEAT, count=1)
    pipe.xrevrange(ticks.WORKER, count=1)
    pipe.xrevrange(ticks.FAILED, count=ticks.MOST_FAILED)
    (seconds, micros), beat, worker, failed = pipe.execute()
    now = seconds + micros / 1e6

    def ago(entry_id: bytes) -> float:
        return max(0.0, now - int(entry_id.partition(b"-")[0]) / 1000)

    return Background(
        beat_s=ago(beat[0][0]) if beat else None,
        worker_s=ago(worker[0][0]) if worker else None,
        queued=int(connection.sync_redis(settings.OCTAVO_CELERY_DATABASE).llen("celery")),
        failures=[Failure(fields[b"task"].decode(), fields[b"error"].decode(), ago(entry)) for entry, fields in failed],
    )
