"""The lease of a stateless call: without a renewal for LEASE_S seconds its generation is cancelled."""

from __future__ import annotations

from collections.abc import Sequence

from chatapp.streaming import connection
from engine import protocol

RENEW_EVERY_S = 2.0
TOGETHER = 256  # in one round trip: Redis is kept busy for some milliseconds with so many


async def renew(generation_ids: Sequence[str]) -> None:
    """Renew them for another protocol.LEASE_S seconds each; those that have ended or are unknown are left alone."""
    for at in range(0, len(generation_ids), TOGETHER):
        await connection.calls_async([protocol.renew(key) for key in generation_ids[at : at + TOGETHER]])


def _shared_key(generation_id: str) -> str:
    return f"octavo:shared:{generation_id}"


async def share(generation_id: str) -> None:
    """Another process follows it for a caller of its own: whoever leaves first must not stop it for the other."""
    await connection.async_redis().set(_shared_key(generation_id), b"1", ex=protocol.LOG_TTL_S)


def is_shared(generation_id: str) -> bool:
    """Then only the lease ends it, some seconds behind the last of its callers."""
    return bool(connection.sync_redis().exists(_shared_key(generation_id)))
