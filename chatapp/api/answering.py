"""What a socket and an HTTP call have in common: starting an answer, keeping its lease, and stopping it.

Database and Redis calls of the services are synchronous; here they are made in threads, several at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any, TypeVar

import redis.exceptions
import structlog
from channels.db import database_sync_to_async

from chatapp.streaming import cancel, lease

log = structlog.get_logger(__name__)

Result = TypeVar("Result")

# Calls that nobody waits for must be held on to, or they may be collected before they have run.
_background: set[asyncio.Task[Any]] = set()


async def in_thread(function: Callable[..., Result], /, *args: Any, **kwargs: Any) -> Result:
    """Run a function that may use the database, without queueing behind others that do."""
    call: Callable[..., Any] = database_sync_to_async(function, thread_sensitive=False)
    result: Result = await call(*args, **kwargs)
    return result


@asynccontextmanager
async def leased(generation_id: str) -> AsyncIterator[None]:
    """Renew the lease of a stateless generation while inside."""
    task = asyncio.create_task(_renew(generation_id))
    try:
        yield
    finally:
        task.cancel()


async def _renew(generation_id: str) -> None:
    while True:
        await asyncio.sleep(lease.RENEW_EVERY_S)
        with suppress(redis.exceptions.RedisError):  # the next one may get through in time
            await lease.renew(generation_id)


def stop_soon(generation_id: str) -> None:
    """Cancel a stateless generation whose caller has gone, also from a task that is being cancelled itself.

    Should it not get through, the lease ends some seconds later and has the same effect.
    """
    task = asyncio.create_task(_stop(generation_id))
    _background.add(task)
    task.add_done_callback(_background.discard)


async def _stop(generation_id: str) -> None:
    try:
        await asyncio.to_thread(cancel.cancel, generation_id)
    except redis.exceptions.RedisError as error:
        log.warning("generation.not_stopped", generation=generation_id, error=type(error).__name__)
