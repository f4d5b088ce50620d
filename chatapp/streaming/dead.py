"""Requests that no worker outlived: what the wire gave up for good, until an operator has seen it.

Nothing tries them again by itself: their askers were told that they ended, and may ask anew.
"""

from __future__ import annotations

import msgspec

from chatapp.streaming import connection, fleet
from engine import protocol

MOST_SHOWN = 100


class Dead(msgspec.Struct, frozen=True, kw_only=True):
    """`entry`: its place in the list. `worker`: the last one that it took along."""

    entry: str
    id: str
    tenant: str
    model: str
    worker: str
    attempts: int
    ago_s: float


def count() -> int:
    return int(connection.sync_redis().xlen(protocol.DEAD))


def newest() -> list[Dead]:
    """The newest MOST_SHOWN. Raises redis.exceptions.RedisError."""
    client = connection.sync_redis()
    now = fleet.now_ms(client)
    found = []
    for entry, fields in client.xrevrange(protocol.DEAD, count=MOST_SHOWN):
        said = {name.decode(): value.decode() for name, value in fields.items()}
        found.append(
            Dead(
                entry=entry.decode(),
                id=said["id"],
                tenant=said["tenant"],
                model=said["model"],
                worker=said.get("worker", ""),
                attempts=int(said.get("attempts", 0)),
                ago_s=max(0.0, now - int(entry.partition(b"-")[0])) / 1000,
            )
        )
    return found


def drop(entry: str) -> bool:
    """Take it off the list; False where it is not there any more."""
    return bool(connection.sync_redis().xdel(protocol.DEAD, entry))
