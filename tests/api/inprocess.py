"""The product's own ASGI application in the test's process, behind clients that no one here wrote, and an engine that
says what the test tells it to. Answers stream as over a socket, and a client that closes one is seen to have gone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx2
import openai
import pytest

from chatapp.asgi import application
from engine import protocol
from engine.protocol import Delta, Finished, Part, Started, Usage
from tests.chat.conftest import ScriptedWorker, Team

PATIENCE_S = 20.0


class _Stream(httpx2.AsyncByteStream):
    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while (part := await self._exchange.body.get()) is not None:
            yield part

    async def aclose(self) -> None:
        await self._exchange.hang_up()


class Exchange:
    """One request and its answer, as a server would have them with the application."""

    def __init__(self, request: httpx2.Request, content: bytes) -> None:
        self.body: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.started: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._gone = asyncio.Event()
        self._content: bytes | None = content
        url = request.url
        self._scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": request.method,
            "scheme": "http",
            "path": url.path,
            "raw_path": url.raw_path.partition(b"?")[0],
            "query_string": url.query,
            "root_path": "",
            "headers": [(name.lower(), value) for name, value in request.headers.raw],
            "client": ("127.0.0.1", 1),
            "server": ("testserver", 80),
        }
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        try:
            await application(self._scope, self._receive, self._send)  # type: ignore[arg-type]
        finally:
            if not self.started.done():
                self.started.set_exception(httpx2.ReadError("no answer"))
                self.started.exception()  # whoever asked may have gone
            self.body.put_nowait(None)

    async def _receive(self) -> dict[str, Any]:
        if self._content is not None:
            content, self._content = self._content, None
            return {"type": "http.request", "body": content, "more_body": False}
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self.started.set_result(message)
        elif message["type"] == "http.response.body" and message.get("body"):
            self.body.put_nowait(message["body"])

    async def hang_up(self) -> None:
        """As a server that sees its connection closed; the application has some seconds to end."""
        self._gone.set()
        await asyncio.wait([self._task], timeout=PATIENCE_S)
        assert self._task.done(), "a request went on without its client"


class Transport(httpx2.AsyncBaseTransport):
    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        exchange = Exchange(request, await request.aread())
        try:
            message = await asyncio.wait_for(asyncio.shield(exchange.started), PATIENCE_S)
        except BaseException:
            await exchange.hang_up()
            raise
        return httpx2.Response(message["status"], headers=message.get("headers", []), stream=_Stream(exchange))


def http_client(secret: str = "", **headers: str) -> httpx2.AsyncClient:
    if secret:
        headers["Authorization"] = f"Bearer {secret}"
    return httpx2.AsyncClient(transport=Transport(), base_url="http://testserver", headers=headers)


def openai_client(secret: str) -> openai.AsyncOpenAI:
    client = httpx2.AsyncClient(transport=Transport(), base_url="http://testserver/v1")
    return openai.AsyncOpenAI(base_url="http://testserver/v1", api_key=secret, max_retries=0, http_client=client)


async def until(true: Callable[[], bool], timeout_s: float = 5.0) -> None:
    """Polls Redis, which tells nobody."""
    async with asyncio.timeout(timeout_s):
        while not true():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


class Engine:
    """A worker whose calls wait for what they need, while the application answers beside them."""

    def __init__(self, worker: ScriptedWorker) -> None:
        self.worker = worker

    async def take(self) -> protocol.Taken:
        """The next request, once it is there."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                self.worker.beat()
                call = protocol.take(self.worker.name, self.worker.model, 1, ())
                taken = protocol.parse_taken(self.worker.redis.fcall(*call))  # type: ignore[arg-type]
                if taken is not None:
                    return taken
                await asyncio.sleep(0.005)

    def tell(self, taken: protocol.Taken, *events: Started | Delta) -> list[protocol.Told]:
        tells = [protocol.Tell(taken.id, taken.attempt, event, 1.0) for event in events]
        return protocol.parse_told(self.worker.redis.fcall(*protocol.tell(self.worker.name, tells)))  # type: ignore[arg-type]

    async def say(self, *steps: list[Part], end: Any = None, prompt: int = 7) -> protocol.Request:
        """Take the next request and say all of its answer, a delta a step. `end`: other than finished with stop."""
        taken = await self.take()
        self.tell(taken, Started(seq=0, prompt_tokens=prompt, cached_tokens=3))
        for seq, parts in enumerate(steps, start=1):
            self.tell(taken, Delta(seq=seq, parts=parts))
        tokens = sum(len(part.token_ids) for parts in steps for part in parts)
        usage = Usage(prompt_tokens=prompt, cached_tokens=3, completion_tokens=tokens)
        event = end or Finished(finish_reason="stop", usage=usage)
        self.worker.end(taken, protocol.msgspec.structs.replace(event, seq=len(steps) + 1))
        return protocol.decode_request(taken.payload)

    async def refuse(self, **fields: Any) -> protocol.Request:
        taken = await self.take()
        self.worker.end(taken, protocol.Refused(seq=0, **fields))
        return protocol.decode_request(taken.payload)

    async def until_stopped(self, *takens: protocol.Taken) -> None:
        """Until the worker hears at its next step that these are wanted by nobody any more."""
        await until(
            lambda: all(self.worker.redis.hget(protocol.request_key(one.id), "cancel") == b"1" for one in takens)
        )


@pytest.fixture
def prompt_headers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Streams whose engine says nothing do not wait for it as long as they do for callers."""
    monkeypatch.setattr("chatapp.api.openai_calls.HEADERS_AFTER_S", 0.05)


@pytest.fixture
def engine(worker: ScriptedWorker) -> Engine:
    return Engine(worker)


@pytest.fixture
async def client(team: Team) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai_client(team.secret) as made:
        yield made


@pytest.fixture
async def http(team: Team) -> AsyncIterator[httpx2.AsyncClient]:
    async with http_client(team.secret) as made:
        yield made


@pytest.fixture
def team(transactional_db: None, make: Callable[[str], Team]) -> Team:
    """Written for good, as the application reads it in threads of its own."""
    return make("acme")


@pytest.fixture
def make() -> Callable[[str], Team]:
    from tests.chat.conftest import make_team

    return make_team
