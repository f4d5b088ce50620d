"""The life of a socket where the running product cannot be made to show it: faults, and its last day."""

from __future__ import annotations

import json
from typing import Any

import pytest
from channels.testing import WebsocketCommunicator
from django.db import OperationalError

from chatapp.api import consumers, frames
from chatapp.tenants.access import Access
from chatapp.tenants.models import Tenant

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
