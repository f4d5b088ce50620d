"""Things that may be taken once, within seconds: kept in Redis, which gives each to one taker only."""

from __future__ import annotations

import hashlib

from chatapp.streaming import connection


def _key(secret: str) -> str:
    """Who reads Redis's memory or its files finds nothing to use."""
    return f"octavo:ticket:{hashlib.sha256(secret.encode()).hexdigest()}"


def put(secret: str, content: bytes, ttl_s: int) -> None:
    connection.sync_redis().set(_key(secret), content, ex=ttl_s)


def take(secret: str) -> bytes | None:
    """What was put under this secret; None when that never was, has been taken, or is too old."""
    found: bytes | None = connection.sync_redis().getdel(_key(secret))
    return found
