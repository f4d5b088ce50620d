"""A socket on which nothing happens for a while is as good as new."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from tests.api.conftest import text_of


def test_an_idle_socket_stays_open_and_answers(open_socket: Callable[..., Any]) -> None:
    """Longer than the default time-outs of the Redis client."""
    with open_socket() as socket:
        time.sleep(7)
        frames = socket.answer(input="Say hello.", params={"max_tokens": 4, "temperature": 0})
        assert frames[-1]["type"] == "response.incomplete"
        assert text_of(frames)
