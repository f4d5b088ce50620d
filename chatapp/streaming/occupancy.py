"""The block table of a worker as it changes, for the operators' page."""

from __future__ import annotations

from collections.abc import AsyncIterator

import msgspec

from chatapp.streaming import connection
from engine import protocol

_snapshot = msgspec.json.Decoder(protocol.Snapshot)


async def snapshots(worker: str) -> AsyncIterator[protocol.Snapshot]:
    """The newest snapshot at once, then each as it comes; one that a slow reader missed is skipped, not queued."""
    key = protocol.occupancy_key(worker)
    client = connection.async_blocking_redis()
    last = "0-0"
    try:
        while True:
            newest = await client.xrevrange(key, "+", f"({last}", count=1)
            if newest:
                last = newest[0][0].decode()
                yield _snapshot.decode(newest[0][1][b"snapshot"])
            await client.xread({key: last}, count=1, block=int(connection.BLOCK_S * 1000))
    finally:
        await client.aclose()
