"""Tasks that wait for Celery are bounded: without a worker they would fill Redis, which evicts nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import redis
from celery import Celery
from celery.beat import ScheduleEntry, Scheduler, SchedulingError
from kombu.exceptions import OperationalError

from chatapp import backlog
from chatapp.chat.tasks import reap
from chatapp.settings import redis_urls
from chatapp.streaming import connection


@pytest.fixture
def broker(redis_url: str, settings: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[redis.Redis]:
    settings.REDIS_URL = redis_url
    monkeypatch.setattr(backlog, "LOOK_EVERY_S", 0.0)
    client = connection.sync_redis(settings.OCTAVO_CELERY_DATABASE)
    client.delete(backlog.QUEUE)
    yield client
    client.delete(backlog.QUEUE)


def _nothing() -> None:
    pass


@pytest.fixture
def sending(broker: redis.Redis, redis_url: str, settings: Any) -> Iterator[Celery]:
    """An application with the product's kind of tasks, which really sends them."""
    url, options = redis_urls.celery_broker(redis_url, settings.OCTAVO_CELERY_DATABASE)
    app = Celery("tests", task_cls=backlog.BoundedTask, broker=url, set_as_current=False)
    app.conf.broker_transport_options = options
    app.task(name="nothing")(_nothing)
    yield app
    app.close()


def test_no_more_tasks_are_sent_than_may_wait_and_again_when_some_are_done(
    sending: Celery, broker: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backlog, "MOST_WAITING", 2)
    nothing = sending.tasks["nothing"]
    for _ in range(2):
        nothing.apply_async(retry=False)
    with pytest.raises(OperationalError, match="2 tasks wait for Celery already"):
        nothing.apply_async(retry=False)
    assert broker.llen(backlog.QUEUE) == 2
    broker.lpop(backlog.QUEUE)
    nothing.apply_async(retry=False)
    assert broker.llen(backlog.QUEUE) == 2


def test_beat_is_held_to_it_too(sending: Celery, broker: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backlog, "MOST_WAITING", 1)
    scheduler = Scheduler(sending, lazy=True)
    entry = ScheduleEntry(name="nothing", task="nothing", schedule=5.0, app=sending)
    scheduler.apply_async(entry, advance=False)
    with pytest.raises(SchedulingError):
        scheduler.apply_async(entry, advance=False)
    scheduler.apply_entry(entry)  # what beat itself calls, for which it is no fault
    assert broker.llen(backlog.QUEUE) == 1


def test_the_product_s_tasks_are_of_this_kind_and_one_done_where_it_is_sent_asks_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fails() -> int:
        raise AssertionError

    assert isinstance(reap, backlog.BoundedTask)
    monkeypatch.setattr(backlog, "waiting", fails)
    monkeypatch.setattr("chatapp.chat.reaper.reap", dict)
    assert reap.apply_async().successful()
