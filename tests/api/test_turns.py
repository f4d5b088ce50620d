"""Callers get a web process's few threads in turn: a flood of calls of one team makes no other wait for all of it."""

from __future__ import annotations

import asyncio
import threading
import time
import uuid
from collections import Counter
from types import SimpleNamespace

from hypothesis import given
from hypothesis import strategies as st

from chatapp import scope
from chatapp.api.answering import in_thread
from chatapp.api.turns import THREADS, Turns, asked_by

FLOOD = 20 * THREADS


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


@given(
    room=st.integers(1, 4),
    asked=st.lists(st.sampled_from("abc"), min_size=1, max_size=40),
    given_up=st.sets(st.integers(0, 39)),
    data=st.data(),
)
def test_nobody_waits_for_more_than_one_call_of_each_other_caller_and_no_turn_is_lost(
    room: int, asked: list[str], given_up: set[int], data: st.DataObject
) -> None:
    async def all_of_them() -> None:
        turns = Turns(room)
        running: list[tuple[str, asyncio.Event]] = []
        waiting = Counter[str]()
        passed: dict[str, list[str]] = {}

        async def call(who: str) -> None:
            waiting[who] += 1
            try:
                async with turns.turn(who):
                    waiting[who] -= 1
                    since = passed.pop(who, [])
                    assert all(times <= 1 for times in Counter(since).values()), f"{since} went before {who}"
                    for other in waiting:
                        if waiting[other] and other != who:
                            passed.setdefault(other, []).append(who)
                    done = asyncio.Event()
                    running.append((who, done))
                    assert len(running) <= room
                    await done.wait()
            except asyncio.CancelledError:
                waiting[who] -= 1
                passed.pop(who, None)
                raise

        tasks = [asyncio.create_task(call(who)) for who in asked]
        await settle()
        for number, task in enumerate(tasks):
            if number in given_up and number >= room:
                task.cancel()
        await settle()
        while running:
            _, done = running.pop(data.draw(st.integers(0, len(running) - 1)))
            done.set()
            await settle()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
        wrong = [one for one in ended if one is not None and not isinstance(one, asyncio.CancelledError)]
        assert not wrong, wrong
        async with asyncio.timeout(1), asyncio.TaskGroup() as group:
            together = asyncio.Barrier(room)
            for _ in range(room):
                group.create_task(meet(turns, together))  # all of the room is there again

    asyncio.run(all_of_them())


async def meet(turns: Turns, together: asyncio.Barrier) -> None:
    async with turns.turn("again"):
        await together.wait()


async def test_a_call_that_is_given_up_as_its_turn_comes_hands_it_on() -> None:
    turns = Turns(1)
    first = turns.turn("a")
    await first.__aenter__()
    given_up, next_one = (asyncio.create_task(meet(turns, asyncio.Barrier(1))) for _ in range(2))
    await settle()
    await first.__aexit__(None, None, None)  # its turn has come, and it has not run yet
    given_up.cancel()
    await asyncio.wait_for(next_one, 1)
    assert given_up.cancelled()


async def test_a_teams_call_is_made_before_the_flood_of_another_that_came_first() -> None:
    order: list[str] = []
    go = threading.Event()

    def work(name: str) -> None:
        go.wait(10)
        order.append(name)
        time.sleep(0.001)

    async def called(name: str) -> None:
        with scope.no_scope():
            scope.enter(SimpleNamespace(pk=uuid.uuid5(uuid.NAMESPACE_OID, name)))
            await in_thread(work, name)

    flood = [asyncio.create_task(called("flood")) for _ in range(FLOOD)]
    await settle()
    other = [asyncio.create_task(called("other")) for _ in range(3)]
    await settle()
    go.set()
    await asyncio.gather(*flood, *other)
    last = max(place for place, name in enumerate(order) if name == "other")
    assert last < 3 * THREADS, f"the other's third call was number {last + 1} of {len(order)}"


async def test_before_a_team_is_known_each_credential_has_its_turn() -> None:
    order: list[str] = []
    go = threading.Event()

    def work(name: str) -> None:
        go.wait(10)
        order.append(name)

    async def called(name: str) -> None:
        with scope.no_scope():
            asked_by(f"key of {name}")
            await in_thread(work, name)

    flood = [asyncio.create_task(called("flood")) for _ in range(FLOOD)]
    await settle()
    other = asyncio.create_task(called("other"))
    await settle()
    go.set()
    await asyncio.gather(*flood, other)
    assert order.index("other") < 3 * THREADS
