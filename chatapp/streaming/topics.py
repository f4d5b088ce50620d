"""What changes for somebody, told to the sockets of all processes as it happens: Redis's publish and subscribe.

A process (an event loop) has one Listener, on one connection of its own, for all of its sockets. Nothing is kept: who
listens is told when that has begun, and again whenever something may have been missed (a lost connection), and then has
to look for itself. So nothing here grows with what is told, and no token comes by here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

import msgspec
import redis.exceptions
import structlog

from chatapp.streaming import connection

log = structlog.get_logger(__name__)

AGAIN_S = 0.5
# A connection that has said nothing for so long is asked; without an answer in as much time it is taken for lost.
QUIET_S = 10.0

Heard = Callable[[dict[str, Any] | None], None]
"""Called with what is told; with None when from here on all is told, and what was before has to be looked up."""


def channel(tenant: object, principal: str) -> str:
    """What is told to one person or key of a tenant."""
    return f"octavo:topics:{tenant}:{principal}"


def tell(tenant: object, principal: str, what: dict[str, Any]) -> None:
    """Tell whoever listens now. Without Redis nobody hears it, and they are told to look when it is back."""
    try:
        connection.sync_redis().publish(channel(tenant, principal), msgspec.json.encode(what))
    except redis.exceptions.RedisError as error:
        log.warning("topics.not_told", error=type(error).__name__)


class Listener:
    """Use `listener()`."""

    def __init__(self) -> None:
        self._heard: dict[str, set[Heard]] = {}
        self._live: set[str] = set()
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def listen(self, name: str, heard: Heard) -> Callable[[], None]:
        """Call `heard` with all that is told on the channel `name`; returns what ends it. It must not wait."""
        listeners = self._heard.setdefault(name, set())
        listeners.add(heard)
        if name in self._live:
            heard(None)
        self._changed.set()
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run())

        def end() -> None:
            listeners.discard(heard)
            if not listeners and self._heard.get(name) is listeners:
                del self._heard[name]
                self._changed.set()

        return end

    async def _run(self) -> None:
        while self._heard:
            connection.heed_cancellation()
            client = connection.async_blocking_redis()
            try:
                async with client.pubsub() as subscriptions:
                    await self._serve(subscriptions)
            except (redis.exceptions.ConnectionError, redis.exceptions.TimeoutError, OSError) as error:
                log.warning("topics.disconnected", error=type(error).__name__)
                await asyncio.sleep(AGAIN_S)
            finally:
                self._live.clear()
                await client.aclose()

    async def _serve(self, subscriptions: Any) -> None:
        """Returns when nobody listens any more."""
        asked: set[str] = set()
        reading: asyncio.Task[None] | None = None
        try:
            while self._heard:
                connection.heed_cancellation()
                self._changed.clear()
                wanted = set(self._heard)
                if new := wanted - asked:
                    await subscriptions.subscribe(*new)
                if old := asked - wanted:
                    await subscriptions.unsubscribe(*old)
                    self._live -= old
                asked = wanted
                reading = reading or asyncio.create_task(self._read(subscriptions))
                changing = asyncio.create_task(self._changed.wait())
                await asyncio.wait({reading, changing}, return_when=asyncio.FIRST_COMPLETED)
                changing.cancel()
                if reading.done():
                    reading.result()
                    reading = None
        finally:
            if reading is not None:
                reading.cancel()

    async def _read(self, subscriptions: Any) -> None:
        """Until something has come, or nothing for QUIET_S, and then not even the answer to a question."""
        message = await subscriptions.get_message(ignore_subscribe_messages=False, timeout=QUIET_S)
        if message is None:
            await subscriptions.ping()
            message = await subscriptions.get_message(ignore_subscribe_messages=False, timeout=QUIET_S)
            if message is None:
                raise redis.exceptions.TimeoutError("the subscription's connection has gone quiet")
        self._take(message)

    def _take(self, message: dict[str, Any]) -> None:
        if message["type"] not in ("subscribe", "message"):
            return
        name = message["channel"].decode()
        if message["type"] == "subscribe":
            self._live.add(name)
            what = None
        else:
            what = msgspec.json.decode(message["data"])
        for heard in list(self._heard.get(name, ())):
            try:
                heard(what)
            except Exception:  # as what an engine of another version says; all the others hear by this connection, too
                log.exception("topics.not_heard", channel=name)


_listeners: WeakKeyDictionary[asyncio.AbstractEventLoop, Listener] = WeakKeyDictionary()


def listener() -> Listener:
    """The running event loop's Listener."""
    return _listeners.setdefault(asyncio.get_running_loop(), Listener())
