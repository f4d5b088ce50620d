"""The reaper finishes what a crash left between database and Redis, and touches nothing else."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import redis

from chatapp.chat import reaper, services
from chatapp.chat.models import Generation, Message, MessageStatus, State
from chatapp.streaming import finished
from engine import protocol
from tests.chat.conftest import ScriptedWorker, Team


def age(generation: Generation, seconds: float) -> None:
    """As if it had been asked so long ago."""
    back = timedelta(seconds=seconds)
    Generation.objects.filter(pk=generation.pk).update(
        created_at=generation.created_at - back, deadline=generation.deadline - back
    )


@pytest.fixture
def unqueued(team: Team, settings: Any, redis_url: str) -> Generation:
    """A generation that was accepted while Redis was away."""
    settings.REDIS_URL = "unix:///nowhere/valkey.sock"
    generation = services.ask(access=team.member, text="Anyone?")
    settings.REDIS_URL = redis_url
    assert generation.state == State.ACCEPTED
    return generation


def test_what_was_accepted_without_redis_is_queued_after_five_seconds(
    unqueued: Generation, worker: ScriptedWorker, record: Callable[[], int]
) -> None:
    reaper.reap()
    assert finished.state(str(unqueued.pk)) is None, "a row of this moment is its web process's business"

    age(unqueued, 6)
    reaper.reap()
    reaper.reap()
    unqueued.refresh_from_db()
    assert unqueued.state == State.QUEUED
    request = worker.answer("I am.")
    assert [message.content for message in request.messages] == ["Anyone?"]
    record()
    unqueued.refresh_from_db()
    assert unqueued.state == State.FINISHED


def test_what_redis_forgot_ends_interrupted(team: Team, server: redis.Redis) -> None:
    generation = services.ask(access=team.member, text="Lost")
    age(generation, 6)
    server.flushdb()
    reaper.reap()
    generation.refresh_from_db()
    message = Message.objects.get(pk=generation.message_id)
    assert (generation.state, message.status) == (State.INTERRUPTED, MessageStatus.FAILED)
    assert generation.error_code
    assert generation.error_message
    services.ask(access=team.member, text="Again", conversation_id=generation.conversation_id)


@pytest.mark.parametrize("redis_knows", [True, False])
def test_a_row_past_its_deadline_ends_timeout_without_any_worker(
    team: Team, server: redis.Redis, record: Callable[[], int], settings: Any, redis_knows: bool
) -> None:
    generation = services.ask(access=team.member, text="Late")
    if not redis_knows:
        server.flushdb()
    age(generation, settings.OCTAVO_ANSWER_TIMEOUT_S + 60)
    reaper.reap()
    record()
    generation.refresh_from_db()
    assert generation.state == State.TIMEOUT


def test_a_healthy_answer_is_left_alone(team: Team, worker: ScriptedWorker, record: Callable[[], int]) -> None:
    waiting = services.ask(access=team.owner, text="I wait")
    age(waiting, 60)
    running = services.ask(access=team.member, text="I run")
    age(running, 60)
    taken = worker.begin("Half ")
    reaper.reap()
    assert finished.state(str(waiting.pk)) in ("queued", "running")
    assert finished.state(str(running.pk)) in ("queued", "running")
    worker.end(taken, protocol.Finished(seq=2, finish_reason="stop"))
    record()
    assert Generation.objects.filter(state=State.FINISHED).count() == 1


def test_an_end_whose_entry_was_lost_is_recorded_all_the_same(
    team: Team, worker: ScriptedWorker, server: redis.Redis, settings: Any
) -> None:
    generation = services.ask(access=team.member, text="Said?")
    worker.answer("Said.")
    server.delete(protocol.FINISHED)
    age(generation, settings.OCTAVO_ANSWER_TIMEOUT_S + 60)
    reaper.reap()
    generation.refresh_from_db()
    assert generation.state == State.FINISHED
    assert Message.objects.get(pk=generation.message_id).text == "Said."


def test_one_broken_row_does_not_keep_the_others_waiting(unqueued: Generation, strangers: Team, settings: Any) -> None:
    url = settings.REDIS_URL
    settings.REDIS_URL = "unix:///nowhere/valkey.sock"
    behind = services.ask(access=strangers.member, text="Behind it")
    settings.REDIS_URL = url
    age(behind, 6)
    age(unqueued, 60)
    Generation.objects.filter(pk=unqueued.pk).update(request=b"no request")
    reaper.reap()
    assert finished.state(str(behind.pk)) == "queued"


def test_the_task_is_the_one_that_beat_calls(settings: Any) -> None:
    from chatapp.celery import app
    from chatapp.chat import tasks

    scheduled = app.conf.beat_schedule["reap"]
    assert scheduled["task"] == tasks.reap.name
    assert scheduled["schedule"] == 5.0
