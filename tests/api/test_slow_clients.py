"""P13: clients that do not read, or read late."""

from __future__ import annotations

import socket
import time
from typing import Any

import psutil
import pytest
from websockets.exceptions import ConnectionClosed

from tests.api.conftest import ENDS, text_of
from tests.stack import Stack

MANY = 8
LONG = {"temperature": 0, "max_tokens": 250, "ignore_eos": True}


def web(stack: Stack) -> psutil.Process:
    """The web server of this stack."""
    for process in psutil.Process(stack.process.pid).children(recursive=True):
        if (
            "chatapp.daphne" in process.cmdline()
            and process.cmdline()[1:2] == ["-m"]
            and "ops.child" not in process.cmdline()
        ):
            return process
    raise AssertionError("no web process runs")


def narrow(stack: Stack) -> socket.socket:
    """A connection whose kernel keeps little unread: by default it takes tens of megabytes before anyone must wait."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * 1024)
    connection.connect(("127.0.0.1", stack.port))
    return connection


@pytest.mark.long
def test_a_client_that_does_not_read_costs_little_and_slows_nobody_and_gets_the_right_text_at_last(
    stack: Stack, open_socket: Any
) -> None:
    """P13."""
    stack.wait_idle()
    server = web(stack)
    with open_socket() as reader:
        expected = [text_of(reader.answer(input=f"Tell me about the number {n}.", params=LONG)) for n in range(2)]
    before = server.memory_info().rss
    with open_socket() as sleeper, open_socket(stack.key(1)) as other:
        for n in range(MANY):
            sleeper.send(
                type="response.create",
                input=f"Tell me about the number {n % 2}.",
                params=LONG,
                event_id=str(n),
            )
        worst = 0.0
        until = time.monotonic() + 5
        while time.monotonic() < until:
            start = time.monotonic()
            other.send(type="ping")
            assert other.read()["type"] == "pong"
            worst = max(worst, time.monotonic() - start)
            time.sleep(0.05)
        assert text_of(other.answer(input="Say hello.", params={"temperature": 0, "max_tokens": 4}))
        assert worst < 1.0, "another's pings waited for the sleeper"
        stack.wait_idle()
        grown = server.memory_info().rss - before
        assert grown < 32 * 1024 * 1024, f"the server grew by {grown:,} bytes for one client"
        told: dict[str, list[dict[str, Any]]] = {}
        while sum(frames[-1]["type"] in ENDS for frames in told.values()) < MANY:
            frame = sleeper.read()
            told.setdefault(frame["response_id"], []).append(frame)
        for frames in told.values():
            assert text_of(frames) == expected[int(frames[0]["event_id"]) % 2]


@pytest.mark.long
def test_a_client_that_only_sends_is_given_up_before_it_costs_much(stack: Stack, open_socket: Any) -> None:
    """P13: what it makes the server say would pile up without bound."""
    server = web(stack)
    with open_socket(sock=narrow(stack)) as flood, open_socket(stack.key(1)) as other:
        before = server.memory_info().rss
        given_up = False
        until = time.monotonic() + 60
        while not given_up and time.monotonic() < until:
            try:
                for _ in range(200):
                    flood.connection.send("{}")
            except ConnectionClosed:
                given_up = True
            other.send(type="ping")
            assert other.read(5)["type"] == "pong"
        assert given_up
        grown = server.memory_info().rss - before
        assert grown < 24 * 1024 * 1024, f"the server grew by {grown:,} bytes for one client"
        assert text_of(other.answer(input="Say hello.", params={"temperature": 0, "max_tokens": 4}))
