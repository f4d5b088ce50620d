"""Make the engines forget a tenant: no block, no host slot, no pin and no file of it is left there."""

from __future__ import annotations

from typing import Any

from chatapp.streaming import connection, workers
from engine import protocol


def ask(tenant: str) -> set[str]:
    """Tell every engine that runs now; their ids. Ask again until all have answered: a hint may get lost.

    Raises redis.exceptions.RedisError.
    """
    live = workers.live()
    client = connection.sync_redis()
    for model in {worker.model for worker in live}:
        hint: Any = {"kind": "forget", "id": tenant}
        client.xadd(protocol.control_key(model), hint, maxlen=protocol.CONTROL_LENGTH, approximate=True)
    return {worker.id for worker in live}


def heard(tenant: str) -> set[str]:
    """The engines that have nothing of it any more."""
    members: Any = connection.sync_redis().smembers(protocol.forgot_key(tenant))
    return {member.decode() for member in members}
