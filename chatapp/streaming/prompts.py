"""Tell the engines of a prompt that was just published."""

from __future__ import annotations

from chatapp.streaming import connection, workers
from engine import protocol


def announce(prompt: protocol.PublishedPrompt) -> None:
    """Every engine that runs now computes it before anybody asks. Raises redis.exceptions.RedisError.

    It only saves the first who asks a moment: an engine that does not hear of it computes the prompt then.
    """
    models = {worker.model for worker in workers.live()}
    if not models:
        return
    pipe = connection.sync_redis().pipeline(transaction=False)
    pipe.set(protocol.published_key(prompt.version), protocol.encode(prompt), ex=protocol.PUBLISHED_TTL_S)
    for model in models:
        hint = {"kind": "published", "id": prompt.version}
        pipe.xadd(protocol.control_key(model), hint, maxlen=protocol.CONTROL_LENGTH, approximate=True)
    pipe.execute()
