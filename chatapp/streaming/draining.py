"""Tell one engine to take nothing new, or to take again.

It finishes what it has, and its process stays, with its memory.
"""

from __future__ import annotations

from typing import Literal

from chatapp.streaming import connection
from engine import protocol

Outcome = Literal["draining", "taking", "gone"]


def drain(worker: str, *, on: bool = True) -> Outcome:
    """From its return on the worker is given nothing, also where it has not heard of it yet. Safe to repeat.

    `gone`: no such worker lives, and nothing was done. Raises redis.exceptions.RedisError.
    """
    outcome: Outcome = connection.call(protocol.drain(worker, on=on)).decode()
    return outcome
