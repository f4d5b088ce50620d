"""What ends open websockets of the running product: a session that is revoked elsewhere, a password that is changed."""

from __future__ import annotations

import re
import time
from typing import Any

import pytest

from tests.api.conftest import Browser
from tests.stack import Stack

pytestmark = pytest.mark.long
TEAM = 1


@pytest.fixture
def two(stack: Stack) -> tuple[Browser, Browser]:
    """One person at two places."""
    person = stack.demo["tenants"][TEAM]["member"]
    return Browser(stack, person), Browser(stack, person)


def test_revoking_a_session_ends_its_open_sockets_within_two_seconds(
    stack: Stack, two: tuple[Browser, Browser]
) -> None:
    """A second for the guard's round, and one for the machine."""
    here, there = two
    slug = stack.demo["tenants"][TEAM]["slug"]
    with there.open(slug) as theirs, here.open(slug) as mine:
        page = here.http.get("/accounts/sessions/").text
        newest = max(int(found) for found in re.findall(r'name="session" value="(\d+)"', page))
        began = time.monotonic()
        token = re.search(r'name="csrfmiddlewaretoken" value="([^"]+)"', page)
        assert token
        data: dict[str, Any] = {"csrfmiddlewaretoken": token[1], "session": str(newest)}
        reply = here.http.post("/accounts/sessions/revoke", data=data, headers={"Origin": stack.url})
        assert reply.status_code == 302
        assert theirs.closed() == 4440
        assert time.monotonic() - began < 2.0
        mine.send(type="ping")
        assert mine.read()["type"] == "pong"
    assert there.http.get("/accounts/").status_code == 302
    assert here.http.get("/accounts/").status_code == 200
