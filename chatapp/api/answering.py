"""What a socket and an HTTP call have in common: starting an answer, keeping its lease, and stopping it.

Database and Redis calls of the services are synchronous; here they are made in threads, several at once.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import redis.exceptions
import structlog
from channels.db import database_sync_to_async

from chatapp import stopping
from chatapp.api import turns
from chatapp.chat import services
from chatapp.chat.models import Generation
from chatapp.streaming import cancel, lease

log = structlog.get_logger(__name__)

Result = TypeVar("Result")

# Calls that nobody waits for must be held on to, or they may be collected before they have run.
_background: set[asyncio.Future[Any]] = set()


async def in_thread(function: Callable[..., Result], /, *args: Any, **kwargs: Any) -> Result:
    """Run a function that may use the database; callers get a thread in turn."""
    call: Callable[..., Any] = database_sync_to_async(function, thread_sensitive=False)
    async with turns.here().turn(turns.caller()):
        result: Result = await call(*args, **kwargs)
        return result


async def complete(**arguments: Any) -> Generation:
    """services.complete in a thread. A caller that goes away meanwhile stops what it has begun, unseen."""

    def begin() -> list[Generation]:
        return [services.complete(**arguments)]

    return (await _begun(begin))[0]


async def complete_all(**arguments: Any) -> list[Generation]:
    """services.complete_all, as `complete`."""

    def begin() -> list[Generation]:
        return services.complete_all(**arguments)

    return await _begun(begin)


async def _begun(begin: Callable[[], list[Generation]]) -> list[Generation]:
    if stopping.begun.reached:  # it would be cut in the middle; told now, its caller asks another process
        raise stopping.Stopping
    starting = asyncio.ensure_future(in_thread(begin))
    try:
        return await asyncio.shield(starting)
    except asyncio.CancelledError:
        _background.add(starting)
        starting.add_done_callback(_stop_unseen)
        raise


def _stop_unseen(starting: asyncio.Future[list[Generation]]) -> None:
    _background.discard(starting)
    if not starting.cancelled() and starting.exception() is None:
        for generation in starting.result():
            stop_soon(str(generation.pk))


class _Renewals:
    """The leases that an event loop holds, renewed together: a thousand renewals of their own would be a thousand waits
    for a connection, and come late when they matter."""

    def __init__(self) -> None:
        # How many callers hold each generation: a retry may take over what its first call began.
        self.holders: Counter[str] = Counter()
        self._task: asyncio.Task[None] | None = None

    def add(self, generation_id: str) -> None:
        self.holders[generation_id] += 1
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._renew())

    def remove(self, generation_id: str) -> None:
        self.holders[generation_id] -= 1
        if self.holders[generation_id] <= 0:
            del self.holders[generation_id]
        if not self.holders and self._task is not None:
            self._task.cancel()
            self._task = None

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(lease.RENEW_EVERY_S)
            with suppress(redis.exceptions.RedisError):  # the next one may get through in time
                await lease.renew(list(self.holders))


_renewals: WeakKeyDictionary[asyncio.AbstractEventLoop, _Renewals] = WeakKeyDictionary()


def _held() -> _Renewals:
    return _renewals.setdefault(asyncio.get_running_loop(), _Renewals())


class Lease:
    """A caller's hold on a stateless generation: renewed until `end`; whoever ends the last one may stop it."""

    def __init__(self, generation_id: str) -> None:
        self._id = generation_id
        self._ended = False
        _held().add(generation_id)

    def end(self, *, stop: bool) -> None:
        """Safe to repeat. `stop`: its caller has gone before the answer's end."""
        if self._ended:
            return
        self._ended = True
        _held().remove(self._id)
        if stop:
            stop_soon(self._id)


def stop_soon(generation_id: str) -> None:
    """Cancel a stateless generation whose caller has gone, also from a task that is being cancelled itself.

    Nothing happens while someone else holds it, here or in another process. Should it not get through, the lease ends
    some seconds later and has the same effect.
    """
    if generation_id in _held().holders:
        return
    task = asyncio.create_task(_stop(generation_id))
    _background.add(task)
    task.add_done_callback(_background.discard)


async def share(generations: Iterable[Generation]) -> None:
    """Before following what a repeated request began: its first caller may be another process's."""
    for generation in generations:
        if generation.repeated and str(generation.pk) not in _held().holders:
            await lease.share(str(generation.pk))


def _stop_unless_shared(generation_id: str) -> None:
    if not lease.is_shared(generation_id):
        cancel.cancel(generation_id)


async def _stop(generation_id: str) -> None:
    try:
        await asyncio.to_thread(_stop_unless_shared, generation_id)
    except redis.exceptions.RedisError as error:
        log.warning("generation.not_stopped", generation=generation_id, error=type(error).__name__)
