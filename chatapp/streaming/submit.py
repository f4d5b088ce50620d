"""Hand a generation to the engine. Idempotent: the same id is queued once, and never after it was cancelled."""

from __future__ import annotations

from chatapp.metrics import figures
from chatapp.streaming import connection
from engine import protocol

# Long enough for a short answer to end and make room; clients add their own jitter.
RETRY_AFTER_S = 5


class QueueFull(Exception):
    """The tenant has as many requests waiting as it may have."""

    def __init__(self, tenant: str, queued: int, retry_after_s: int = RETRY_AFTER_S) -> None:
        super().__init__(f"{queued} requests of this tenant are waiting already; try again in {retry_after_s} s.")
        self.tenant = tenant
        self.queued = queued
        self.retry_after_s = retry_after_s


def enqueue(request: protocol.Request, max_queued: int = protocol.MAX_QUEUED) -> int:
    """Queue it and return its position in the tenant's queue (1 is next; 0: it does not wait any more).
    `max_queued`: how many of the tenant's requests may wait.

    Raises QueueFull, and redis.exceptions.RedisError when Redis does not answer: whether it was queued is unknown then,
    and calling again is safe.
    """
    result = protocol.parse_enqueued(connection.call(protocol.enqueue(request, max_queued)))
    figures.submissions.labels("full" if result.outcome == "full" else "accepted").inc()
    if result.outcome == "full":
        raise QueueFull(request.tenant, result.position)
    return result.position
