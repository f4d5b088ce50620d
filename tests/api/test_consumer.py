"""The life of a socket where the running product cannot be made to show it: faults, and its last day."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest
from channels.testing import WebsocketCommunicator
from django.db import OperationalError

from chatapp.api import consumers, frames
from chatapp.chat import selectors
from chatapp.tenants.access import Access
from chatapp.tenants.models import Tenant
from engine import protocol

# Channels closes old database connections before every frame.
pytestmark = pytest.mark.django_db


async def opened() -> WebsocketCommunicator:
    socket = WebsocketCommunicator(consumers.ApiConsumer.as_asgi(), "/ws/v1")
    accepted, _ = await socket.connect()
    assert accepted
    return socket


async def read(socket: WebsocketCommunicator) -> dict[str, Any]:
    return json.loads(await socket.receive_from(timeout=5))


async def let_in(self: Any) -> Access:
    return Access(tenant=Tenant())


async def test_a_database_that_is_away_closes_the_socket_with_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fails(self: Any) -> Access:
        raise OperationalError("gone")

    monkeypatch.setattr(consumers.ApiConsumer, "let_in", fails)
    socket = await opened()
    error = await read(socket)
    assert (error["type"], error["code"], error["retryable"]) == ("error", "unavailable", True)
    assert await socket.receive_output(5) == {"type": "websocket.close", "code": frames.CLOSE_INTERNAL}
    await socket.disconnect()


async def test_a_socket_says_when_its_time_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumers.ApiConsumer, "let_in", let_in)
    monkeypatch.setattr(consumers, "LIFETIME_S", 0.4)
    monkeypatch.setattr(consumers, "EXPIRING_S", 0.2)
    socket = await opened()
    assert (await read(socket))["type"] == "session.created"
    assert (await read(socket))["type"] == "session.expiring"
    assert await socket.receive_output(5) == {"type": "websocket.close", "code": frames.CLOSE_GOING_AWAY}
    await socket.disconnect()


async def test_a_socket_whose_frames_cannot_be_sent_does_not_stay_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumers.ApiConsumer, "let_in", let_in)
    socket = await opened()
    assert (await read(socket))["type"] == "session.created"

    def breaks(frame: Any) -> str:
        raise UnicodeEncodeError("utf-8", "x", 0, 1, "a lone surrogate")

    monkeypatch.setattr("chatapp.api.outbox.render", breaks)
    await socket.send_to(text_data='{"type":"ping"}')
    assert await socket.receive_output(5) == {"type": "websocket.close", "code": frames.CLOSE_INTERNAL}
    await socket.disconnect()


async def test_more_frames_than_can_be_worked_on_are_refused_and_ping_still_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(consumers.ApiConsumer, "let_in", let_in)
    monkeypatch.setattr(consumers, "MOST_TASKS", 0)
    socket = await opened()
    assert (await read(socket))["type"] == "session.created"
    await socket.send_to(text_data='{"type":"response.cancel","response_id":"x","event_id":"1"}')
    error = await read(socket)
    assert (error["code"], error["event_id"], error["retryable"]) == ("too_many_requests", "1", True)
    await socket.send_to(text_data='{"type":"ping"}')
    assert (await read(socket))["type"] == "pong"
    await socket.disconnect()


async def test_a_response_is_not_told_twice_where_a_cancellation_gets_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """As it does in redis-py, on Python 3.11, when it comes just as a reply does."""
    go_on = asyncio.Event()

    async def events(access: Access, generation_id: str, after: int) -> AsyncGenerator[protocol.AnyEvent]:
        for seq in (1, 2):
            yield protocol.Delta(seq=seq, parts=[protocol.Part(text=str(seq))])
            with suppress(asyncio.CancelledError):
                await go_on.wait()
        yield protocol.Finished(seq=3)

    monkeypatch.setattr(consumers.ApiConsumer, "let_in", let_in)
    monkeypatch.setattr("chatapp.api.desk.events", events)
    monkeypatch.setattr(
        selectors, "generation", lambda access, pk: SimpleNamespace(pk=pk, conversation_id=None, message_id=None)
    )
    socket = await opened()
    assert (await read(socket))["type"] == "session.created"
    told = []
    for lane in ("first", "second"):
        await socket.send_to(text_data=json.dumps({"type": "response.resume", "response_id": "r", "stream_id": lane}))
        told.append(await read(socket))
    go_on.set()
    told += [await read(socket), await read(socket)]
    assert [(frame["stream_id"], frame["seq"]) for frame in told] == [
        ("first", 1), ("second", 1), ("second", 2), ("second", 3),
    ]  # fmt: skip
    assert await socket.receive_nothing()
    await socket.disconnect()
