"""What the queues of all tenants together may hold, and how much of Redis: on a real server, up to its very bound."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import Mock

import pytest
import redis

from chatapp.errors import Overloaded
from chatapp.streaming import submit
from engine import bus, protocol
from engine.protocol import Finished
from tests.wire.conftest import MODEL, Wire, a_question, a_request, answer_of, delta, until

LOOK_S = 0.25  # a look at the memory counts for 0.2 s


@pytest.fixture(autouse=True)
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """What one test saw of the memory is nothing to the next one."""
    monkeypatch.setattr(submit, "_short_until", 0.0)


@pytest.fixture
def limited(wire: Wire) -> Iterator[Callable[[float], None]]:
    """Sets maxmemory so that so much of it is used (0: no bound); whatever a test filled is freed after it."""

    def limit(used: float) -> None:
        info = wire.redis.info("memory")
        size = int((info["used_memory"] - info["mem_not_counted_for_evict"]) / used) if used else 0
        wire.redis.config_set("maxmemory", size)

    yield limit
    wire.redis.config_set("maxmemory", 0)
    wire.redis.flushall()


def filled(wire: Wire) -> int:
    """Others' keys, up to where Redis takes no more; how many."""
    for number in range(100_000):
        try:
            wire.redis.set(f"filler:{number}", b"x" * 4096)
        except redis.exceptions.OutOfMemoryError:
            return number
    raise AssertionError("Redis is not full")


def queued(wire: Wire, tenant: str, count: int, **bounds: int) -> list[str]:
    return [wire.enqueue(a_request(tenant), **bounds).outcome for _ in range(count)]


# --- all queues together --------------------------------------------------------------------------------------------


def test_what_all_tenants_have_is_bounded_and_says_that_it_is_nobody_s_own_fault(wire: Wire) -> None:
    assert queued(wire, "flood", 8, max_in_all=8) == ["ok"] * 8
    assert wire.enqueue(a_request("flood"), max_in_all=8) == protocol.Enqueued("overloaded", "queue", 8)
    assert wire.enqueue(a_request("flood"), max_in_all=8, max_queued=8).outcome == "full", "its own bound goes first"


def test_a_flood_leaves_room_for_those_who_have_little_and_even_that_room_ends(wire: Wire) -> None:
    """Eight in all and a quarter more for newcomers; who has four waiting is none."""
    queued(wire, "flood", 8, max_in_all=8)
    assert queued(wire, "small", 3, max_in_all=8) == ["ok", "ok", "overloaded"]
    wire.redis.flushall()
    queued(wire, "flood", 40, max_in_all=40)
    assert queued(wire, "other", 6, max_in_all=40) == ["ok"] * 4 + ["overloaded"] * 2
    assert queued(wire, "third", 1, max_in_all=40) == ["ok"]


def test_bytes_of_all_tenants_are_bounded_too(wire: Wire) -> None:
    size = len(protocol.encode(a_request("t", id="g0000")))
    assert queued(wire, "a", 4, max_bytes_in_all=6 * size) == ["ok"] * 4
    assert queued(wire, "b", 4, max_bytes_in_all=6 * size)[:2] == ["ok"] * 2
    assert queued(wire, "a", 1, max_bytes_in_all=6 * size) == ["overloaded"]


def test_room_comes_back_however_a_request_ends(wire: Wire) -> None:
    requests = [a_request(f"t{i}") for i in range(4)]
    wire.beat()
    for request in requests:
        assert wire.enqueue(request, max_in_all=4).outcome == "ok"
    taken = [wire.take() for _ in range(2)]
    late = [wire.enqueue(a_request("flood"), max_in_all=4).outcome for _ in range(3)]
    assert late == ["ok", "overloaded", "overloaded"], "what runs counts as well"
    wire.finish(taken[0].id, Finished(seq=0))
    wire.cancel(taken[1].id)
    wire.call(protocol.end(taken[1].id, protocol.TimedOut()))
    for request in requests[2:]:
        wire.cancel(request.id)
    while (rest := wire.take()) is not None:
        wire.finish(rest.id, Finished(seq=0))
    assert protocol.queued_bytes_key(MODEL) not in wire.key_names(), "nothing is left of the sums"
    assert queued(wire, "flood", 4, max_in_all=4) == ["ok"] * 4


def test_a_request_that_is_known_already_is_no_new_one(wire: Wire) -> None:
    request = a_request()
    wire.enqueue(request)
    assert wire.enqueue(request, max_in_all=0).outcome == "known"


# --- Redis's memory -------------------------------------------------------------------------------------------------


async def test_new_requests_are_refused_before_redis_is_full_and_taken_again_after(
    wire: Wire, limited: Callable[[float], None]
) -> None:
    limited(0.5)
    running = wire.running()
    limited(0.9)
    await asyncio.sleep(LOOK_S)
    refused = wire.enqueue(a_request())
    assert (refused.outcome, refused.state) == ("overloaded", "memory")
    assert 85 <= refused.position <= 95, "in percent"
    assert wire.enqueue(a_request(id=running)).outcome == "known"
    assert wire.tell(running, protocol.Started(seq=0, prompt_tokens=1, cached_tokens=0)).outcome == "ok", (
        "what runs has the rest"
    )
    assert wire.tell(running, delta(1)).outcome == "ok"
    assert wire.finish(running, Finished(seq=2)).outcome == "ok"
    limited(0.5)
    await asyncio.sleep(LOOK_S)
    assert wire.enqueue(a_request()).outcome == "ok"


async def test_logs_of_recorded_answers_make_room_as_memory_gets_short(
    wire: Wire, limited: Callable[[float], None]
) -> None:
    def kept(used: float) -> int:
        """For how long a log that is recorded now lives, with so much of the memory used."""
        limited(used)
        generation = wire.running()
        wire.finish(generation, Finished(seq=0))
        entry = wire.redis.xrevrange(protocol.FINISHED, count=1)[0][0].decode()
        time.sleep(LOOK_S)
        wire.call(protocol.recorded(entry, generation))
        ttl = wire.redis.ttl(protocol.generation_key(generation))
        assert wire.redis.ttl(protocol.request_key(generation)) == ttl
        return int(ttl)

    wire.redis.xgroup_create(protocol.FINISHED, protocol.RECORDER_GROUP, mkstream=True)
    assert kept(0) > 3590, "an hour where there is no bound"
    assert kept(0.3) > 3590
    assert 1000 < kept(0.6) < 3000
    assert 50 <= kept(0.8) <= 60


def test_a_full_redis_refuses_what_is_new_in_words_and_ends_what_is_there(
    wire: Wire, limited: Callable[[float], None]
) -> None:
    """At the very bound, where Redis refuses every write: a process that starts now has to get by as well."""
    from chatapp.streaming import connection

    queued_id, running = a_request().id, wire.running("u")
    wire.enqueue(a_request(id=queued_id))
    limited(0.98)
    filler = filled(wire)
    time.sleep(LOOK_S)
    connection._loaded.clear()
    with pytest.raises(Overloaded) as refused:
        submit.enqueue(a_request())
    assert refused.value.status == 503
    assert 5 <= (refused.value.retry_after_s or 0) < 15
    with pytest.raises(Overloaded):
        submit.check_room()
    assert wire.cancel(queued_id) == "cancelled"
    assert wire.finish(running, Finished(seq=0)).outcome == "ok"
    wire.beat()
    for number in range(filler):
        wire.redis.delete(f"filler:{number}")
    limited(0.5)
    time.sleep(LOOK_S)
    assert submit.enqueue(a_request()) == 1


# --- no worker ------------------------------------------------------------------------------------------------------


async def test_an_engine_whose_words_a_full_redis_refuses_says_that_once_and_all_of_them_later(
    wire: Wire, serve: Callable[..., Any], limited: Callable[[float], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It tries many times a second: as many lines would push all others out of its log."""
    told = Mock()
    monkeypatch.setattr(bus, "log", told)
    served = serve()
    question = a_question(tokens=1000)
    submit.enqueue(question)
    await until(lambda: wire.redis.xlen(protocol.generation_key(question.id)) > 5)
    limited(1.2)
    await asyncio.sleep(2.0)
    limited(0)
    events = await answer_of(question.id)
    assert isinstance(events[-1], Finished)
    assert served.stop() == 0
    losses = [call.kwargs["error"] for call in told.warning.call_args_list if call.args == ("redis.lost",)]
    assert losses == [losses[0]], f"{len(losses)} times"
    assert "maxmemory" in losses[0]
    assert [call.args for call in told.info.call_args_list].count(("redis.connected",)) == 1
    (alone,) = served.engine.generate([question.messages], question.params)
    assert (
        "".join(part.text for event in events if isinstance(event, protocol.Delta) for part in event.parts)
        == alone.text
    )


def test_a_model_without_an_engine_takes_questions_for_a_while_and_then_says_so(wire: Wire) -> None:
    def ask(model: str = MODEL) -> protocol.Enqueued:
        return wire.enqueue(a_request(model=model), max_unserved_s=60)

    def pass_by(seconds: int) -> None:
        """As if nobody had asked, and no worker had beaten, for so long."""
        wire.redis.decrby(protocol.unserved_key(MODEL), seconds * 1000)
        time.sleep(1.1)  # a look at the workers counts for a second

    assert ask().outcome == "ok", "an engine that restarts is back by then"
    pass_by(50)
    assert ask().outcome == "ok"
    pass_by(15)
    refused = ask()
    assert (refused.outcome, refused.state) == ("overloaded", "no_worker")
    assert refused.position >= 65
    wire.beat(model="another")
    time.sleep(1.1)
    assert ask().outcome == "overloaded", "a worker of another model is of no use"
    wire.beat()
    time.sleep(1.1)
    assert ask().outcome == "ok"
    assert protocol.unserved_key(MODEL) not in wire.key_names()


def test_a_worker_s_last_beat_counts_where_it_is_known(wire: Wire) -> None:
    wire.redis.set(protocol.unserved_key(MODEL), 1)
    wire.beat()
    wire.silence(for_ms=30_000)
    assert wire.enqueue(a_request(), max_unserved_s=60).outcome == "ok"
    wire.silence(for_ms=40_000)
    time.sleep(1.1)
    assert wire.enqueue(a_request(), max_unserved_s=60).state == "no_worker"


def test_submissions_say_which_model_has_no_engine(wire: Wire, settings: object) -> None:
    settings.OCTAVO_UNSERVED_S = 60  # type: ignore[attr-defined]
    wire.redis.set(protocol.unserved_key(MODEL), 1)
    with pytest.raises(Overloaded, match="No engine has been running for the model m for") as refused:
        submit.enqueue(a_request())
    assert refused.value.code == "no_engine"
