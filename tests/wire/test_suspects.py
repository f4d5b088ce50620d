"""Requests that workers die of: who is blamed, what runs alone, what is given up, and that no neighbour is."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import pytest

from chatapp.streaming import submit
from engine import protocol
from engine.protocol import Failed, Finished, Started, Taken
from tests.wire.conftest import MODEL, Process, Wire, a_question, answer_of, delta, tokens_of, until
from tests.wire.test_processes import Start

STARTED = Started(seq=0, prompt_tokens=9, cached_tokens=0)


def die(wire: Wire, worker: str) -> None:
    wire.silence(worker)


def pass_on(wire: Wire, generation: str, former: str, worker: str) -> Any:
    """The worker that has it dies, and another one claims it."""
    die(wire, former)
    wire.beat(worker)
    return wire.claim(generation, worker)


def crashes(wire: Wire, generation: str) -> int:
    value: Any = wire.redis.hget(protocol.request_key(generation), "crashes")
    return int(value or 0)


def solo(wire: Wire, worker: str) -> str:
    value: Any = wire.redis.hget(protocol.worker_key(worker), "solo")
    return value.decode() if value else ""


def dead(wire: Wire) -> list[dict[str, str]]:
    entries: Any = wire.redis.xrange(protocol.DEAD)
    return [{key.decode(): value.decode() for key, value in fields.items()} for _, fields in entries]


def suspect_of(wire: Wire) -> str:
    """A request that two workers have died of; w3 runs it, alone."""
    generation = wire.running()
    first = pass_on(wire, generation, "w1", "w2")
    assert isinstance(first, Taken)
    assert not first.alone, "once may have been anything"
    second = pass_on(wire, generation, "w2", "w3")
    assert isinstance(second, Taken)
    assert second.alone
    return generation


def test_what_two_workers_have_died_of_runs_alone_and_its_worker_takes_nothing_else(wire: Wire) -> None:
    generation = suspect_of(wire)
    other = a_question("u")
    wire.enqueue(other)
    assert wire.take("w3", room=9) is None
    assert wire.tell(generation, STARTED, attempt=3, worker="w3").outcome == "ok"
    assert wire.take("w3", room=9) is None, "its prompt is computed, and nothing is said yet"
    assert wire.tell(generation, delta(1), attempt=3, worker="w3").outcome == "ok"
    assert crashes(wire, generation) == 0
    assert wire.take("w3", room=9).id == other.id


def test_a_token_between_two_deaths_clears_of_suspicion(wire: Wire) -> None:
    generation = wire.running()
    worker = "w1"
    for attempt in range(1, 9):
        if attempt == 1:
            wire.tell(generation, STARTED, attempt, worker)
        assert wire.tell(generation, delta(attempt), attempt, worker).outcome == "ok"
        former, worker = worker, f"w{attempt + 1}"
        assert not pass_on(wire, generation, former, worker).alone
    assert crashes(wire, generation) == 1


def test_what_three_have_died_of_alone_is_given_up_and_written_down(wire: Wire) -> None:
    generation = suspect_of(wire)
    for former, worker in (("w3", "w4"), ("w4", "w5")):
        claimed = pass_on(wire, generation, former, worker)
        assert isinstance(claimed, Taken)
        assert claimed.alone
    assert pass_on(wire, generation, "w5", "w6") == "dead"
    last = wire.log(generation)[-1][1]
    assert isinstance(last, Failed)
    assert (last.code, last.retryable, last.seq) == ("poison", False, 0)
    assert last.message
    assert wire.finished() == [(generation, "failed")]
    assert dead(wire) == [{"id": generation, "tenant": "t", "model": MODEL, "worker": "w5", "attempts": "5"}]
    assert wire.orphans("w6") == []
    assert wire.take("w6", room=9) is None
    assert not [key for key in wire.key_names() if ":held:" in key or ":requests:" in key]


def test_nobody_else_is_blamed_for_what_a_worker_dies_of_while_it_runs_a_suspect(wire: Wire) -> None:
    """Whoever claims first: the suspect or its neighbours."""
    generation = suspect_of(wire)
    neighbours = []
    for n in range(3):
        neighbour = wire.running(f"u{n}")
        assert isinstance(pass_on(wire, neighbour, "w1", "w3"), Taken)
        neighbours.append(neighbour)
    worker = "w3"
    for death, successor in enumerate(("w4", "w5", "w6")):
        die(wire, worker)
        wire.beat(successor)
        order = [generation, *neighbours] if death % 2 else [*neighbours, generation]
        claimed = {one: wire.claim(one, successor) for one in order}
        assert claimed.pop(generation) == "dead" if death == 2 else claimed.pop(generation).alone
        assert not any(taken.alone for taken in claimed.values())
        worker = successor
    assert [crashes(wire, neighbour) for neighbour in neighbours] == [1, 1, 1], "that before the suspect was known"
    assert solo(wire, "w6") == ""


def test_of_two_suspects_a_worker_runs_one_and_leaves_the_other(wire: Wire) -> None:
    both = [wire.running(), wire.running("u")]
    for former, worker in (("w1", "w2"), ("w2", "w3")):
        die(wire, former)
        wire.beat(worker)
        claimed = [wire.claim(one, worker) for one in both]
    assert isinstance(claimed[0], Taken)
    assert claimed[1] == "busy"
    assert wire.orphans("w3") == [both[1]]
    assert crashes(wire, both[1]) == 1, "a claim that was refused has changed nothing"
    wire.finish(both[0], Finished(seq=0), 3, "w3")
    assert isinstance(wire.claim(both[1], "w3"), Taken)


@pytest.mark.parametrize("way", ["cancelled", "ended", "finished"])
def test_however_a_suspect_ends_its_worker_takes_again(wire: Wire, way: str) -> None:
    generation = suspect_of(wire)
    if way == "cancelled":
        assert wire.cancel(generation) == "cancelling"
        assert wire.finish(generation, protocol.Cancelled(seq=0), 3, "w3").outcome == "ok"
    elif way == "ended":
        wire.call(protocol.end(generation, protocol.TimedOut(code="deadline")))
    else:
        assert wire.finish(generation, Finished(seq=0), 3, "w3").outcome == "ok"
    assert solo(wire, "w3") == ""
    wire.enqueue(a_question("u"))
    assert wire.take("w3", room=9) is not None


def test_a_worker_that_wakes_up_without_its_suspect_takes_again(wire: Wire) -> None:
    generation = suspect_of(wire)
    assert isinstance(pass_on(wire, generation, "w3", "w4"), Taken)
    assert solo(wire, "w3") == generation
    wire.beat("w3")
    assert solo(wire, "w3") == ""
    wire.enqueue(a_question("u"))
    assert wire.take("w3", room=9) is not None


def test_a_worker_that_ends_in_order_has_died_of_nothing(wire: Wire) -> None:
    generation = wire.running()
    wire.tell(generation, STARTED)
    for attempt in range(2, 12):
        wire.call(protocol.retire(f"w{attempt - 1}"))
        wire.beat(f"w{attempt}")
        claimed = wire.claim(generation, f"w{attempt}")
        assert isinstance(claimed, Taken)
        assert not claimed.alone
    assert crashes(wire, generation) == 0


def test_what_a_worker_left_in_order_goes_on_though_redis_was_restarted_since(wire: Wire) -> None:
    """The server's file is a beginning of all that was done: with the goodbye, all that was said before is in it."""
    generation = wire.running()
    wire.tell(generation, STARTED)
    wire.tell(generation, delta(1))
    wire.redis.hset(protocol.request_key(generation), "run_id", "another")
    wire.call(protocol.retire("w1"))
    wire.beat("w2")
    assert isinstance(wire.claim(generation, "w2"), Taken)
    assert wire.tell(generation, delta(2), attempt=2, worker="w2").outcome == "ok"


@pytest.mark.parametrize("why", ["cancelled", "timeout"])
def test_what_is_to_end_anyway_is_ended_by_the_claim(wire: Wire, why: str) -> None:
    generation = wire.running()
    field, value = ("cancel", 1) if why == "cancelled" else ("deadline_ms", 1)
    wire.redis.hset(protocol.request_key(generation), field, value)
    assert pass_on(wire, generation, "w1", "w2") == "ended"
    assert wire.finished() == [(generation, why)]


@pytest.mark.long
@pytest.mark.usefixtures("closing")
async def test_a_request_that_kills_engines_takes_no_neighbour_along(wire: Wire, process: Start) -> None:
    """Real deaths: five, of which three alone; its neighbours' answers are those of an undisturbed engine."""
    command = [sys.executable, "-m", "tests.wire.poisoned_worker"]
    neighbours = [a_question(f"u{n}", tokens=400, text=f"Number {n}?") for n in range(4)]
    worker: Process = await process("--batch-invariant", command=command).ready()
    for one in neighbours:
        submit.enqueue(one)
    wanted = [tokens_of(await answer_of(one.id)) for one in neighbours]

    again = [a_question(f"u{n}", tokens=400, text=f"Number {n}?") for n in range(4)]
    for one in again:
        submit.enqueue(one)
    answers = [asyncio.create_task(answer_of(one.id)) for one in again]
    poison = a_question("p", text="POISON")
    submit.enqueue(poison)
    ending = asyncio.create_task(answer_of(poison.id))
    deaths = 0
    while not ending.done():
        await until(lambda dying=worker: dying.popen.poll() is not None or ending.done(), 60)  # type: ignore[misc]
        if worker.popen.poll() is not None:
            deaths += 1
            worker = await process("--batch-invariant", command=command).ready()
    last = (await ending)[-1]
    assert isinstance(last, Failed)
    assert last.code == "poison"
    assert deaths == 5
    for answer, tokens in zip(answers, wanted, strict=True):
        events = await asyncio.wait_for(answer, 60)
        assert isinstance(events[-1], Finished)
        assert tokens_of(events) == tokens
    assert [letter["id"] for letter in dead(wire)] == [poison.id]
