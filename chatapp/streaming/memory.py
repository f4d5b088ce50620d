"""What engines hold of a chat that somebody looks at: say that somebody does, and read what they say.

A look ends by itself WATCH_TTL_S after it was last renewed. All workers of the model answer; the one that has most of
the chat is believed. Raises redis.exceptions.RedisError.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass

from chatapp.streaming import connection
from engine import protocol
from engine.protocol import Memory, Watch

RENEW_S = 4.0
# Workers say at least every four seconds that they live, and a busy one may take its time.
SILENT_S = 10.0
WITHIN_S = 1.0
_STATES = {"answering": 2, "idle": 1, "new": 0}


@dataclass(frozen=True)
class Look:
    """At which chat, and at the engines of which model."""

    model: str
    watch: Watch

    @property
    def channel(self) -> str:
        """Where each new word is published, as JSON of a Memory."""
        return protocol.memory_key(self.watch)


def best(said: Iterable[Memory]) -> Memory | None:
    """What the engine says that has the chat: the one that answers, else the one whose next turn would find most."""
    return max(said, key=lambda one: (_STATES[one.state], one.tokens, one.at_ms), default=None)


def age_s(said: Memory) -> float:
    """How long ago it was said. What a worker has said stays in Redis while anybody looks, and outlives the worker."""
    return max(0.0, time.time() - said.at_ms / 1000)


async def renew(look: Look) -> None:
    await connection.call_async(protocol.watch(look.model, look.watch))


async def latest(look: Look) -> list[Memory]:
    """What each engine has said last, those among them that are gone."""
    return [protocol.decode_memory(data) for data in (await connection.async_redis().hgetall(look.channel)).values()]


def once(look: Look, within_s: float = WITHIN_S) -> Memory | None:
    """Look for a moment; None when no engine has answered by then."""
    connection.call(protocol.watch(look.model, look.watch))
    deadline = time.monotonic() + within_s
    while True:
        said = (protocol.decode_memory(data) for data in connection.sync_redis().hvals(look.channel))
        found = best(one for one in said if age_s(one) < SILENT_S)
        if found is not None or time.monotonic() > deadline:
            return found
        time.sleep(0.02)
