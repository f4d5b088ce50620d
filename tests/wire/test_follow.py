"""Following generations through the real log: nothing lost, nothing repeated, from any cursor."""

from __future__ import annotations

import asyncio
import gc
from contextlib import suppress
from typing import Any

import pytest

from chatapp.streaming import connection, finished, follow
from chatapp.streaming.follow import LogGone, follower
from engine import protocol
from engine.protocol import Cancelled, Finished, Started
from tests.wire.conftest import Wire, a_request, delta, until

pytestmark = pytest.mark.usefixtures("closing")


async def seqs(generation_id: str, after: int = -1) -> list[int]:
    return [event.seq async for event in follower().follow(generation_id, after)]


def answer(wire: Wire, generation_id: str, deltas: int, attempt: int = 1, worker: str = "w1") -> None:
    """Tell a whole answer of so many deltas."""
    wire.tell(generation_id, Started(seq=0, prompt_tokens=3, cached_tokens=0), attempt, worker)
    for seq in range(1, deltas + 1):
        wire.tell(generation_id, delta(seq), attempt, worker)
    assert wire.finish(generation_id, Finished(seq=deltas + 1), attempt, worker).outcome == "ok"


async def test_a_reader_that_starts_late_gets_everything(wire: Wire) -> None:
    generation = wire.running()
    answer(wire, generation, 5)
    assert await seqs(generation) == [0, 1, 2, 3, 4, 5, 6]


async def test_a_reader_that_starts_before_the_engine_gets_everything(wire: Wire) -> None:
    request = a_request()
    wire.enqueue(request)
    reading = asyncio.create_task(seqs(request.id))
    await asyncio.sleep(0.1)
    wire.beat()
    wire.take()
    await asyncio.to_thread(answer, wire, request.id, 5)
    assert await asyncio.wait_for(reading, 10) == [0, 1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("after", [-1, 0, 3, 5, 6, 7])
async def test_a_cursor_gives_exactly_what_comes_behind_it(wire: Wire, after: int) -> None:
    generation = wire.running()
    answer(wire, generation, 6)
    assert await seqs(generation, after) == list(range(after + 1, 8))


@pytest.mark.parametrize("after", [-1, 0, 2, 3])
async def test_numbering_and_cursor_go_on_across_attempts(wire: Wire, after: int) -> None:
    generation = wire.running()
    wire.tell(generation, Started(seq=0, prompt_tokens=3, cached_tokens=0))
    wire.tell(generation, delta(1))
    wire.tell(generation, delta(2))
    wire.silence("w1")
    wire.beat("w2")
    reading = asyncio.create_task(seqs(generation, after))
    await asyncio.sleep(0.05)
    assert wire.claim(generation, "w2").attempt == 2  # type: ignore[union-attr]
    wire.tell(generation, delta(3), attempt=2, worker="w2")
    wire.finish(generation, Finished(seq=4), attempt=2, worker="w2")
    assert await asyncio.wait_for(reading, 10) == list(range(after + 1, 5))


async def test_a_reader_that_joins_after_a_lost_tail_gets_what_is_said_again_beside_one_that_had_it(wire: Wire) -> None:
    """The process's reader stands behind what was lost; for the newcomer that must not be a hole."""
    generation = wire.running()
    wire.tell(generation, Started(seq=0, prompt_tokens=3, cached_tokens=0))
    wire.tell(generation, delta(1))
    keys = [protocol.generation_key(generation), protocol.request_key(generation)]
    dumps = [wire.redis.dump(key) for key in keys]
    first: list[int] = []
    second: list[int] = []

    async def read(into: list[int]) -> None:
        async for event in follower().follow(generation):
            into.append(event.seq)

    readings = [asyncio.create_task(read(first))]
    for seq in range(2, 7):
        wire.tell(generation, delta(seq))
    await until(lambda: first == list(range(7)))
    for key, dump in zip(keys, dumps, strict=True):
        wire.redis.restore(key, 0, dump, replace=True)
    readings.append(asyncio.create_task(read(second)))
    await until(lambda: second == [0, 1])
    await asyncio.sleep(0.1)
    for seq in range(2, 9):
        wire.tell(generation, delta(seq))
    wire.finish(generation, Finished(seq=9))
    await asyncio.wait_for(asyncio.gather(*readings), 10)
    assert first == second == list(range(10))


@pytest.mark.parametrize("after", [2, 3, 4, 9, 2**53])
async def test_a_cursor_ahead_of_the_log_gets_the_ending_and_takes_nothing_from_others(wire: Wire, after: int) -> None:
    """Redis has lost what it had read, or its reader is mistaken."""
    generation = wire.running()
    wire.tell(generation, Started(seq=0, prompt_tokens=3, cached_tokens=0))
    wire.tell(generation, delta(1))
    ahead = asyncio.create_task(seqs(generation, after))
    await asyncio.sleep(0.1)
    others = asyncio.create_task(seqs(generation))
    await asyncio.sleep(0.1)
    for seq in range(2, 6):
        wire.tell(generation, delta(seq))
    wire.finish(generation, Finished(seq=6))
    assert await asyncio.wait_for(others, 10) == list(range(7))
    assert await asyncio.wait_for(ahead, 10) == [*range(after + 1, 6), 6]


async def test_a_log_that_grows_while_its_end_is_looked_up_has_no_hole(
    wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a reconnection: the reader reads on between the question for the log's end and the answer."""
    generation = wire.running()
    wire.tell(generation, Started(seq=0, prompt_tokens=3, cached_tokens=0))
    seen: list[int] = []

    async def read() -> None:
        async for event in follower().follow(generation):
            seen.append(event.seq)

    reading = asyncio.create_task(read())
    await until(lambda: seen == [0])
    (reader,) = follower()._readers
    client = connection.async_redis()
    execute = type(client.pipeline()).execute

    async def execute_and_go_on(pipe: Any, *arguments: Any) -> Any:
        answer = await execute(pipe, *arguments)
        await asyncio.to_thread(wire.tell, generation, delta(1))
        await until(lambda: seen == [0, 1])
        return answer

    monkeypatch.setattr(follow, "HOLE_AFTER_S", 0.0)
    monkeypatch.setattr(type(client.pipeline()), "execute", execute_and_go_on)
    await reader._find_holes()
    monkeypatch.undo()
    wire.tell(generation, delta(2))
    assert wire.finish(generation, Finished(seq=3)).outcome == "ok"
    await asyncio.wait_for(reading, 10)
    assert seen == [0, 1, 2, 3]


async def test_first_events_are_never_lost_at_64_starts_at_once(wire: Wire) -> None:
    """P7: readers and engine start at the same moment; each reader sees its log from the first event on."""
    wire.beat()
    requests = [a_request(f"t{n % 7}") for n in range(64)]
    for request in requests:
        wire.enqueue(request)

    def engine() -> None:
        while taken := wire.take(room=64):
            answer(wire, taken.id, 4)

    readings = [asyncio.create_task(seqs(request.id)) for request in requests]
    await asyncio.gather(asyncio.to_thread(engine), *readings)
    assert [r.result() for r in readings] == [[0, 1, 2, 3, 4, 5]] * 64


async def test_more_logs_than_one_reader_holds_are_followed_by_several(wire: Wire) -> None:
    wire.beat()
    requests = [a_request() for _ in range(follow.LOGS_PER_READER + 40)]
    for request in requests:
        wire.enqueue(request)
    readings = [asyncio.create_task(seqs(request.id)) for request in requests]
    await until(lambda: sum(len(reader.logs) for reader in follower()._readers) == len(requests))
    assert len(follower()._readers) == 2
    assert max(len(reader.logs) for reader in follower()._readers) == follow.LOGS_PER_READER

    def engine() -> None:
        while taken := wire.take(room=1):
            answer(wire, taken.id, 1)

    await asyncio.gather(asyncio.to_thread(engine), *readings)
    assert all(reading.result() == [0, 1, 2] for reading in readings)
    assert not any(reader.logs for reader in follower()._readers)


async def test_many_followers_of_one_generation_each_get_all_of_it(wire: Wire) -> None:
    generation = wire.running()
    wire.tell(generation, Started(seq=0, prompt_tokens=3, cached_tokens=0))
    readings = []
    for seq in range(1, 20):
        readings.append(asyncio.create_task(seqs(generation, seq - 5)))
        await asyncio.sleep(0.002)
        wire.tell(generation, delta(seq))
    wire.finish(generation, Finished(seq=20))
    results = await asyncio.gather(*readings)
    assert results == [list(range(max(0, n - 3), 21)) for n in range(19)]


async def test_a_slow_follower_reads_from_the_log_what_its_queue_had_no_room_for(
    wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follow, "QUEUE", 4)
    monkeypatch.setattr(follow, "PAGE", 8)
    generation = wire.running()
    wire.tell(generation, Started(seq=0, prompt_tokens=3, cached_tokens=0))
    events = follower().follow(generation)
    assert (await anext(events)).seq == 0
    pending = asyncio.create_task(anext(events))  # it waits for its reader now
    await asyncio.sleep(0.1)
    await asyncio.to_thread(answer, wire, generation, 100)
    await asyncio.sleep(0.2)
    subscription = next(iter(next(iter(follower()._readers[0].logs.values())).subscriptions))
    assert len(subscription._items) <= 4
    assert [(await pending).seq, *[event.seq async for event in events]] == list(range(1, 102))


async def test_a_reader_whose_connection_dies_goes_on_without_loss_or_repetition(wire: Wire) -> None:
    generation = wire.running()
    wire.tell(generation, Started(seq=0, prompt_tokens=3, cached_tokens=0))
    reading = asyncio.create_task(seqs(generation))
    await asyncio.sleep(0.1)
    for seq in range(1, 41):
        wire.tell(generation, delta(seq))
        if seq % 10 == 0:
            wire.redis.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
            await asyncio.sleep(0.3)
    wire.finish(generation, Finished(seq=41))
    assert await asyncio.wait_for(reading, 20) == list(range(42))


async def test_a_log_that_lost_its_tail_ends_interrupted(wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follow, "HOLE_AFTER_S", 0.1)
    generation = wire.running()
    wire.tell(generation, Started(seq=0, prompt_tokens=3, cached_tokens=0))
    wire.tell(generation, delta(1))
    dump: Any = wire.redis.dump(protocol.generation_key(generation))
    events = follower().follow(generation)
    reading = asyncio.create_task(anext(events))
    await reading
    await anext(events)
    wire.tell(generation, delta(2))
    assert (await anext(events)).seq == 2
    # What a server that lost its last second gives back: the log and its cursor as they were before.
    wire.redis.restore(protocol.generation_key(generation), 0, dump, replace=True)
    wire.redis.hset(protocol.request_key(generation), "seq", 1)
    rest = asyncio.create_task(anext(events))
    await asyncio.sleep(0.1)
    wire.redis.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    event = await asyncio.wait_for(rest, 10)
    assert isinstance(event, protocol.Interrupted)
    assert event.code == "redis_restarted"
    with pytest.raises(StopAsyncIteration):
        await anext(events)


async def test_a_log_that_does_not_exist_is_said_to_be_gone(wire: Wire) -> None:
    with pytest.raises(LogGone):
        await seqs("nobody")


async def test_a_log_that_expired_is_said_to_be_gone(wire: Wire) -> None:
    generation = wire.running()
    answer(wire, generation, 2)
    (entry,) = finished.read("r", block_s=0.1)
    finished.ack(entry, ttl_s=1)
    assert await seqs(generation) == [0, 1, 2, 3]
    await asyncio.sleep(1.2)
    with pytest.raises(LogGone):
        await seqs(generation)
    assert not any(generation in key for key in wire.key_names())


async def test_a_follower_sees_the_end_of_what_is_cancelled_while_queued(wire: Wire) -> None:
    request = a_request()
    wire.enqueue(request)
    events = follower().follow(request.id)
    first = asyncio.create_task(anext(events))
    await asyncio.sleep(0.1)
    wire.cancel(request.id)
    assert isinstance(await asyncio.wait_for(first, 5), Cancelled)


async def test_200_cycles_of_following_leave_no_reader_connection_or_key(wire: Wire) -> None:
    """P8, this module's share of it."""
    generation = wire.running()
    wire.tell(generation, Started(seq=0, prompt_tokens=3, cached_tokens=0))
    await connection.async_redis().ping()
    clients = len(wire.redis.client_list())
    keys = {key for key in wire.key_names() if ":wake:" not in key}
    for _ in range(200):
        events = follower().follow(generation)
        assert (await anext(events)).seq == 0
        waiting = asyncio.create_task(anext(events))
        await asyncio.sleep(0.001)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        await events.aclose()  # type: ignore[attr-defined]
    await asyncio.sleep(0.3)
    gc.collect()
    assert not any(reader.logs for reader in follower()._readers)
    assert len(wire.redis.client_list()) <= clients + 2
    assert {key for key in wire.key_names() if ":wake:" not in key} == keys
    assert all(0 < wire.redis.ttl(key) <= follow.WAKE_TTL_S for key in wire.key_names() if ":wake:" in key)


async def test_a_reader_whose_cancellation_got_lost_stops_before_it_waits(
    wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python 3.11's wait_for swallows a cancellation that arrives just as it is done; redis-py sends with it."""
    request = a_request()
    wire.enqueue(request)
    page = follower()._page

    async def lost(*asked: Any) -> Any:
        found = await page(*asked)
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(0)
        return found

    monkeypatch.setattr(follower(), "_page", lost)
    reading = asyncio.create_task(seqs(request.id))
    done, _ = await asyncio.wait([reading], timeout=5)
    assert done, "it waits for ever"
    assert reading.cancelled()
