"""Two web processes over one Redis and one database: whichever a client reaches, it is the same product."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
from websockets.sync.client import connect

from tests.api.conftest import ENDS, Socket, text_of
from tests.api.test_responses import another_server
from tests.stack import Stack

__all__ = ["another_server"]
pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]
Another = tuple[str, subprocess.Popen[bytes]]
LONG = {"max_tokens": 120, "temperature": 0.0, "ignore_eos": True}


@contextmanager
def socket_at(url: str, key: str = "", path: str = "/ws/v1", **options: Any) -> Any:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    address = url.replace("http", "ws", 1) + path
    with connect(address, additional_headers=headers, close_timeout=0.5, max_size=None, **options) as connection:
        yield Socket(connection)


def test_an_answer_is_resumed_and_stopped_through_the_process_that_did_not_start_it(
    stack: Stack, another_server: Another
) -> None:
    other, _ = another_server
    with socket_at(stack.url, stack.key()) as here, socket_at(other, stack.key()) as there:
        response = here.create(input="Tell me about the tides.", params=LONG)["response_id"]
        frames = here.read_deltas(10)
        there.send(type="response.resume", response_id=response, after=5)
        frames += here.read_until(*ENDS)
        rest = there.read_until(*ENDS)
        assert text_of(frames).endswith(text_of(rest, after=5))
        assert rest[-1] == frames[-1]

        response = here.create(input="Tell me about the winds.", params={**LONG, "max_tokens": 600})["response_id"]
        here.read_deltas(5)
        there.send(type="response.cancel", response_id=response)
        assert here.read_until(*ENDS)[-1]["type"] == "response.cancelled"
    with socket_at(other, stack.key()) as there:
        assert there.resume(response)[-1]["type"] == "response.cancelled"


def test_a_ticket_that_one_process_gave_is_spent_once_at_any(stack: Stack, another_server: Another) -> None:
    other, _ = another_server
    for gives, takes in ((stack.url, other), (other, stack.url)):
        headers = {"Authorization": f"Bearer {stack.key()}"}
        told = httpx.post(f"{gives}/v1/tickets", headers=headers, timeout=30).json()
        with socket_at(takes, subprotocols=told["subprotocols"]) as socket:
            assert socket.hello["type"] == "session.created"
        for again in (gives, takes):
            with socket_at(again, subprotocols=told["subprotocols"]) as socket:
                assert socket.hello["type"] == "error"
                assert socket.closed() == 4401


def test_what_changes_by_one_process_is_told_by_the_other(
    stack: Stack, another_server: Another, browser: Callable[..., Any]
) -> None:
    other, _ = another_server
    tenant = stack.demo["tenants"][0]
    person = browser()
    cookie = "; ".join(f"{name}={value}" for name, value in person.http.cookies.items())
    # As a page of that process would: nothing is in front here that gives both one name.
    at_other = connect(
        f"{other.replace('http', 'ws', 1)}/ws/ui?tenant={tenant['slug']}",
        additional_headers={"Cookie": cookie},
        origin=other,  # type: ignore[arg-type]
        close_timeout=0.5,
    )
    with at_other as connection, person.open(tenant["slug"]) as here:
        there = Socket(connection)
        there.send(type="subscribe", topic="conversations")
        there.read_until("subscribed")
        asked = here.create(input="What is a quota?", params={**LONG, "max_tokens": 8})
        here.read_until(*ENDS)
        running = there.read_until("conversation.updated")[-1]["conversation"]
        assert running["id"] == asked["conversation_id"]
        while running["running"]:
            running = there.read_until("conversation.updated")[-1]["conversation"]
        assert running["title"]
