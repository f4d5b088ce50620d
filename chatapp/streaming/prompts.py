"""Tell the engines of a prompt that was just published."""

from __future__ import annotations

from chatapp.streaming import connection, workers
from engine import protocol


def announce(prompt: protocol.PublishedPrompt) -> None:
    """Every engine that runs now computes it before anybody asks. Raises redis.exceptions.RedisError.

    It only saves the first who asks a moment: an engine that does not hear of it computes the prompt then.
    """
    client = connection.sync_redis()
    for model in {worker.model for worker in workers.live()}:
        client.xadd(
            protocol.control_key(model),
            {"kind": "published", "prompt": protocol.encode(prompt)},
            maxlen=protocol.CONTROL_LENGTH,
            approximate=True,
        )
