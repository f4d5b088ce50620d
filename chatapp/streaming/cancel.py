"""Stop a generation, wherever it is: unknown, queued, running, or ended already."""

from __future__ import annotations

from chatapp.streaming import connection
from engine import protocol


def cancel(generation_id: str) -> str:
    """The state after it: `cancelled`, `cancelling` (its worker has been told), or the state that it had ended in.

    The caller has checked that whoever asks may do so. An id that Redis does not know is ended too, so that an Enqueue
    that is still on its way does nothing.
    """
    return str(connection.call(protocol.cancel(generation_id)).decode())


def is_cancelled(generation_id: str) -> bool:
    """It has been cancelled, and its worker may not have heard of it yet."""
    return connection.sync_redis().hget(protocol.request_key(generation_id), "cancel") == b"1"
