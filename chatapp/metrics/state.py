"""How queues, workers, Redis and the database are at the moment that somebody asks.

Read by what the operators' pages read, so both say the same. Nobody keeps these figures, and any web process gives the
same ones: a few round trips a scrape. What does not answer is said to be down, and what only it would know is left out.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor

from django.conf import settings
from django.db import Error as DatabaseError
from django.db import connection as database
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from chatapp.streaming import dead, fleet, server
from chatapp.streaming.connection import AWAY

# Prometheus gives up after ten seconds. What is asked of a Redis that takes connections and says nothing adds up: the
# web would seem to be down, and nobody would be told of Redis.
ANSWERS_WITHIN_S = 4.0
_asking = ThreadPoolExecutor(2, "metrics")
STATES = ("healthy", "unhealthy", "draining", "silent")


def gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(f"octavo_{name}", text, value=value)


def by_model(name: str, text: str, values: Mapping[str, float]) -> Metric:
    family = GaugeMetricFamily(f"octavo_{name}", text, labels=["model_name"])
    for model, value in sorted(values.items()):
        family.add_metric([model], value)
    return family


def by_state(values: Mapping[tuple[str, str], int]) -> Metric:
    text = "Workers by state; only healthy ones take requests."
    family = GaugeMetricFamily("octavo_workers", text, labels=["model_name", "state"])
    for place, value in sorted(values.items()):
        family.add_metric(place, value)
    return family


class StateCollector(Collector):
    def collect(self) -> Iterator[Metric]:
        yield from _database()
        asked = _asking.submit(lambda: [*_redis(), *_workers(), *_queues(), *_recorder(), *_celery()])
        try:
            found = asked.result(ANSWERS_WITHIN_S)
        except AWAY:  # TimeoutError is an OSError
            asked.cancel()
            yield gauge("redis_up", "1 if Redis answers.", 0)
            yield by_state(dict.fromkeys(_places(), 0))
            return
        yield gauge("redis_up", "1 if Redis answers.", 1)
        yield from found


def _places() -> list[tuple[str, str]]:
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
    seen = server.look()
    yield gauge("redis_ping_seconds", "What Redis takes to answer to nothing.", seen.answers_ms / 1000)
    yield gauge("redis_memory_used_bytes", "What its data takes.", seen.memory)
    yield gauge("redis_memory_max_bytes", "What it may take; 0: no limit of its own.", seen.most_memory)
    yield gauge("redis_clients", "Connections to it.", seen.clients)
    text = "1 if it writes what it is told to its append-only file, and could the last time."
    yield gauge("redis_persistent", text, seen.append_only and seen.saved)


def _workers() -> Iterator[Metric]:
    count: Counter[tuple[str, str]] = Counter(dict.fromkeys(_places(), 0))
    for worker in fleet.workers():
        if not worker.leaves:
            count[worker.details.model, _state(worker)] += 1
    yield by_state(count)


def _state(worker: fleet.Seen) -> str:
    if not worker.alive:
        return "silent"
    if worker.stalled or not worker.details.healthy:
        return "unhealthy"
    return "draining" if worker.drains else "healthy"


def _queues() -> Iterator[Metric]:
    backlogs = fleet.backlogs(settings.OCTAVO_MODEL_NAMES)
    depth = {one.model: float(sum(queue.waiting for queue in one.queues)) for one in backlogs}
    yield by_model("queue_depth", "Requests that no worker has taken yet.", depth)
    oldest = {one.model: max((queue.oldest_s for queue in one.queues), default=0.0) for one in backlogs}
    yield by_model("queue_oldest_seconds", "How long the oldest of them has waited.", oldest)
    yield by_model("queue_tenants", "Teams that have some there.", {one.model: one.teams for one in backlogs})


def _recorder() -> Iterator[Metric]:
    seen = fleet.unrecorded()
    yield gauge("recorder_backlog", "Ended generations that are not recorded yet.", seen.waiting)
    yield gauge("recorder_oldest_seconds", "How long ago the oldest of them ended.", seen.oldest_s)
    yield gauge("recorder_aside", "Ended generations that could not be recorded.", seen.aside)
    yield gauge("dead_letters", "Requests that crashed the engine again and again and were given up.", dead.count())


def _celery() -> Iterator[Metric]:
    seen = server.background()
    yield gauge("celery_queue_length", "Tasks that no Celery worker has taken yet.", seen.queued)
    if seen.beat_s is not None:
        yield gauge("celery_beat_age_seconds", "Since Celery's beat has sent a task.", seen.beat_s)
    if seen.worker_s is not None:
        yield gauge("celery_worker_age_seconds", "Since a Celery worker has ended one.", seen.worker_s)
