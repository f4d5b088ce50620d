"""Parts of the product as real processes over one real Redis and one database, to be killed, stopped and missed."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest
import redis

from tests.api.sockets import Voice, voice
from tests.chat.conftest import Team, make_team, server
from tests.stack import ROOT, free_port, wait_for

__all__ = ["server", "voice"]


@pytest.fixture
def team(transactional_db: None) -> Team:
    """Written for good: other processes read it."""
    return make_team("acme")


def database_url() -> str:
    """The tests' own database, for another process."""
    from django.db import connection

    made = connection.settings_dict
    if connection.vendor == "sqlite":
        return f"sqlite:///{made['NAME']}"
    return f"postgres://{made['USER']}:{made['PASSWORD']}@{quote(made['HOST'], safe='')}:{made['PORT']}/{made['NAME']}"


def environment(redis_url: str, **more: str) -> dict[str, str]:
    return {
        **os.environ,
        "DJANGO_SETTINGS_MODULE": "chatapp.settings.test",
        "DATABASE_URL": database_url(),
        "REDIS_URL": redis_url,
        **more,
    }


class WebProcess:
    """`python -m chatapp.daphne`, ready to be talked to."""

    def __init__(self, folder: Path, redis_url: str, **env: str) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._log = folder / f"web-{self.port}.log"
        with self._log.open("w") as log:
            self.popen = subprocess.Popen(
                [sys.executable, "-m", "chatapp.daphne", "--port", str(self.port), "--access-log", "/dev/null",
                 "chatapp.asgi:application"],
                cwd=ROOT, env=environment(redis_url, **env), stdout=log, stderr=subprocess.STDOUT,
            )  # fmt: skip

    def ready(self) -> WebProcess:
        wait_for(lambda: self.popen.poll() is not None or self.health() == 200, 60)
        assert self.popen.poll() is None, self.said()
        return self

    def health(self, path: str = "/healthz") -> int:
        try:
            return httpx.get(f"{self.url}{path}", timeout=10).status_code
        except httpx.HTTPError:
            return 0

    def said(self) -> str:
        return self._log.read_text()

    def send(self, sig: signal.Signals) -> None:
        self.popen.send_signal(sig)

    def end(self) -> None:
        if self.popen.poll() is None:
            self.popen.kill()
        self.popen.wait(10)


@pytest.fixture
def web(tmp_path: Path, redis_url: str, team: Team) -> Iterator[Callable[..., WebProcess]]:
    """Starts web processes; wait for them with `ready()`."""
    started: list[WebProcess] = []

    def start(**env: str) -> WebProcess:
        started.append(WebProcess(tmp_path, redis_url, **env))
        return started[-1]

    yield start
    for one in started:
        one.end()


@pytest.fixture(scope="module")
def staying(tmp_path_factory: pytest.TempPathFactory, redis_url: str, django_db_setup: None) -> Iterator[WebProcess]:
    """One that nothing happens to, for all tests of a file."""
    one = WebProcess(tmp_path_factory.mktemp("staying"), redis_url).ready()
    yield one
    one.end()


class Switch:
    """What a proxy does for connections: it tries one server after the other, beginning with the one preferred."""

    def __init__(self, *ports: int) -> None:
        self.ports = list(ports)
        self.went: list[int] = []  # where each connection went
        self.port = 0

    async def __aenter__(self) -> Switch:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        for port in self.ports:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                far_reader, far_writer = await asyncio.open_connection("127.0.0.1", port)
                far_writer.write(head)
                answer = await far_reader.readuntil(b"\r\n\r\n")
                if b" 503 " in answer.split(b"\r\n")[0]:
                    far_writer.close()
                    continue
                self.went.append(port)
                writer.write(answer)
                with contextlib.suppress(ConnectionError, asyncio.CancelledError):
                    await asyncio.gather(_copy(reader, far_writer), _copy(far_reader, writer))
                return
        writer.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    finally:
        writer.close()


async def taken(voice: Voice, within_s: float = 20) -> Any:
    """The next request, begun, once it is there."""
    loop = asyncio.get_running_loop()
    until = loop.time() + within_s
    while True:
        try:
            return await asyncio.to_thread(voice.start)
        except AssertionError as nothing:
            if "nothing is queued" not in str(nothing) or loop.time() > until:
                raise
            await asyncio.sleep(0.02)


def wire_of(url: str) -> redis.Redis:
    return redis.Redis.from_url(url, protocol=2)
