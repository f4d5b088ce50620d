"""Clients that come and go, and clients that read late or never: what they cost a real web process, and Redis."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
import redis
from websockets.asyncio.client import connect

from chatapp.api.outbox import ROOM_CHARS
from chatapp.chat.recorder import Recorder
from engine import protocol
from tests.api.conftest import ENDS, text_of
from tests.api.sockets import Voice, delta
from tests.chat.conftest import Team
from tests.outages.conftest import WebProcess, taken
from tests.outages.test_web_processes import frames_until, key

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.long]

CYCLES = 200
WARM_UP = 60
MIB = 1024 * 1024
# What the kernel takes for a connection before it makes a writer wait, in bytes: the last of its three.
MOST_SENT = int(Path("/proc/sys/net/ipv4/tcp_wmem").read_text().split()[2])


@asynccontextmanager
async def opened(web: WebProcess, team: Team, **options: Any) -> AsyncIterator[Any]:
    address = f"ws://127.0.0.1:{web.port}/ws/v1"
    options = {"additional_headers": key(team), "ping_interval": None, "max_size": None, **options}
    async with connect(address, **options) as connection:
        yield connection


async def cycle(number: int, team: Team, voice: Voice, web: WebProcess) -> None:
    """Connect, stream, disconnect: after the end, in the middle of a chat's answer, or of a stateless one."""
    kept = number % 3 < 2
    question: Any = f"Count, {number}." if kept else [{"role": "user", "content": f"Count, {number}."}]
    async with opened(web, team, close_timeout=0.2) as connection:
        await connection.send(json.dumps({"type": "response.create", "input": question}))
        await frames_until(connection, "response.queued")
        answer = await taken(voice)
        await asyncio.to_thread(voice.texts, answer, 1, *("word " * 20 for _ in range(10)))
        await frames_until(connection, "response.output_text.delta")
        if number % 3 == 0:
            await asyncio.to_thread(voice.finish, answer, 11)
            await frames_until(connection, *ENDS)
    if number % 3:
        await asyncio.to_thread(voice.finish, answer, 11)


def names(server: redis.Redis) -> set[str]:
    """All keys but those of an ended generation, which expire, and the workers' and readers' own, which come and go."""
    found = {name.decode() for name in server.scan_iter(count=1000)}
    return {name for name in found if ":wake:" not in name and server.ttl(name) < 0}


async def test_200_clients_that_come_and_go_leave_neither_memory_nor_keys_nor_sockets(
    team: Team, voice: Voice, staying: WebProcess, server: redis.Redis
) -> None:
    """P8."""
    process = psutil.Process(staying.popen.pid)
    recorder = Recorder(lambda: False)
    before, warm, files = names(server), 0, 0
    for number in range(CYCLES):
        await cycle(number, team, voice, staying)
        if number == WARM_UP:
            warm, files = process.memory_info().rss, process.num_fds()
    while await asyncio.to_thread(recorder.once, 0.05):
        pass
    await asyncio.sleep(2)  # the server looks for ended sockets every second
    grown = process.memory_info().rss - warm
    assert grown < 12 * MIB, f"{grown:,} bytes more after {CYCLES - WARM_UP} clients"
    assert process.num_fds() <= files + 4
    left = names(server) - before
    assert not [name for name in left if "generation" in name or "request:" in name or "held" in name], left
    assert len(left) < 12, left
    print(f"\n{CYCLES} clients: {grown / MIB:.1f} MiB more than after {WARM_UP}; {len(left)} keys: {sorted(left)}")


async def followed(socket: Any, response_id: str) -> list[dict[str, Any]]:
    await socket.send(json.dumps({"type": "response.resume", "response_id": response_id, "after": -1}))
    return await frames_until(socket, *ENDS)


async def test_a_client_that_reads_late_is_told_that_it_lags_costs_little_and_gets_the_right_text(
    team: Team, voice: Voice, staying: WebProcess
) -> None:
    """P13: an answer that is much larger than all that may wait for one socket, the kernel's own buffer included."""
    narrow = socket.socket()
    narrow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 32 * 1024)
    narrow.connect(("127.0.0.1", staying.port))
    process = psutil.Process(staying.popen.pid)
    words = [f"{n} ".ljust(8 * 1024, "x") for n in range(1, 2 * (MOST_SENT + ROOM_CHARS) // (8 * 1024))]
    async with opened(staying, team, sock=narrow, max_queue=1) as sleeper, opened(staying, team) as other:
        await sleeper.send(json.dumps({"type": "response.create", "input": "Much."}))
        queued = (await frames_until(sleeper, "response.queued"))[-1]
        answer = await taken(voice)
        before = process.memory_info().rss
        reading = asyncio.create_task(followed(other, queued["response_id"]))
        for first in range(0, len(words), 8):
            events = [delta(n + 1, protocol.Part(text=words[n])) for n in range(first, min(first + 8, len(words)))]
            await asyncio.to_thread(voice.say, answer, *events)
        await asyncio.to_thread(voice.finish, answer, len(words) + 1)
        assert text_of(await reading) == "".join(words), "who reads is not held up"
        grown = process.memory_info().rss - before
        assert grown < 24 * MIB, f"the server grew by {grown:,} bytes for {sum(map(len, words)):,} characters"
        frames = await frames_until(sleeper, *ENDS)
    assert "lagged" in {frame["type"] for frame in frames}
    assert text_of(frames) == "".join(words)
    print(f"\n{grown / MIB:.1f} MiB for a client that does not read {sum(map(len, words)) / MIB:.0f} MiB")
