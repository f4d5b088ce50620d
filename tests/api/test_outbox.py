"""The outbox by itself: what merges, what waits, what is dropped."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from chatapp.api import frames, outbox
from chatapp.api.outbox import Outbox, Overflow


class Client:
    """Reads only when it is told to."""

    def __init__(self) -> None:
        self.read: list[dict[str, Any]] = []
        self.closed: int | None = None
        self.may_read = asyncio.Event()
        self.outbox = Outbox(self._send, self._close)
        self._task = asyncio.create_task(self.outbox.run())

    async def _send(self, text: str) -> None:
        await self.may_read.wait()
        self.read.append(json.loads(text))

    async def _close(self, code: int) -> None:
        self.closed = code

    async def all(self) -> list[dict[str, Any]]:
        self.may_read.set()
        self.outbox.close(1000)
        await self._task
        return self.read


def texts(read: list[dict[str, Any]], response: str) -> list[tuple[int, int, str]]:
    return [(f["first_seq"], f["seq"], f["delta"]) for f in read if f.get("response_id") == response and "delta" in f]


async def test_deltas_of_one_response_merge_while_the_client_does_not_read() -> None:
    client = Client()
    for seq in range(1, 101):
        await client.outbox.put_delta("a", seq, seq, [(0, f"{seq} ")])
        await client.outbox.put_delta("b", seq, seq, [(0, "x")])
        if seq % 10 == 0:
            await asyncio.sleep(0)
    read = await client.all()
    for response, text in (("a", "".join(f"{seq} " for seq in range(1, 101))), ("b", "x" * 100)):
        told = texts(read, response)
        assert "".join(delta for _, _, delta in told) == text
        assert [first for first, _, _ in told] == [1, *(seq + 1 for _, seq, _ in told[:-1])]
        assert len(told) <= 3
    assert client.closed == 1000


async def test_only_what_follows_on_is_merged() -> None:
    """A response told from another place, as after a resume, is not glued to what waits."""
    client = Client()
    await client.outbox.put_delta("a", 10, 12, [(0, "late")])
    await client.outbox.put_delta("a", 1, 1, [(0, "early")])
    await client.outbox.put_delta("a", 2, 2, [(0, " on")])
    assert texts(await client.all(), "a") == [(10, 12, "late"), (1, 2, "early on")]


async def test_what_is_forgotten_is_not_sent_and_makes_room() -> None:
    client = Client()
    client.outbox.put(frames.Pong(event_id="first"))
    await asyncio.sleep(0)
    await client.outbox.put_delta("a", 1, 1, [(0, "x" * outbox.ROOM_CHARS)])
    waiting = asyncio.create_task(client.outbox.put_delta("b", 1, 1, [(0, "waits")]))
    await asyncio.sleep(0.01)
    assert not waiting.done(), "there is no room"
    client.outbox.forget("a")
    await asyncio.wait_for(waiting, 1)
    await client.outbox.put_delta("a", 5, 5, [(0, "anew")])
    read = await client.all()
    assert texts(read, "a") == [(5, 5, "anew")]
    assert texts(read, "b") == [(1, 1, "waits")]


async def test_a_client_that_only_asks_overflows() -> None:
    client = Client()
    for _ in range(outbox.ROOM_FRAMES):
        client.outbox.put(frames.Pong())
    with pytest.raises(Overflow):
        client.outbox.put(frames.Pong())
    client.outbox.close(4429)
    client.may_read.set()
    read = await client.all()
    assert len(read) <= outbox.ROOM_FRAMES + 1
    assert client.closed == 4429
