"""What only a network shows: subprotocols, connections that die without a word, and two processes for one response."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import socket
from collections.abc import Iterator
from typing import Any

import pytest
from django.test import AsyncClient
from websockets.asyncio.client import ClientConnection, connect

from chatapp.chat.models import Conversation
from engine import protocol
from tests.api.conftest import ENDS, text_of
from tests.api.sockets import Daphne, Voice, delta, line, served, until, voice
from tests.chat.conftest import Team, server, strangers, team

__all__ = ["server", "strangers", "team", "voice"]
pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(scope="module")
def daphne() -> Iterator[Daphne]:
    """It asks its connections every second whether they are alive, and gives them two to answer."""
    yield from served(ping_interval=1, ping_timeout=2)


def key(team: Team) -> dict[str, str]:
    return {"Authorization": f"Bearer {team.secret}"}


async def read(connection: ClientConnection, *types: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    while not found or found[-1]["type"] not in types:
        found.append(json.loads(await asyncio.wait_for(connection.recv(), 10)))
    return found


async def test_a_browser_opens_a_socket_with_a_ticket_and_never_sees_the_key(team: Team, daphne: Daphne) -> None:
    reply = await AsyncClient().post("/v1/tickets", content_type="application/json", headers=key(team))
    offered = reply.json()["subprotocols"]
    async with connect(f"{daphne.url}/ws/v1", subprotocols=offered) as connection:
        assert connection.subprotocol == "octavo.v1"
        assert (await read(connection, "session.created"))[-1]["limits"]["max_responses"]
    async with connect(f"{daphne.url}/ws/v1", subprotocols=offered) as connection:
        assert (await read(connection, "error"))[-1]["code"] == "invalid_ticket"
        await connection.wait_closed()
        assert connection.close_code == 4401


async def test_a_response_is_resumed_by_cursor_in_another_process_while_it_runs_and_after_its_end(
    team: Team, voice: Voice, daphne: Daphne
) -> None:
    async with connect(f"{daphne.url}/ws/v1", additional_headers=key(team)) as there, line(team.secret) as here:
        await there.send(json.dumps({"type": "response.create", "input": "Count.", "stream_id": "a"}))
        response = (await read(there, "response.queued"))[-1]["response_id"]
        taken = voice.start()
        voice.texts(taken, 1, *(f"{n} " for n in range(1, 6)))
        frames = await read(there, "response.output_text.delta")
        while frames[-1]["seq"] < 5:
            frames += await read(there, "response.output_text.delta")
        # From the middle, and from the start, on the other one; then on both to the end.
        await here.send(type="response.resume", response_id=response, after=3, stream_id="b")
        begin = await here.read_until("response.output_text.delta")
        assert (begin[0]["first_seq"], begin[0]["delta"], begin[0]["stream_id"]) == (4, "4 5 ", "b")
        voice.texts(taken, 6, "6 ", "7")
        voice.finish(taken, 8)
        frames += await read(there, *ENDS)
        assert text_of(frames) == "1 2 3 4 5 6 7"
        assert text_of(begin + await here.ended(response), after=3) == "4 5 6 7"
        for after, rest in ((-1, "1 2 3 4 5 6 7"), (6, "7")):
            await there.send(json.dumps({"type": "response.resume", "response_id": response, "after": after}))
            assert text_of(await read(there, *ENDS), after=max(after, 0)) == rest


async def test_what_changes_in_one_process_is_told_in_another(team: Team, voice: Voice, daphne: Daphne) -> None:
    async with connect(f"{daphne.url}/ws/v1", additional_headers=key(team)) as there, line(team.secret) as here:
        await there.send(json.dumps({"type": "subscribe", "topic": "conversations"}))
        await read(there, "subscribed")
        asked = await here.create(input="Here.")
        told = (await read(there, "conversation.updated"))[-1]["conversation"]
        assert (told["id"], told["title"], told["running"]) == (asked["conversation_id"], "Here.", True)
        assert await asyncio.to_thread(Conversation.objects.count) == 1


async def test_a_connection_that_died_without_a_word_is_noticed_and_what_it_alone_wanted_is_stopped(
    team: Team, voice: Voice, daphne: Daphne
) -> None:
    """A laptop that sleeps, a network that is gone: nothing is closed, and no ping is answered any more."""
    hello = json.dumps({"type": "response.create", "input": [{"role": "user", "content": "A story!"}]}).encode()
    dead = await asyncio.to_thread(_open_by_hand, daphne, team.secret)
    try:
        await asyncio.to_thread(dead.sendall, _masked(hello))
        await until(lambda: voice.redis.keys("octavo:request:*"))
        taken = voice.start()
        voice.say(taken, delta(1, protocol.Part(text="Once upon")))
        started = asyncio.get_running_loop().time()

        def stopped() -> bool:
            """Its worker has been told so, or, where that one has not been heard of for a while, it has ended."""
            state, told = voice.redis.hmget(protocol.request_key(taken.id), "state", "cancel")
            return state == b"cancelled" or bool(told)

        await until(stopped, timeout_s=20)
        assert asyncio.get_running_loop().time() - started < 9, "before its lease has ended"
    finally:
        dead.close()


def _open_by_hand(daphne: Daphne, secret: str) -> socket.socket:
    """A websocket whose client answers nothing."""
    host, _, port = daphne.url.removeprefix("ws://").partition(":")
    opened = socket.create_connection((host, int(port)), 10)
    nonce = base64.b64encode(os.urandom(16)).decode()
    opened.sendall(
        (
            f"GET /ws/v1 HTTP/1.1\r\nHost: {host}:{port}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            f"Sec-WebSocket-Key: {nonce}\r\nSec-WebSocket-Version: 13\r\nAuthorization: Bearer {secret}\r\n\r\n"
        ).encode()
    )
    assert b"101" in opened.recv(4096)
    return opened


def _masked(payload: bytes) -> bytes:
    """A text message of fewer than 126 bytes, as a client has to send it."""
    assert len(payload) < 126
    mask = os.urandom(4)
    return bytes([0x81, 0x80 | len(payload)]) + mask + bytes(b ^ mask[i % 4] for i, b in enumerate(payload))
