"""Workers that are told to take nothing new: by the functions alone, in one process, and with real ones."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from chatapp.streaming import submit, workers
from chatapp.streaming.draining import drain
from engine import protocol
from engine.protocol import Claimed, Finished, WorkerDetails
from tests.wire.conftest import InProcess, Process, Wire, a_question, a_request, answer_of, until
from tests.wire.test_worker import first_tokens

pytestmark = pytest.mark.usefixtures("closing")


def the(worker: str) -> WorkerDetails:
    return next(found for found in workers.live() if found.id == worker)


def answerer(wire: Wire, generation_id: str) -> str:
    """Who took it; nobody took it from anybody."""
    (claimed,) = (event for _, event in wire.log(generation_id) if isinstance(event, Claimed))
    return claimed.worker


# --- the functions ------------------------------------------------------------------------------------------------


def test_a_drained_worker_is_given_nothing_before_it_has_even_heard_of_it(wire: Wire) -> None:
    wire.beat("w1")
    wire.beat("w2")
    assert drain("w1") == "draining"
    assert drain("w1") == "draining", "safe to repeat"
    first, second = a_request(), a_request()
    wire.enqueue(first)
    wire.enqueue(second)
    assert wire.take("w1") is None
    assert wire.take("w2").id == first.id, "the others are not concerned"
    assert drain("w1", on=False) == "taking"
    assert wire.take("w1").id == second.id


def test_what_a_drained_worker_has_goes_on_and_ends(wire: Wire) -> None:
    running = wire.running()
    drain("w1")
    assert wire.tell(running, protocol.Started(seq=0, prompt_tokens=3, cached_tokens=0)).outcome == "ok"
    assert wire.beat("w1") == {running: "run"}
    assert wire.finish(running, Finished(seq=1, finish_reason="stop")).outcome == "ok"


def test_a_worker_that_is_not_there_cannot_be_drained_and_nothing_is_left_of_the_wish(wire: Wire) -> None:
    before = wire.key_names()
    assert drain("w9") == "gone"
    assert drain("w9", on=False) == "gone"
    assert wire.key_names() == before
    wire.beat("w1")
    wire.silence("w1")
    assert drain("w1") == "gone"


def test_the_wish_goes_with_its_worker(wire: Wire) -> None:
    wire.beat("w1")
    drain("w1")
    wire.call(protocol.retire("w1"))
    assert not wire.redis.exists(protocol.worker_key("w1"))


def test_a_worker_that_goes_without_a_word_is_noted_and_one_that_says_goodbye_is_not(wire: Wire) -> None:
    for worker in ("polite", "killed", "alive"):
        wire.beat(worker)
    wire.call(protocol.retire("polite"))
    wire.silence("killed", 61_000)
    wire.orphans("alive")
    entries: Any = wire.redis.xrange(protocol.VANISHED)
    assert [fields[b"worker"] for _, fields in entries] == [b"killed"]
    assert entries[0][1][b"model"] == b"m"
    now = wire.redis.time()[0]
    assert 60 <= now - int(entries[0][1][b"beat_ms"]) / 1000 <= 65
    wire.orphans("alive")
    assert wire.redis.xlen(protocol.VANISHED) == 1, "once"


# --- workers ------------------------------------------------------------------------------------------------------


async def test_a_drained_worker_finishes_what_runs_takes_nothing_new_and_stays(
    wire: Wire, serve: Callable[..., InProcess]
) -> None:
    served = serve()
    running, waiting = a_question(tokens=1500), a_question(tokens=4)
    submit.enqueue(running)
    await first_tokens(running.id)
    assert drain(served.worker.id) == "draining"
    submit.enqueue(waiting)
    details = await until(lambda: (found := the(served.worker.id)).draining and found)
    assert (details.healthy, details.stopping) == (True, False)
    assert isinstance((await answer_of(running.id))[-1], Finished)
    await until(lambda: the(served.worker.id).running == 0)
    assert wire.state(waiting.id) == "queued"
    drain(served.worker.id, on=False)
    assert isinstance((await answer_of(waiting.id))[-1], Finished), "and takes again by itself"
    await until(lambda: not the(served.worker.id).draining)


async def test_a_wish_whose_hint_is_lost_is_found_with_the_next_heartbeat(
    wire: Wire, serve: Callable[..., InProcess]
) -> None:
    served = serve()
    await until(workers.live)
    wire.redis.hset(protocol.worker_key(served.worker.id), protocol.DRAIN, "1")
    await until(lambda: the(served.worker.id).draining, within_s=5)


async def test_a_drained_worker_that_is_stopped_ends_at_once(wire: Wire, serve: Callable[..., InProcess]) -> None:
    served = serve(grace_s=20)
    await until(workers.live)
    drain(served.worker.id)
    await until(lambda: the(served.worker.id).draining)
    assert await asyncio.to_thread(served.stop) == 0
    assert workers.live() == []


@pytest.mark.long
async def test_of_two_workers_the_one_that_drains_keeps_its_answer_and_the_other_gets_all_the_rest(
    wire: Wire, process: Callable[..., Process]
) -> None:
    started = [process("--name", name) for name in ("one", "two")]
    for worker in started:
        await worker.ready()
    long = a_question(tokens=3000)
    submit.enqueue(long)
    await first_tokens(long.id)
    owner = answerer(wire, long.id)
    other = next(found.id for found in workers.live() if found.id != owner)
    assert drain(owner) == "draining"
    for _ in range(6):
        asked = a_question(tokens=2)
        submit.enqueue(asked)
        assert isinstance((await answer_of(asked.id))[-1], Finished)
        assert answerer(wire, asked.id) == other
    assert the(owner).draining
    assert wire.state(long.id) in ("running", "finished")
    assert isinstance((await answer_of(long.id))[-1], Finished), "no answer is cut by draining"
    # The other one drains instead: what is asked goes to the first again.
    drain(other)
    drain(owner, on=False)
    asked = a_question(tokens=2)
    submit.enqueue(asked)
    assert isinstance((await answer_of(asked.id))[-1], Finished)
    assert answerer(wire, asked.id) == owner
    for worker in started:
        worker.popen.terminate()
        status, said = await asyncio.to_thread(worker.end)
        assert status == 0, said
