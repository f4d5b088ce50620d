"""The product's own socket over real TCP, in this process, with a worker that says what it is told; and a proxy whose
connections a test can cut."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed

from chatapp.api.consumers import ApiConsumer
from engine import protocol
from tests.chat.conftest import ScriptedWorker, server, team, worker

__all__ = ["server", "team", "worker"]


async def _bridge(connection: ServerConnection) -> None:
    """What daphne does: one websocket as an ASGI application."""
    assert connection.request is not None
    headers = [(name.lower().encode(), value.encode()) for name, value in connection.request.headers.raw_items()]
    offered = connection.request.headers.get("Sec-WebSocket-Protocol", "")
    scope = {
        "type": "websocket",
        "path": "/ws/v1",
        "query_string": b"",
        "headers": headers,
        "client": ("127.0.0.1", 1),
        "subprotocols": [name.strip() for name in offered.split(",") if name.strip()],
    }
    arrived: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    arrived.put_nowait({"type": "websocket.connect"})

    async def send(message: dict[str, Any]) -> None:
        if message["type"] == "websocket.send":
            with contextlib.suppress(ConnectionClosed):
                await connection.send(message["text"])
        elif message["type"] == "websocket.close":
            await connection.close(message.get("code", 1000))

    application = asyncio.ensure_future(ApiConsumer.as_asgi()(scope, arrived.get, send))  # type: ignore[arg-type]
    with contextlib.suppress(ConnectionClosed):
        async for text in connection:
            arrived.put_nowait({"type": "websocket.receive", "text": text})
    arrived.put_nowait({"type": "websocket.disconnect", "code": connection.close_code or 1006})
    with contextlib.suppress(Exception):
        await application


class Proxy:
    """Between the client and the server. `cut` breaks all connections, `hold` keeps what the server says for itself."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._writers: set[asyncio.StreamWriter] = set()
        self.flows = asyncio.Event()
        self.flows.set()
        self.connections = 0
        self.port = 0

    async def __aenter__(self) -> Proxy:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self.cut()
        self._server.close()

    def cut(self) -> None:
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._port)
        self._writers |= {writer, far_writer}
        with contextlib.suppress(ConnectionError, asyncio.CancelledError):
            await asyncio.gather(self._copy(reader, far_writer), self._copy(far_reader, writer, held=True))

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, held: bool = False) -> None:
        while data := await reader.read(65536):
            if held:
                await self.flows.wait()
            writer.write(data)
            await writer.drain()
        writer.close()


@pytest.fixture
async def proxy(transactional_db: None, server: Any) -> AsyncIterator[Proxy]:
    def protocol(connection: ServerConnection, offered: Any) -> Any:
        return "octavo.v1" if "octavo.v1" in offered else None

    async with serve(_bridge, "127.0.0.1", 0, select_subprotocol=protocol, ping_interval=None) as listening:
        port = next(iter(listening.sockets)).getsockname()[1]
        async with Proxy(port) as proxy:
            yield proxy


class Engine:
    """The scripted worker, called beside the loop that the server runs on."""

    def __init__(self, worker: ScriptedWorker) -> None:
        self.worker = worker
        self.taken: dict[str, Any] = {}

    async def begin(self, *texts: str) -> Any:
        """Wait for the next request, and say this much of its answer."""
        for _ in range(200):
            try:
                return await sync_to_async(self.worker.begin)(*texts)
            except AssertionError as nothing:
                if "nothing is queued" not in str(nothing):
                    raise
                await asyncio.sleep(0.02)
        raise AssertionError("nothing was asked")

    async def say(self, taken: Any, first: int, *texts: str) -> None:
        """More of it, from the event `first` on."""

        def tell() -> None:
            events = [
                protocol.Delta(seq=seq, parts=[protocol.Part(text=text, token_ids=[seq])])
                for seq, text in enumerate(texts, start=first)
            ]
            told = [protocol.Tell(taken.id, taken.attempt, event, 1.0) for event in events]
            self.worker._call(protocol.tell(self.worker.name, told))

        await sync_to_async(tell)()

    async def end(self, taken: Any, seq: int, finish_reason: str = "stop") -> None:
        usage = protocol.Usage(prompt_tokens=7, cached_tokens=3, completion_tokens=seq - 1)
        finished = protocol.Finished(seq=seq, finish_reason=finish_reason, usage=usage)
        await sync_to_async(self.worker.end)(taken, finished)

    async def answer(self, *texts: str) -> None:
        taken = await self.begin(*texts)
        await self.end(taken, len(texts) + 1)

    async def cancelled(self, taken: Any) -> bool:
        """A stop has reached the engine."""

        def flagged() -> bool:
            return bool(self.worker.redis.hget(protocol.request_key(taken.id), "cancel"))

        for _ in range(200):
            if await sync_to_async(flagged)():
                return True
            await asyncio.sleep(0.02)
        return False


@pytest.fixture
def engine(worker: ScriptedWorker) -> Engine:
    return Engine(worker)
