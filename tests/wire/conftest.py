"""Requests, workers and the function library for the tests of the wire, all against a real server."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis

from chatapp.streaming import connection
from engine import protocol
from engine.protocol import AnyEvent, ChatMessage, Delta, Part, Request, Started, Taken, Tell, Told, WorkerDetails

MODEL = "m"
_ids = itertools.count()


def a_request(tenant: str = "t", **fields: Any) -> Request:
    fields.setdefault("id", f"g{next(_ids)}")
    fields.setdefault("messages", [ChatMessage("user", "Hello, who are you?")])
    return Request(tenant=tenant, model=fields.pop("model", MODEL), salt="s", **fields)


def delta(seq: int, text: str = "x") -> Delta:
    return Delta(seq=seq, parts=[Part(text=text, token_ids=[seq])])


class Wire:
    """The functions as Python calls, each a single FCALL of what protocol.py builds."""

    def __init__(self, client: redis.Redis) -> None:
        self.redis = client

    def call(self, call: protocol.Call) -> Any:
        return self.redis.fcall(*call)

    def enqueue(self, request: Request, **bounds: int) -> protocol.Enqueued:
        return protocol.parse_enqueued(self.call(protocol.enqueue(request, **bounds)))

    def beat(self, worker: str = "w1", steps: int = 0, model: str = MODEL) -> dict[str, str]:
        details = WorkerDetails(id=worker, model=model, context=99, block_size=16, num_blocks=9, pid=1, steps=steps)
        return protocol.parse_heartbeat(self.call(protocol.heartbeat(worker, details)))[1]

    def take(self, worker: str = "w1", room: int = 1, running: tuple[str, ...] = (), warm: tuple[str, ...] = ()) -> Any:
        return protocol.parse_taken(self.call(protocol.take(worker, MODEL, room, running, warm)))

    def claim(self, generation_id: str, worker: str = "w2") -> Taken | str:
        return protocol.parse_claimed(self.call(protocol.claim(worker, generation_id)))

    def tell(self, generation_id: str, event: Started | Delta, attempt: int = 1, worker: str = "w1") -> Told:
        tokens = event.prompt_tokens - event.cached_tokens if isinstance(event, Started) else 1
        return protocol.parse_told(self.call(protocol.tell(worker, [Tell(generation_id, attempt, event, tokens)])))[0]

    def finish(self, generation_id: str, event: Any, attempt: int = 1, worker: str = "w1") -> Told:
        return protocol.parse_finished(self.call(protocol.finish(worker, generation_id, attempt, event)))

    def cancel(self, generation_id: str) -> str:
        return str(self.call(protocol.cancel(generation_id)).decode())

    def orphans(self, worker: str = "w2") -> list[str]:
        return [i.decode() for i in self.call(protocol.orphans(worker, MODEL))]

    def silence(self, worker: str = "w1", for_ms: int = 4000) -> None:
        """As if the worker's last heartbeat had been so long ago."""
        self.redis.zincrby(protocol.WORKERS, -for_ms, worker)

    def log(self, generation_id: str) -> list[tuple[str, AnyEvent]]:
        entries: Any = self.redis.xrange(protocol.generation_key(generation_id))
        return [(i.decode(), protocol.decode_event(fields[b"event"])) for i, fields in entries]

    def kinds(self, generation_id: str) -> list[str]:
        return [f"{i} {event.__struct_config__.tag}" for i, event in self.log(generation_id)]

    def finished(self) -> list[tuple[str, str]]:
        entries: Any = self.redis.xrange(protocol.FINISHED)
        return [(fields[b"id"].decode(), fields[b"status"].decode()) for _, fields in entries]

    def state(self, generation_id: str) -> str:
        value: Any = self.redis.hget(protocol.request_key(generation_id), "state")
        return value.decode() if value else ""

    def service(self, tenant: str) -> float:
        value: Any = self.redis.hget(protocol.service_key(MODEL), tenant)
        return float(value or 0)

    def key_names(self) -> set[str]:
        return {key.decode() for key in self.redis.scan_iter()}

    def running(self, tenant: str = "t", **fields: Any) -> str:
        """A generation that w1, alive, has taken."""
        request = a_request(tenant, **fields)
        self.beat("w1")
        self.enqueue(request)
        assert self.take().id == request.id
        return request.id


@pytest.fixture
def wire(redis_url: str, settings: Any) -> Iterator[Wire]:
    """An empty server with the library; the product's settings point at it."""
    client = redis.Redis.from_url(redis_url, protocol=2)
    client.flushall()
    client.function_load(protocol.LIBRARY_SOURCE.read_text(), replace=True)
    settings.REDIS_URL = redis_url
    yield Wire(client)
    client.close()


@pytest.fixture
async def closing() -> Any:
    """Ends this loop's connections, as a process that ends would."""
    yield
    for client in connection._async_clients.pop(asyncio.get_running_loop(), {}).values():
        await client.aclose()


async def until(condition: Callable[[], Any], within_s: float = 20.0) -> Any:
    """Wait until the condition holds, and return what it gave."""
    deadline = asyncio.get_running_loop().time() + within_s
    while not (found := condition()):
        assert asyncio.get_running_loop().time() < deadline, f"still not so after {within_s} s"
        await asyncio.sleep(0.02)
    return found
