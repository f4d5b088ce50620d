"""Requests, workers and the function library for the tests of the wire, all against a real server."""

from __future__ import annotations

import asyncio
import itertools
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import redis

from chatapp.streaming import connection, workers
from chatapp.streaming.follow import follower
from engine import protocol
from engine.protocol import AnyEvent, ChatMessage, Delta, Part, Request, Started, Taken, Tell, Told, WorkerDetails
from engine.sampling_params import SamplingParams
from engine.worker_loop import Worker
from tests.conftest import ROOT
from tests.stack import wait_for

MODEL = "m"
AFTER_START_S = 4
WORKER = (sys.executable, "-m", "engine.worker")
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
    wait_for(lambda: client.info("server")["uptime_in_seconds"] >= AFTER_START_S)  # before that nobody counts as dead
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


# --- workers ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def tiny_path(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A tiny random model whose context is long enough to be stopped in the middle of an answer."""
    from tests.engine.tiny import make_tiny

    folder = tmp_path_factory.mktemp("wire") / "tiny"
    return str(make_tiny(folder, max_position_embeddings=8192))


def a_question(tenant: str = "t", *, tokens: int = 24, text: str = "Who are you?", **fields: Any) -> Request:
    """A greedy request for so many tokens."""
    params = SamplingParams(max_tokens=tokens, temperature=0.0, ignore_eos=True)
    return a_request(tenant, messages=[ChatMessage("user", text)], params=params, **fields)


class InProcess:
    """A real Worker over a real engine, its loop in a thread of the test's process."""

    def __init__(self, url: str, engine: Any, **options: Any) -> None:
        self.engine = engine
        self.worker = Worker(engine, redis_url=url, name="test", model=MODEL, **options)
        self.status: int | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        self.status = self.worker.run()

    def join(self, within_s: float = 20.0) -> int | None:
        self._thread.join(within_s)
        assert not self._thread.is_alive(), "the worker did not end"
        return self.status

    def stop(self) -> int | None:
        self.worker.stop()
        return self.join()


@pytest.fixture
def serve(wire: Wire, redis_url: str, tiny_path: str) -> Iterator[Callable[..., InProcess]]:
    """Starts workers in this process; keywords are EngineConfig's, and the Worker's `grace_s`, or a `runner`."""
    import torch

    from engine import EngineConfig, LLMEngine

    torch.set_num_threads(1)
    running: list[InProcess] = []

    def start(runner: Any = None, grace_s: float = 0.0, **settings: Any) -> InProcess:
        defaults = {"model": tiny_path, "dtype": "float32", "device": "cpu", "num_blocks": 1024}
        config = EngineConfig(**{**defaults, **settings})
        engine = LLMEngine(config) if runner is None else runner(config)
        running.append(InProcess(redis_url, engine, grace_s=grace_s))
        return running[-1]

    yield start
    for served in running:
        if served.status is None:
            assert served.stop() == 0
        served.engine.check_integrity()
        assert not any(served.engine.pool.refs), "blocks are referenced although nothing runs"


class Process:
    """`python -m engine.worker` on the tiny model. `command`: another one in its place."""

    def __init__(self, url: str, model: str, *options: str, command: Sequence[str] = WORKER) -> None:
        self.popen = subprocess.Popen(
            [
                *command,
                "--model",
                model,
                "--redis",
                url,
                "--served-as",
                MODEL,
                "--dtype",
                "float32",
                "--num-blocks",
                "1024",
                *options,
            ],
            cwd=ROOT,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stderr=subprocess.PIPE,
            text=True,
        )

    async def ready(self) -> Process:
        pid = self.popen.pid
        await until(lambda: self.popen.poll() is not None or any(w.pid == pid for w in workers.live()), 60)
        assert self.popen.poll() is None, self.popen.communicate()[1]
        return self

    def end(self) -> tuple[int, str]:
        """Its exit status and what it said."""
        said = self.popen.communicate(timeout=60)[1]
        return self.popen.returncode, said


@pytest.fixture
def process(wire: Wire, tiny_path: str) -> Iterator[Callable[..., Process]]:
    """Starts worker processes; what still runs at the end is killed."""
    started: list[Process] = []

    def start(*options: str, url: str | None = None, command: Sequence[str] = WORKER) -> Process:
        started.append(Process(url or settings_url(), tiny_path, *options, command=command))
        return started[-1]

    yield start
    for one in started:
        if one.popen.poll() is None:
            one.popen.kill()
            one.popen.communicate()


def settings_url() -> str:
    from django.conf import settings

    return str(settings.REDIS_URL)


async def answer_of(generation_id: str, after: int = -1) -> list[AnyEvent]:
    return [event async for event in follower().follow(generation_id, after)]


def text_of(events: list[AnyEvent]) -> str:
    return "".join(part.text for event in events if isinstance(event, Delta) for part in event.parts)


def tokens_of(events: list[AnyEvent]) -> list[int]:
    return [t for event in events if isinstance(event, Delta) for part in event.parts for t in part.token_ids]
