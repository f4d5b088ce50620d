"""Sockets of this very process: no product is started, a ScriptedWorker says what the engine would, the server is real.

`Line` talks to a consumer over Channels' communicator; `served` is a daphne in a thread, for clients of the network.
The two have event loops of their own, so that to each other they are what two web processes are.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import redis
from channels.testing import WebsocketCommunicator

from chatapp.api.consumers import ApiConsumer, UiConsumer
from engine import protocol
from tests.api.conftest import ENDS
from tests.chat.conftest import ScriptedWorker
from tests.stack import free_port, wait_for


class Line:
    """A socket that reads frames as dictionaries. Keeps all of both directions in `sent` and `heard`."""

    def __init__(self, communicator: WebsocketCommunicator) -> None:
        self.communicator = communicator
        self.sent: list[dict[str, Any]] = []
        self.heard: list[dict[str, Any]] = []
        self.hello: dict[str, Any] = {}

    async def send(self, **frame: Any) -> None:
        self.sent.append(frame)
        await self.communicator.send_to(text_data=json.dumps(frame))

    async def read(self, timeout_s: float = 10) -> dict[str, Any]:
        frame: dict[str, Any] = json.loads(await self.communicator.receive_from(timeout=timeout_s))
        self.heard.append(frame)
        return frame

    async def read_until(self, *types: str, **fields: Any) -> list[dict[str, Any]]:
        """Frames up to and with the first of one of these types that has these fields."""
        found = []
        while True:
            found.append(await self.read())
            frame = found[-1]
            if frame["type"] in types and all(frame.get(name) == value for name, value in fields.items()):
                return found

    async def ended(self, response_id: str) -> list[dict[str, Any]]:
        return await self.read_until(*ENDS, response_id=response_id)

    async def create(self, **frame: Any) -> dict[str, Any]:
        """Ask; the response.queued."""
        await self.send(type="response.create", **frame)
        return (await self.read_until("response.queued"))[-1]

    async def quiet(self) -> bool:
        """Nothing is accepted or refused before the answer to a ping."""
        await asyncio.sleep(0.03)
        await self.send(type="ping", event_id="quiet?")
        return not {frame["type"] for frame in await self.read_until("pong")} & {"response.queued", "error"}

    async def closed(self) -> int:
        while (event := await self.communicator.receive_output(10))["type"] != "websocket.close":
            self.heard.append(json.loads(event["text"]))
        return int(event["code"])


@asynccontextmanager
async def line(
    secret: str = "",
    *,
    subprotocols: tuple[str, ...] = (),
    headers: tuple[tuple[bytes, bytes], ...] = (),
    query: str = "",
) -> Any:
    sent = [(b"authorization", f"Bearer {secret}".encode())] if secret else []
    communicator = WebsocketCommunicator(
        ApiConsumer.as_asgi(), f"/ws/v1{query}", headers=[*sent, *headers], subprotocols=list(subprotocols)
    )
    async with _opened(communicator) as opened:
        yield opened


@asynccontextmanager
async def ui_line(user: Any, slug: str) -> Any:
    """A browser's socket of somebody who is logged in; the session itself is Channels' to look up."""
    communicator = WebsocketCommunicator(UiConsumer.as_asgi(), f"/ws/ui?tenant={slug}")
    communicator.scope["user"] = user
    async with _opened(communicator) as opened:
        yield opened


@asynccontextmanager
async def _opened(communicator: WebsocketCommunicator) -> Any:
    accepted, _ = await communicator.connect(10)
    assert accepted
    opened = Line(communicator)
    opened.hello = await opened.read()
    try:
        yield opened
    finally:
        await communicator.disconnect()


class Daphne:
    """The product's own application on a port of this machine."""

    def __init__(self, port: int) -> None:
        self.url = f"ws://127.0.0.1:{port}"
        self.http = f"http://127.0.0.1:{port}"


def served(ping_interval: float, ping_timeout: float) -> Iterator[Daphne]:
    """A daphne in a thread; Twisted's reactor can run once in a process, so there is one for all tests."""
    from daphne.server import Server
    from twisted.internet import reactor

    from chatapp.asgi import application

    port = free_port()
    server = Server(
        application,
        endpoints=[f"tcp:port={port}:interface=127.0.0.1"],
        signal_handlers=False,
        ping_interval=ping_interval,
        ping_timeout=ping_timeout,
    )
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    wait_for(lambda: bool(server.listening_addresses), 20)
    yield Daphne(port)
    reactor.callFromThread(reactor.stop)  # type: ignore[attr-defined]
    thread.join(3)  # its last applications may take their time; nobody waits for them


async def until(condition: Callable[[], Any], timeout_s: float = 10) -> Any:
    """What the condition gives once it holds; other tasks run meanwhile."""
    deadline = asyncio.get_running_loop().time() + timeout_s
    while not (found := condition()):
        assert asyncio.get_running_loop().time() < deadline, "it does not come about"
        await asyncio.sleep(0.01)
    return found


class Voice(ScriptedWorker):
    """A worker that says its events one by one."""

    def say(self, taken: protocol.Taken, *events: protocol.Started | protocol.Delta) -> None:
        replies = self._call(protocol.tell(self.name, [protocol.Tell(taken.id, taken.attempt, e, 1.0) for e in events]))
        assert all(told.outcome in ("ok", "cancelled") for told in protocol.parse_told(replies))

    def start(self) -> protocol.Taken:
        taken = self.take()
        self.say(taken, protocol.Started(seq=0, prompt_tokens=7, cached_tokens=3))
        return taken

    def texts(self, taken: protocol.Taken, first: int, *texts: str) -> None:
        self.say(taken, *(delta(seq, protocol.Part(text=text)) for seq, text in enumerate(texts, start=first)))

    def finish(self, taken: protocol.Taken, seq: int, finish_reason: str = "stop") -> None:
        usage = protocol.Usage(prompt_tokens=7, cached_tokens=3, completion_tokens=max(0, seq - 1))
        timing = protocol.Timing(queue_s=0.1, prefill_s=0.2, decode_s=0.3)
        self.end(taken, protocol.Finished(seq=seq, finish_reason=finish_reason, usage=usage, timing=timing))

    def end_as_told(self, taken: protocol.Taken, seq: int) -> None:
        """What a worker says that has been told to stop."""
        self.end(taken, protocol.Cancelled(seq=seq, usage=protocol.Usage(prompt_tokens=7)))


def delta(seq: int, *parts: protocol.Part) -> protocol.Delta:
    return protocol.Delta(seq=seq, parts=list(parts))


@pytest.fixture
def voice(server: redis.Redis, settings: Any) -> Voice:
    return Voice(server, settings.OCTAVO_MODEL_NAME)
