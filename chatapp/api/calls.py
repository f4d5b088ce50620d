"""One generation on its way to one HTTP caller: its events, one at a time, with an end when the caller's rights end.

Used by every address that answers with what an engine says, streamed or whole. A stateless caller holds the lease of
its generation; when it leaves before the end, nobody else can want the rest, and the generation is stopped.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from chatapp import stopping
from chatapp.api.answering import Lease, stop_soon
from chatapp.api.following import events
from chatapp.api.guard import Watch, guard
from chatapp.chat.models import Generation
from chatapp.stopping import Stopping
from chatapp.tenants.access import Access, BadKey
from engine import protocol

CANCEL_AGAIN_S = 0.2
KEY_ENDED = "What this API key may do has changed or ended meanwhile. Ask an admin of your team."


class Call:
    """`stateless`: nobody but this caller can ever read the answer. `after`: the last seq that the caller has."""

    def __init__(self, access: Access, generation: Generation, *, stateless: bool = True, after: int = -1) -> None:
        self.access = access
        self.key = str(generation.pk)
        self.ended = False
        self._stateless = stateless
        self._events = events(access, self.key, after)
        self._next: asyncio.Task[protocol.AnyEvent] | None = None
        self._lease: Lease | None = None
        self._key_ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._stopping: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Meanwhile `event` raises BadKey once the key is revoked, expired, or not for where it is used from, and
        Stopping once this process has no more time."""

        def end() -> None:
            if not self._key_ended.done():
                self._key_ended.set_result(None)

        watch = Watch(self.access, None, end)

        def stop() -> None:
            if not self._stopping.done():
                self._stopping.set_result(None)

        guard().add(watch)
        stay = stopping.over.call(stop)
        try:
            yield
        finally:
            stay()
            guard().remove(watch)

    def hold(self) -> None:
        """Renew the lease from now on, until `release` or `leave`."""
        if self._stateless:
            self._lease = Lease(self.key)

    def release(self) -> None:
        """Somebody else holds it from here on, or nobody: then it ends by itself."""
        if self._lease is not None:
            self._lease.end(stop=False)

    async def event(self, timeout_s: float | None = None) -> protocol.AnyEvent | None:
        """The next event; None when none came in time. Raises BadKey once the key has ended, Stopping."""
        if self._next is None:
            self._next = asyncio.create_task(self._events.__anext__())
        either: set[asyncio.Future[Any]] = {self._next, self._key_ended, self._stopping}
        await asyncio.wait(either, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        if self._key_ended.done():
            raise BadKey(KEY_ENDED)
        if not self._next.done():
            if self._stopping.done():
                raise Stopping
            return None
        event = self._next.result()
        self._next = None
        self.ended = isinstance(event, protocol.Terminal)
        return event

    async def leave(self) -> None:
        """The caller has everything, or has gone. Safe to repeat."""
        self.release()
        if not self.ended and self._stateless:
            stop_soon(self.key)
        self.ended = True
        if self._next is not None:
            waiting, self._next = self._next, None
            await cancelled(waiting)
        await self._events.aclose()


async def cancelled(task: asyncio.Task[Any]) -> None:
    """End it, whatever comes of it.

    Python 3.11's wait_for, which redis-py sends with, loses a cancellation that arrives just as it is done: without a
    second one the task would wait for an event that may never come, and its request with it.
    """
    while not task.done():
        task.cancel()
        await asyncio.wait([task], timeout=CANCEL_AGAIN_S)
    if not task.cancelled():
        task.exception()
