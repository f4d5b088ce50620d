"""Octavo, the client for threads, against the same server."""

from __future__ import annotations

import asyncio
import gc
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from octavo_client import ClientClosed, Octavo, TextDelta

from tests.chat.conftest import Team
from tests.clients.conftest import Engine, Proxy

pytestmark = pytest.mark.django_db(transaction=True)


def client(proxy: Proxy, team: Team) -> Octavo:
    return Octavo(f"http://127.0.0.1:{proxy.port}", api_key=team.secret)


async def test_threads_share_a_client_and_each_gets_its_own_answer_through_cuts(
    proxy: Proxy, team: Team, engine: Engine
) -> None:
    questions = [f"Question {n}" for n in range(6)]

    def ask(octavo: Octavo, question: str) -> tuple[str, str]:
        with octavo.stream(question) as stream:
            text = "".join(stream.texts())
        assert stream.response_id is not None
        return stream.response_id, text

    loop = asyncio.get_running_loop()
    octavo = await asyncio.to_thread(client(proxy, team).__enter__)
    with ThreadPoolExecutor(6) as pool:
        asked = [loop.run_in_executor(pool, ask, octavo, question) for question in questions]
        taken = [await engine.begin(f"{n}a") for n in range(6)]
        proxy.cut()
        for n, one in enumerate(taken):
            await engine.say(one, 2, f"{n}b")
            await engine.end(one, 3)
        found = dict(await asyncio.gather(*asked))
    assert found == {one.id: f"{n}a{n}b" for n, one in enumerate(taken)}
    await asyncio.to_thread(octavo.close)
    with pytest.raises(ClientClosed):
        octavo.ask("More?")


async def test_a_conversation_goes_on_and_leaving_a_stream_stops_its_answer(
    proxy: Proxy, team: Team, engine: Engine
) -> None:
    octavo = await asyncio.to_thread(client(proxy, team).__enter__)
    chat = octavo.conversation()
    asked = asyncio.create_task(asyncio.to_thread(chat.ask, "Hi"))
    await engine.answer("Hello")
    assert await asked == "Hello"

    def leave() -> str:
        for event in chat.stream("And?"):
            if isinstance(event, TextDelta):
                return event.delta
        return ""

    def hear() -> list[str]:
        with octavo.subscribe("usage") as changes:
            return [type(next(changes)).__name__]

    assert await asyncio.to_thread(hear) == ["Subscribed"]
    left = asyncio.create_task(asyncio.to_thread(leave))
    taken = await engine.begin("a")
    assert await left == "a"
    assert await engine.cancelled(taken)
    await asyncio.to_thread(octavo.close)


async def test_an_interrupt_cancels_what_its_caller_waits_for_and_nothing_else(
    proxy: Proxy, team: Team, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    octavo = await asyncio.to_thread(client(proxy, team).__enter__)
    calls = 0
    real = __import__("concurrent.futures").futures.wait
    begun = threading.Event()

    def wait(*arguments: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if begun.wait(10) and threading.current_thread().name == "interrupted":
            raise KeyboardInterrupt
        return real(*arguments, **options)

    monkeypatch.setattr("octavo_client.sync.concurrent.futures.wait", wait)
    raised: list[BaseException] = []

    def ask() -> None:
        try:
            octavo.ask("Hi")
        except KeyboardInterrupt as interrupt:
            raised.append(interrupt)

    thread = threading.Thread(target=ask, name="interrupted")
    thread.start()
    taken = await engine.begin("a")
    begun.set()
    await asyncio.to_thread(thread.join)
    assert len(raised) == 1
    assert await engine.cancelled(taken)
    asked = asyncio.create_task(asyncio.to_thread(octavo.ask, "Still there?"))
    await engine.answer("Yes")
    assert await asked == "Yes"
    await asyncio.to_thread(octavo.close)


async def test_a_client_that_nobody_holds_leaves_no_thread(proxy: Proxy, team: Team) -> None:
    before = {thread for thread in threading.enumerate() if thread.name == "octavo-client"}
    octavo = await asyncio.to_thread(client(proxy, team).__enter__)
    (thread,) = {thread for thread in threading.enumerate() if thread.name == "octavo-client"} - before
    del octavo
    gc.collect()
    await asyncio.to_thread(thread.join, 5)
    assert not thread.is_alive()
