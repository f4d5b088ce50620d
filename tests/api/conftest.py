"""Clients that no one here wrote: OpenAI's own, websockets, httpx."""

from __future__ import annotations

import json
import re
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing, contextmanager
from typing import Any

import httpx
import openai
import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from tests.stack import Stack


@pytest.fixture
def client(stack: Stack) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{stack.url}/v1", api_key=stack.key(), max_retries=0)


@pytest.fixture
def http(stack: Stack) -> httpx.Client:
    return httpx.Client(base_url=stack.url, headers={"Authorization": f"Bearer {stack.key()}"}, timeout=60)


class Socket:
    """A websocket that reads frames as dictionaries."""

    def __init__(self, connection: ClientConnection) -> None:
        self.connection = connection
        self.hello = self.read()

    def send(self, **frame: Any) -> None:
        self.connection.send(json.dumps(frame))

    def read(self, timeout_s: float = 30) -> dict[str, Any]:
        return json.loads(self.connection.recv(timeout=timeout_s))

    def read_until(self, *types: str, timeout_s: float = 60) -> list[dict[str, Any]]:
        """Frames up to and with the first of one of these types."""
        frames = []
        while not frames or frames[-1]["type"] not in types:
            frames.append(self.read(timeout_s))
            assert frames[-1]["type"] != "error" or "error" in types, frames[-1]
        return frames

    def read_deltas(self, count: int) -> list[dict[str, Any]]:
        """Frames up to and with the delta that tells event `count`."""
        frames = [self.read()]
        while frames[-1].get("seq", 0) < count:
            frames.append(self.read())
            assert frames[-1]["type"] not in ENDS, frames[-1]
        return frames

    def create(self, **frame: Any) -> dict[str, Any]:
        """Start a response; its response.queued."""
        self.send(type="response.create", **frame)
        queued = self.read()
        assert queued["type"] == "response.queued", queued
        return queued

    def answer(self, **frame: Any) -> list[dict[str, Any]]:
        """Create a response and read it to its end."""
        self.send(type="response.create", **frame)
        return self.read_until(*ENDS, "error")

    def resume(self, response_id: str, after: int = -1) -> list[dict[str, Any]]:
        self.send(type="response.resume", response_id=response_id, after=after)
        return self.read_until(*ENDS, "error")

    def closed(self, timeout_s: float = 10) -> int:
        """The code that the server closes with, whatever it says before."""
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                self.read(max(0.01, deadline - time.monotonic()))
            except ConnectionClosed:
                assert self.connection.close_code is not None
                return self.connection.close_code


ENDS = ("response.completed", "response.incomplete", "response.cancelled", "response.failed")
DELTA = "response.output_text.delta"


def text_of(frames: list[dict[str, Any]], after: int = 0) -> str:
    """The text of choice 0; asserts that the deltas behind `after` cover every number once, in order."""
    text, last = "", after
    for frame in frames:
        if frame["type"] == DELTA:
            assert frame["first_seq"] == last + 1, frames
            assert frame["seq"] >= frame["first_seq"]
            last = frame["seq"]
            text += frame["delta"]
        elif frame["type"] in ENDS:
            assert frame["seq"] == last + 1, frames
    return text


@pytest.fixture
def open_socket(stack: Stack) -> Callable[..., Any]:
    @contextmanager
    def opened(key: str | None = None, **options: Any) -> Any:
        headers = {"Authorization": f"Bearer {key or stack.key()}"}
        # A client with unread frames cannot see the server's goodbye, and would wait ten seconds for it.
        # Its own pings would have it give up where a test leaves frames unread, or the machine is slow.
        options = {"close_timeout": 0.5, "max_size": None, "ping_interval": None, **options}
        with connect(f"{stack.ws_url}/ws/v1", additional_headers=headers, **options) as connection:
            yield Socket(connection)

    return opened


class Browser:
    """A logged-in session over HTTP, and the sockets that its cookie opens."""

    def __init__(self, stack: Stack, person: dict[str, str]) -> None:
        self.stack = stack
        self.http = httpx.Client(base_url=stack.url, timeout=60)
        self.post("/accounts/login/", login=person["email"], password=person["password"])
        assert "sessionid" in self.http.cookies, "the login failed"

    def post(self, path: str, **fields: str) -> httpx.Response:
        page = self.http.get(path).text
        token = re.search(r'name="csrfmiddlewaretoken" value="([^"]+)"', page)
        assert token, page
        data = {"csrfmiddlewaretoken": token[1], **fields}
        reply = self.http.post(path, data=data, headers={"Origin": self.stack.url})
        assert reply.status_code == 302, reply.text
        return reply

    @contextmanager
    def open(self, slug: str, *, origin: str | None = None) -> Any:
        cookie = "; ".join(f"{name}={value}" for name, value in self.http.cookies.items())
        with connect(
            f"{self.stack.ws_url}/ws/ui?tenant={slug}",
            additional_headers={"Cookie": cookie},
            origin=origin or self.stack.url,  # type: ignore[arg-type]
        ) as connection:
            yield Socket(connection)


@pytest.fixture
def browser(stack: Stack) -> Callable[..., Browser]:
    """Log somebody of a demo tenant in."""

    def login(tenant: int = 0, person: str = "member") -> Browser:
        return Browser(stack, stack.demo["tenants"][tenant][person])

    return login


def rows(stack: Stack, query: str, *values: Any) -> list[tuple[Any, ...]]:
    """What the product's database says."""
    with closing(sqlite3.connect(stack.data / "db.sqlite3", timeout=20)) as database, database:
        return database.execute(query, values).fetchall()


def hexed(response_id: str) -> str:
    """A UUID as SQLite keeps it."""
    return response_id.replace("-", "")
