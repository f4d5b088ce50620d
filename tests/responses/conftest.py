"""OpenAI's own client against the application in this process: no sockets, a scripted worker, a real Redis."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import httpx2
import openai
import pytest

from chatapp.asgi import application
from engine import protocol
from engine.protocol import Delta, Finished, Part, Started, Tell, ToolCallPart, Usage
from tests.chat.conftest import ScriptedWorker, Team, record, server, strangers, team, worker

__all__ = ["record", "server", "strangers", "team", "worker"]


class _Body(httpx2.AsyncByteStream):
    """What the application sends, as it is sent. Closing it is what a client does that goes away."""

    def __init__(self, task: asyncio.Task[Any], sent: asyncio.Queue[Any], gone: asyncio.Event) -> None:
        self._task, self._sent, self._gone = task, sent, gone

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while True:
            message = await self._sent.get()
            if message is None:
                return
            if message.get("body"):
                yield message["body"]
            if not message.get("more_body"):
                return

    async def aclose(self) -> None:
        self._gone.set()
        await asyncio.wait([self._task], timeout=5)


class InProcess(httpx2.AsyncBaseTransport):
    """Each request is a call of the ASGI application; its answer streams."""

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        body = await request.aread()
        scope: dict[str, Any] = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": request.method,
            "scheme": "http",
            "path": request.url.path,
            "raw_path": request.url.raw_path.split(b"?")[0],
            "query_string": request.url.query,
            "headers": [(name.lower(), value) for name, value in request.headers.raw],
            "client": ("127.0.0.1", 1),
            "server": ("testserver", 80),
        }
        sent: asyncio.Queue[Any] = asyncio.Queue()
        gone = asyncio.Event()
        asked = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive() -> dict[str, Any]:
            if asked:
                return asked.pop()
            await gone.wait()
            return {"type": "http.disconnect"}

        async def send(message: dict[str, Any]) -> None:
            sent.put_nowait(message)

        task = asyncio.create_task(application(scope, receive, send))  # type: ignore[arg-type]
        task.add_done_callback(lambda _: sent.put_nowait(None))
        start = await sent.get()
        if start is None:
            await task
            raise AssertionError("the application said nothing")
        return httpx2.Response(start["status"], headers=start["headers"], stream=_Body(task, sent, gone))


def client_of(secret: str) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(
        base_url="http://testserver/v1",
        api_key=secret,
        max_retries=0,
        http_client=httpx2.AsyncClient(transport=InProcess()),
    )


@pytest.fixture
def client(transactional_db: None, team: Team) -> openai.AsyncOpenAI:
    return client_of(team.secret)


class Script:
    """Says any events, as the worker; `await`ed from the test's own loop."""

    def __init__(self, worker: ScriptedWorker) -> None:
        self.worker = worker

    async def taken(self, timeout_s: float = 10.0) -> protocol.Taken:
        """The next request, once there is one."""

        def queued() -> bool:
            return bool(self.worker.redis.zcard(protocol.backlog_key(self.worker.model)))

        for _ in range(int(timeout_s / 0.01)):
            if await asyncio.to_thread(queued):
                return await asyncio.to_thread(self.worker.take)
            await asyncio.sleep(0.01)
        raise AssertionError("nothing is queued")

    async def tell(self, taken: protocol.Taken, *parts: Sequence[Part], first: int = 0) -> None:
        """A delta for each of `parts`; before the first one that it has started."""
        events: list[Started | Delta] = [] if first else [Started(seq=0, prompt_tokens=7, cached_tokens=3)]
        events += [Delta(seq=seq, parts=list(part)) for seq, part in enumerate(parts, start=max(1, first))]
        told = [Tell(taken.id, taken.attempt, event, 1.0) for event in events]
        call = protocol.tell(self.worker.name, told)
        replies: Any = await asyncio.to_thread(self.worker.redis.fcall, *call)
        assert all(reply.outcome in ("ok", "cancelled") for reply in protocol.parse_told(replies))

    async def is_cancelled(self, taken: protocol.Taken) -> bool:
        return bool(await asyncio.to_thread(self.worker.redis.hget, protocol.request_key(taken.id), "cancel"))

    async def cancelled(self, taken: protocol.Taken, timeout_s: float = 10.0) -> None:
        """Its worker has been told to stop."""
        for _ in range(int(timeout_s / 0.01)):
            if await self.is_cancelled(taken):
                return
            await asyncio.sleep(0.01)
        raise AssertionError("nobody stopped it")

    async def end(self, taken: protocol.Taken, event: protocol.AnyTerminal) -> None:
        await asyncio.to_thread(self.worker.end, taken, event)

    async def answer(self, *parts: Sequence[Part] | str, finish_reason: str = "stop") -> protocol.Request:
        """All of an answer; returns the request as the worker got it."""
        said = [[Part(text=part, token_ids=[1])] if isinstance(part, str) else part for part in parts]
        taken = await self.taken()
        await self.tell(taken, *said)
        await self.end(taken, finished(len(said), finish_reason))
        return protocol.decode_request(taken.payload)


def finished(deltas: int, finish_reason: str = "stop") -> Finished:
    usage = Usage(prompt_tokens=7, cached_tokens=3, completion_tokens=deltas)
    return Finished(seq=deltas + 1, finish_reason=finish_reason, usage=usage)


def call(number: int, arguments: str, name: str = "") -> list[Part]:
    """A part of a call; its first one has the name."""
    known = f"call_{number}" if name else ""
    return [Part(token_ids=[1], tool_calls=[ToolCallPart(call=number, id=known, name=name, arguments=arguments)])]


@pytest.fixture
def script(worker: ScriptedWorker) -> Script:
    return Script(worker)


@pytest.fixture
def recorded(record: Callable[[], int]) -> Callable[[], Any]:
    """Record what has ended."""

    async def once() -> int:
        return await asyncio.to_thread(record)

    return once
