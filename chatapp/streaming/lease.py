"""The lease of a stateless call: without a renewal for LEASE_S seconds its generation is cancelled."""

from __future__ import annotations

from chatapp.streaming import connection
from engine import protocol

RENEW_EVERY_S = 2.0


async def renew(generation_id: str) -> str:
    """Renew it for another protocol.LEASE_S seconds; returns the generation's state, or `unknown`."""
    reply = await connection.call_async(protocol.renew(generation_id))
    return str(reply.decode())
