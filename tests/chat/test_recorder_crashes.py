"""A recorder killed at any point: each answer is written, counted and settled once, by whoever comes next."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable
from typing import Any

import pytest
import redis

from chatapp.chat import recorder, services
from chatapp.chat.models import Generation, Message, MessageStatus, State
from chatapp.limits.models import Meter, Reservation
from chatapp.streaming import finished
from chatapp.usage.models import UsageRow
from engine import protocol
from tests.chat.conftest import ScriptedWorker, Team, make_team

pytestmark = pytest.mark.django_db(transaction=True)


def die(*args: Any, **kwargs: Any) -> Any:
    os.kill(os.getpid(), signal.SIGKILL)


def dying_after(function: Callable[..., Any]) -> Callable[..., Any]:
    def done(*args: Any, **kwargs: Any) -> Any:
        function(*args, **kwargs)
        die()

    return done


# In the order in which a recorder comes by. `settle` and what follows it are inside of the transaction.
POINTS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "before it reads": lambda patch: patch.setattr(finished, "takeover", die),
    "with an entry in its hands": lambda patch: patch.setattr(recorder, "record", die),
    "in the transaction, before usage": lambda patch: patch.setattr(recorder, "record_usage", die),
    "in the transaction, before the reservation": lambda patch: patch.setattr(recorder.budget, "settle", die),
    "in the transaction, with all written": lambda patch: patch.setattr(recorder.ended, "send", die),
    "between commit and acknowledgement": lambda patch: patch.setattr(finished, "ack", die),
    "behind the acknowledgement": lambda patch: patch.setattr(finished, "ack", dying_after(finished.ack)),
}


@pytest.fixture
def team(transactional_db: None, server: redis.Redis) -> Team:
    return make_team("acme")


def crash(point: str) -> None:
    """A recorder in a process of its own, which kills itself there."""
    from django.db import connections

    child = os.fork()
    if child == 0:
        # Its own connections: the parent's are left as they are, and not closed either.
        kept = [connections["default"].connection]
        connections["default"].connection = None
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(recorder, "TAKEOVER_IDLE_S", 0.0)
            POINTS[point](patch)
            try:
                recorder.Recorder(lambda: False).once(block_s=0.2)
            finally:
                os._exit(len(kept))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL, f"it came by {point!r}"


def heal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder, "TAKEOVER_IDLE_S", 0.0)
    one = recorder.Recorder(lambda: False)
    while one.once(block_s=0.05):
        one._takeover_at = 0.0


def all_is_written_once(generations: list[Generation], server: redis.Redis) -> None:
    for number, generation in enumerate(generations):
        row = Generation.objects.get(pk=generation.pk)
        assert (row.state, row.completion_tokens, row.request) == (State.FINISHED, 2, None)
        message = Message.objects.get(pk=generation.message_id)
        assert (message.text, message.status) == (f"Answer {number}", MessageStatus.DONE)
        assert UsageRow.objects.filter(pk=generation.pk).count() == 1
        assert 0 < server.ttl(protocol.generation_key(str(generation.pk))) <= protocol.LOG_TTL_S
    assert not Reservation.objects.exists()
    tokens = len(generations) * (7 + 2)
    assert set(Meter.objects.values_list("reserved", "used")) == {(0, tokens)}, "settled once each"
    assert server.xlen(protocol.FINISHED) == 0


@pytest.mark.parametrize("point", POINTS)
def test_a_recorder_killed_anywhere_leaves_an_answer_that_the_next_one_writes_once(
    point: str, team: Team, worker: ScriptedWorker, server: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    generation = services.ask(access=team.member, text="Once?")
    worker.answer("Answer ", "0")
    crash(point)
    heal(monkeypatch)
    all_is_written_once([generation], server)


@pytest.mark.parametrize("seed", range(3))
def test_recorders_that_die_one_after_the_other_write_all_answers_once(
    seed: int, team: Team, worker: ScriptedWorker, server: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = random.Random(seed)
    generations = []
    for number in range(4):
        generations.append(services.ask(access=team.member, text="Once?"))
        worker.answer("Answer ", str(number))
        # Those that find nothing to do would not come by their point.
        crash(chosen.choice([*POINTS][:-1]))
    heal(monkeypatch)
    all_is_written_once(generations, server)
