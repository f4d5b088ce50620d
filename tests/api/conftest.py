"""Clients that no one here wrote: OpenAI's own, websockets, httpx."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import contextmanager
from typing import Any

import httpx
import openai
import pytest
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
        return frames

    def answer(self, **frame: Any) -> list[dict[str, Any]]:
        """Create a response and read it to its end."""
        self.send(type="response.create", **frame)
        return self.read_until(*ENDS, "error")


ENDS = ("response.completed", "response.incomplete", "response.cancelled", "response.failed")


def text_of(frames: list[dict[str, Any]]) -> str:
    """The text of choice 0; asserts that the deltas cover every number once, in order."""
    text, last = "", 0
    for frame in frames:
        if frame["type"] == "response.output_text.delta":
            assert frame["first_seq"] == last + 1, frames
            last = frame["seq"]
            text += frame["delta"]
    return text


@pytest.fixture
def open_socket(stack: Stack) -> Callable[..., Any]:
    @contextmanager
    def opened(key: str | None = None, **options: Any) -> Any:
        headers = {"Authorization": f"Bearer {key or stack.key()}"}
        with connect(f"{stack.ws_url}/ws/v1", additional_headers=headers, max_size=None, **options) as connection:
            yield Socket(connection)

    return opened
