"""Redis is full: whoever logs in meanwhile is told to try again, and not that something broke."""

from __future__ import annotations

from typing import Any

import pytest
import redis.exceptions
from django.core.cache.backends.locmem import LocMemCache
from django.test import Client

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize(
    "error",
    [
        redis.exceptions.OutOfMemoryError("command not allowed when used memory > 'maxmemory'."),
        redis.exceptions.ReadOnlyError("You can't write against a read only replica."),
        redis.exceptions.ResponseError("MISCONF Errors writing to the AOF file: No space left on device"),
        redis.exceptions.ResponseError("Command # 1 (SET x) of pipeline caused error: NOREPLICAS Not enough replicas"),
    ],
    ids=["full", "just become a replica", "its disk is full", "without its replicas"],
)
def test_who_logs_in_while_redis_takes_nothing_is_told_to_try_again(
    monkeypatch: pytest.MonkeyPatch, error: redis.exceptions.RedisError
) -> None:
    def refuse(*args: Any, **kwargs: Any) -> None:
        raise error

    for name in ("add", "set", "incr"):
        monkeypatch.setattr(LocMemCache, name, refuse)
    client = Client(raise_request_exception=False)
    reply = client.post("/accounts/login/", {"login": "ada@example.org", "password": "correct horse battery"})
    assert (reply.status_code, reply["Retry-After"]) == (503, "3")
    assert "Not available right now" in reply.content.decode()
