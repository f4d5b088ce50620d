"""An answer that has ended is in the database once, whole, whatever dies on the way."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import pytest
import redis
from django.db import OperationalError, connection

from chatapp.chat import recorder, services
from chatapp.chat.models import Generation, Message, MessageStatus, State
from chatapp.streaming import finished
from engine import protocol
from engine.protocol import Cancelled, Failed, Timing, Usage
from tests.chat.conftest import ScriptedWorker, Team
from tests.conftest import ROOT

CRASH_BEFORE_ACK = """
import os, signal, django
django.setup()
from chatapp.chat.recorder import Recorder
from chatapp.scope import unscoped
from chatapp.streaming import finished
finished.ack = lambda entry: os.kill(os.getpid(), signal.SIGKILL)
with unscoped("tests"):
    Recorder(lambda: False).once()
"""


def pending(server: redis.Redis) -> int:
    groups: Any = server.xinfo_groups(protocol.FINISHED)
    return int(groups[0]["pending"])


def process_environment() -> dict[str, str]:
    """For a process that works on this test's database and server."""
    from django.conf import settings

    database = connection.settings_dict
    url = f"sqlite:///{database['NAME']}"
    if connection.vendor == "postgresql":
        host = quote(database["HOST"], safe="")
        url = f"postgres://{database['USER']}:{database['PASSWORD']}@{host}:{database['PORT']}/{database['NAME']}"
    return {
        **os.environ,
        "DJANGO_SETTINGS_MODULE": "chatapp.settings.test",
        "DATABASE_URL": url,
        "REDIS_URL": settings.REDIS_URL,
        "OCTAVO_MODEL_NAME": settings.OCTAVO_MODEL_NAME,
    }


def test_text_usage_and_end_are_recorded_together(
    team: Team, worker: ScriptedWorker, record: Callable[[], int], server: redis.Redis
) -> None:
    generation = services.ask(access=team.member, text="Where is my tent?")
    worker.answer("On its ", "way.", finish_reason="length")
    assert record() == 1

    generation.refresh_from_db()
    message = Message.objects.get(pk=generation.message_id)
    assert (message.text, message.status) == ("On its way.", MessageStatus.DONE)
    assert (generation.state, generation.finish_reason, generation.last_seq) == (State.FINISHED, "length", 2)
    assert (generation.prompt_tokens, generation.cached_tokens, generation.completion_tokens) == (7, 3, 2)
    assert generation.ended_at is not None
    assert generation.request is None, "the prompt is kept twice"
    assert server.xlen(protocol.FINISHED) == 0
    assert 0 < server.ttl(protocol.generation_key(str(generation.pk))) <= protocol.LOG_TTL_S


def test_a_replay_changes_nothing(team: Team, worker: ScriptedWorker, record: Callable[[], int]) -> None:
    generation = services.ask(access=team.member, text="Once?")
    worker.answer("Once.")
    entry = finished.read("first", block_s=0.1)[0]
    one = recorder.Recorder(lambda: False)
    one.handle(entry)
    generation.refresh_from_db()
    before = Generation.objects.values().get(pk=generation.pk)
    # What a replay would bring if it were believed.
    Message.objects.filter(pk=generation.message_id).update(text="Edited since.")

    one.handle(entry)
    assert Generation.objects.values().get(pk=generation.pk) == before
    assert Message.objects.get(pk=generation.message_id).text == "Edited since."


def test_whoever_comes_second_with_an_older_view_of_the_row_changes_nothing(
    team: Team, worker: ScriptedWorker, record: Callable[[], int]
) -> None:
    generation = services.ask(access=team.member, text="Once?")
    view_of_the_reaper = Generation.objects.get(pk=generation.pk)
    worker.answer("Once.")
    record()
    late = recorder.Answer(text="Late", terminal=protocol.TimedOut(code="deadline"))
    recorder.write(view_of_the_reaper, late, State.TIMEOUT)
    generation.refresh_from_db()
    assert (generation.state, generation.error_code) == (State.FINISHED, "")
    assert Message.objects.get(pk=generation.message_id).text == "Once."


@pytest.mark.django_db(transaction=True)
def test_a_recorder_waits_for_a_redis_that_writes_nothing(
    transactional_db: None, team: Team, worker: ScriptedWorker, server: redis.Redis
) -> None:
    """As where its disk is full (MISCONF), which is said in the same way as that too few replicas are there."""
    generation = services.ask(access=team.member, text="Where is my tent?")
    worker.answer("On its way.")
    server.config_set("min-replicas-to-write", "1")
    rounds: list[None] = []

    def stopping() -> bool:
        rounds.append(None)
        if len(rounds) == 2:
            server.config_set("min-replicas-to-write", "0")
        return len(rounds) > 2

    try:
        recorder.Recorder(stopping).run()
    finally:
        server.config_set("min-replicas-to-write", "0")
    assert len(rounds) == 3, "it ended by itself"
    generation.refresh_from_db()
    assert generation.state == State.FINISHED
    assert server.xlen(protocol.FINISHED) == 0


@pytest.mark.django_db(transaction=True)
def test_a_recorder_killed_between_commit_and_ack_is_taken_over_without_writing_twice(
    transactional_db: None, team: Team, worker: ScriptedWorker, server: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    generation = services.ask(access=team.member, text="Twice?")
    worker.answer("No.")
    crashed = subprocess.run(
        [sys.executable, "-c", CRASH_BEFORE_ACK], env=process_environment(), cwd=ROOT, timeout=60, check=False
    )
    assert crashed.returncode == -signal.SIGKILL
    generation.refresh_from_db()
    assert generation.state == State.FINISHED
    assert pending(server) == 1
    assert server.ttl(protocol.generation_key(str(generation.pk))) == -1, (
        "a log that is not acknowledged may not expire"
    )

    monkeypatch.setattr(recorder, "TAKEOVER_IDLE_S", 0.0)
    assert recorder.Recorder(lambda: False).once(block_s=0.05) == 1
    assert (pending(server), server.xlen(protocol.FINISHED)) == (0, 0)
    assert Generation.objects.values("ended_at").get(pk=generation.pk)["ended_at"] == generation.ended_at


@pytest.mark.django_db(transaction=True)
def test_the_process_records_and_ends_in_order_on_sigterm(
    transactional_db: None, team: Team, worker: ScriptedWorker, server: redis.Redis
) -> None:
    generation = services.ask(access=team.member, text="Are you there?")
    worker.answer("Yes.")
    process = subprocess.Popen(
        [sys.executable, "manage.py", "recorder"], env=process_environment(), cwd=ROOT, stderr=subprocess.PIPE
    )
    try:
        give_up = time.monotonic() + 60
        while Message.objects.get(pk=generation.message_id).text != "Yes.":
            assert process.poll() is None, process.communicate()[1]
            assert time.monotonic() < give_up, "nothing was recorded"
            time.sleep(0.1)
        process.terminate()
        assert process.wait(20) == 0
    finally:
        process.kill()
        process.communicate()
    assert server.xlen(protocol.FINISHED) == 0


@pytest.mark.parametrize(
    ("event", "state", "status"),
    [
        (Cancelled(seq=3), State.CANCELLED, MessageStatus.STOPPED),
        (Failed(seq=3, code="step_failed", message="The step failed."), State.FAILED, MessageStatus.FAILED),
    ],
)
def test_what_a_stopped_or_failed_answer_had_said_is_kept(
    team: Team,
    worker: ScriptedWorker,
    record: Callable[[], int],
    event: protocol.AnyTerminal,
    state: State,
    status: MessageStatus,
) -> None:
    generation = services.ask(access=team.member, text="Count to ten.")
    taken = worker.begin("One, ", "two")
    worker.end(taken, event)
    record()
    generation.refresh_from_db()
    message = Message.objects.get(pk=generation.message_id)
    assert (generation.state, message.status, message.text) == (state, status, "One, two")
    assert generation.completion_tokens == 2, "what was generated counts, also where the end brings no usage"
    assert generation.error_code == (event.code or "")


def test_characters_that_postgresql_refuses_are_left_out(
    team: Team, worker: ScriptedWorker, record: Callable[[], int]
) -> None:
    generation = services.ask(access=team.member, text="Odd?")
    worker.answer("a\0b", "\0", "👋🏽")
    record()
    assert Message.objects.get(pk=generation.message_id).text == "ab👋🏽"


def test_an_entry_that_fails_five_times_goes_aside_and_blocks_nobody(
    team: Team, worker: ScriptedWorker, server: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = services.ask(access=team.member, text="Broken")
    worker.answer("x")
    server.xadd(protocol.generation_key(str(broken.pk)), {"event": "no JSON"})
    fine = services.ask(access=team.owner, text="Fine")
    worker.answer("Fine.")

    monkeypatch.setattr(recorder, "TAKEOVER_IDLE_S", 0.0)
    monkeypatch.setattr(recorder, "TAKEOVER_EVERY_S", 0.0)
    process = recorder.Recorder(lambda: False)
    process.once(block_s=0.05)
    fine.refresh_from_db()
    assert fine.state == State.FINISHED
    for attempt in range(2, 6):
        assert server.xlen(finished.ASIDE) == 0, f"aside before attempt {attempt}"
        process.once(block_s=0.05)
    aside: Any = server.xrange(finished.ASIDE)
    assert [fields[b"id"].decode() for _, fields in aside] == [str(broken.pk)]
    assert server.xlen(protocol.FINISHED) == 0


def test_a_database_that_is_away_loses_nothing(
    team: Team, worker: ScriptedWorker, server: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    generation = services.ask(access=team.member, text="Still there?")
    worker.answer("Still here.")
    monkeypatch.setattr(recorder, "TAKEOVER_IDLE_S", 0.0)
    monkeypatch.setattr(recorder, "TAKEOVER_EVERY_S", 0.0)
    monkeypatch.setattr(recorder, "BACKOFF_S", (0.01,))
    monkeypatch.setattr(recorder, "close_old_connections", lambda: None)  # this test's transaction lives in it
    monkeypatch.setattr(recorder.connection, "close", lambda: None)
    real, failures = recorder.write, iter(range(7))

    def away_seven_times(*args: Any, **kwargs: Any) -> bool:
        if next(failures, None) is not None:
            raise OperationalError("the server closed the connection")
        return real(*args, **kwargs)

    monkeypatch.setattr(recorder, "write", away_seven_times)
    give_up = time.monotonic() + 30
    recorder.Recorder(lambda: server.xlen(protocol.FINISHED) == 0 or time.monotonic() > give_up).run()
    generation.refresh_from_db()
    assert generation.state == State.FINISHED
    assert Message.objects.get(pk=generation.message_id).text == "Still here."
    assert server.xlen(finished.ASIDE) == 0


def test_a_generation_deleted_meanwhile_is_acknowledged(
    team: Team, worker: ScriptedWorker, record: Callable[[], int], server: redis.Redis
) -> None:
    generation = services.ask(access=team.member, text="Delete me")
    worker.answer("Gone.")
    generation.delete()
    record()
    assert server.xlen(protocol.FINISHED) == 0


def test_timing_is_kept(team: Team, worker: ScriptedWorker, record: Callable[[], int]) -> None:
    generation = services.complete(access=team.key, messages=[{"role": "user", "content": "Quick?"}])
    taken = worker.begin("Yes")
    timing = Timing(queue_s=0.5, prefill_s=0.25, decode_s=0.125)
    worker.end(taken, protocol.Finished(seq=2, finish_reason="stop", usage=Usage(completion_tokens=1), timing=timing))
    record()
    generation.refresh_from_db()
    assert generation.timing == {"queue_s": 0.5, "prefill_s": 0.25, "decode_s": 0.125}
