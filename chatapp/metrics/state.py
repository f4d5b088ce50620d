"""How queues, workers, Redis and the database are at the moment that somebody asks.

Nobody keeps these figures, and any web process says the same: a few round trips a scrape. What does not answer is said
to be down, and what only it would know is left out.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import redis.exceptions
from django.conf import settings
from django.db import Error as DatabaseError
from django.db import connection as database
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from chatapp.streaming import connection, workers
from chatapp.streaming.finished import ASIDE
from engine import protocol

AWAY = (redis.exceptions.RedisError, OSError)
CELERY_QUEUE = "celery"
STATES = ("healthy", "unhealthy", "draining")


def gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(f"octavo_{name}", text, value=value)


def by(name: str, text: str, labels: list[str], values: dict[tuple[str, ...], float]) -> Metric:
    family = GaugeMetricFamily(f"octavo_{name}", text, labels=labels)
    for key, value in sorted(values.items()):
        family.add_metric(key, value)
    return family


class StateCollector(Collector):
    def collect(self) -> Iterator[Metric]:
        yield from _database()
        try:
            found = [*_redis(), *_workers(), *_queues(), *_recorder(), *_celery()]
        except AWAY:
            yield gauge("redis_up", "1 if Redis answers.", 0)
            yield by("workers", WORKERS, ["model_name", "state"], dict.fromkeys(_places(), 0.0))
            return
        yield gauge("redis_up", "1 if Redis answers.", 1)
        yield from found


WORKERS = "Workers with a fresh heartbeat; only healthy ones take requests."


def _places() -> list[tuple[str, ...]]:
    """A model without a worker is said to have none: else nobody could be told of it."""
    return [(model, state) for model in settings.OCTAVO_MODEL_NAMES for state in STATES]


def _database() -> Iterator[Metric]:
    began = time.monotonic()
    try:
        with database.cursor() as cursor:
            cursor.execute("SELECT 1")
    except DatabaseError:
        yield gauge("database_up", "1 if the database answers.", 0)
        return
    yield gauge("database_up", "1 if the database answers.", 1)
    yield gauge("database_ping_seconds", "What it takes to answer to nothing.", time.monotonic() - began)


def _redis() -> Iterator[Metric]:
    client = connection.sync_redis()
    began = time.monotonic()
    client.ping()
    yield gauge("redis_ping_seconds", "What Redis takes to answer to nothing.", time.monotonic() - began)
    info: dict[str, Any] = client.info()
    yield gauge("redis_memory_used_bytes", "What its data takes.", info.get("used_memory", 0))
    yield gauge("redis_memory_max_bytes", "What it may take; 0: no limit of its own.", info.get("maxmemory", 0))
    yield gauge("redis_clients", "Connections to it.", info.get("connected_clients", 0))
    healthy = info.get("aof_enabled", 0) and info.get("aof_last_write_status") == "ok"
    yield gauge("redis_persistent", "1 if it writes what it is told to its append-only file.", bool(healthy))


def _workers() -> Iterator[Metric]:
    count: Counter[tuple[str, ...]] = Counter(dict.fromkeys(_places(), 0))
    for worker in workers.live():
        state = "unhealthy" if not worker.healthy else "draining" if worker.draining else "healthy"
        count[worker.model, state] += 1
    yield by("workers", WORKERS, ["model_name", "state"], {**count})


def _queues() -> Iterator[Metric]:
    client = connection.sync_redis()
    seconds, micros = client.time()
    now_ms = seconds * 1000 + micros // 1000
    depth: dict[tuple[str, ...], float] = {}
    oldest: dict[tuple[str, ...], float] = {}
    tenants: dict[tuple[str, ...], float] = {}
    for model in settings.OCTAVO_MODEL_NAMES:
        waiting = client.zrange(protocol.backlog_key(model), 0, -1)
        queues = [protocol.requests_key(model, tenant.decode()) for tenant in waiting]
        pipe = client.pipeline(transaction=False)
        for queue in queues:
            pipe.xlen(queue)
            pipe.xinfo_groups(queue)
        # An error is a queue's that has just ended.
        replies = pipe.execute(raise_on_error=False)
        depth[(model,)] = 0
        for queue, length, groups in zip(queues, replies[::2], replies[1::2], strict=True):
            # What a worker has stays until it ends, as pending: those behind the last one handed out wait.
            if isinstance(groups, list) and groups:
                depth[(model,)] += length - groups[0]["pending"]
                pipe.xrange(queue, min=b"(" + groups[0]["last-delivered-id"], count=1)
        firsts = [
            entries[0][0] for entries in pipe.execute(raise_on_error=False) if isinstance(entries, list) and entries
        ]
        tenants[(model,)] = len(waiting)
        oldest[(model,)] = max((age_s(now_ms, entry) for entry in firsts), default=0.0)
    labels = ["model_name"]
    yield by("queue_depth", "Requests that no worker has taken yet.", labels, depth)
    yield by("queue_oldest_seconds", "How long the oldest of them has waited.", labels, oldest)
    yield by("queue_tenants", "Teams that have some there.", labels, tenants)


def _recorder() -> Iterator[Metric]:
    client = connection.sync_redis()
    seconds, micros = client.time()
    first = client.xrange(protocol.FINISHED, count=1)
    oldest = age_s(seconds * 1000 + micros // 1000, first[0][0]) if first else 0.0
    yield gauge("recorder_backlog", "Ended generations that are not recorded yet.", client.xlen(protocol.FINISHED))
    yield gauge("recorder_oldest_seconds", "How long ago the oldest of them ended.", oldest)
    yield gauge("recorder_aside", "Ended generations that could not be recorded.", client.xlen(ASIDE))


def _celery() -> Iterator[Metric]:
    waiting = connection.sync_redis(settings.OCTAVO_CELERY_DATABASE).llen(CELERY_QUEUE)
    yield gauge("celery_queue_length", "Tasks that no Celery worker has taken yet.", waiting)


def age_s(now_ms: int, entry: bytes | str) -> float:
    """Of a stream's entry whose id Redis made."""
    ms = (entry.decode() if isinstance(entry, bytes) else entry).partition("-")[0]
    return max(0.0, (now_ms - int(ms)) / 1000)
