"""Follow generations as the engine tells them: any process, any number of readers, from the start or a cursor.

A process (an event loop) has one Follower. Its reader tasks, one for each 256 logs, wait in XREAD for all of them at
once and fan out to subscribers. A subscriber first reads the log up to its end, then takes what its reader brings; when
it is too slow for its queue it reads from the log again. So nothing is lost or repeated, whatever anyone's pace, and
memory is bounded. It starts at its cursor, never at "now".

Does not know who may follow what: the caller has checked that.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any, TypeAlias, TypeVar
from weakref import WeakKeyDictionary

import redis.exceptions
import structlog

from chatapp.streaming import connection
from engine import protocol

log = structlog.get_logger(__name__)

LOGS_PER_READER = 256
QUEUE = 512  # events a subscriber may lag behind its reader before it reads the log instead
PAGE = 256
WAKE_TTL_S = 60
WAKE_AGAIN_S = 0.5
BLOCK_MS = int(connection.BLOCK_S * 1000)
HOLE_AFTER_S = 2.0  # what a worker needs to send again what Redis lost
GIVE_UP_AFTER_S = 30.0

Position: TypeAlias = tuple[int, int]  # a stream id: attempt, seq + 1
Item: TypeAlias = tuple[Position, protocol.AnyEvent]
Found = TypeVar("Found")

BEFORE_TEXT: Position = (1, 1)  # of `started`

UNREACHABLE = (redis.exceptions.ConnectionError, redis.exceptions.TimeoutError, OSError)
TAIL_LOST = "Redis restarted while this was being answered, and a part of the answer was lost."


class LogGone(Exception):
    """There is no log of this generation: it was never queued, or its log has expired and the database has the text."""


def _item(entry_id: bytes, event: bytes) -> Item:
    attempt, _, number = entry_id.partition(b"-")
    return (int(attempt), int(number)), protocol.decode_event(event)


def _parse(entries: list[Any]) -> list[Item]:
    return [_item(entry_id, fields[b"event"]) for entry_id, fields in entries]


def _as_it_comes(reply: Any, **options: Any) -> Any:
    """A reply of XREAD: [[key, [[id, [field, value, …]], …]], …]. redis-py would make dictionaries of it."""
    return reply


def _format(position: Position) -> str:
    return f"{position[0]}-{position[1]}"


class _Subscription:
    """A bounded queue between a reader and one subscriber. When it overflows it asks for the log instead."""

    def __init__(self, generation_id: str) -> None:
        self.generation_id = generation_id
        self._items: deque[Item] = deque()
        self._reread = False
        self._error: Exception | None = None
        self._ready = asyncio.Event()

    def push(self, items: list[Item]) -> None:
        if len(self._items) + len(items) > QUEUE:
            self.reread()
        elif not self._reread:
            self._items.extend(items)
            self._ready.set()

    def reread(self) -> None:
        self._items.clear()
        self._reread = True
        self._ready.set()

    def fail(self, error: Exception) -> None:
        self._error = error
        self._ready.set()

    async def take(self) -> list[Item] | None:
        """What came since the last call, waiting for something; None: read the log."""
        await self._ready.wait()
        self._ready.clear()
        if self._error is not None:
            raise self._error
        items, reread = list(self._items), self._reread
        self._items.clear()
        self._reread = False
        return None if reread else items


class _Log:
    __slots__ = ("key", "position", "reached", "subscriptions")

    def __init__(self, generation_id: str, position: Position) -> None:
        self.key = protocol.generation_key(generation_id).encode()
        self.position = position
        self.reached: str | bytes = _format(position)  # the same, as Redis has it
        self.subscriptions: set[_Subscription] = set()


class _Reader:
    """One connection that waits for up to LOGS_PER_READER logs, and for a wake-up when their set has changed."""

    def __init__(self, name: str, on_idle: Callable[[_Reader], None]) -> None:
        self._on_idle = on_idle
        self._wake_key = protocol.wake_key(name).encode()
        self._wake_id = b"0-0"
        self.logs: dict[str, _Log] = {}
        self._by_key: dict[bytes, _Log] = {}
        self._waiting = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._start(self._run())

    def _start(self, coroutine: Any) -> None:
        task = asyncio.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def add(self, subscription: _Subscription, position: Position) -> None:
        """Bring it all that comes behind `position`, which its subscriber has reached."""
        known = self.logs.get(subscription.generation_id)
        if known is None:
            known = self.logs[subscription.generation_id] = _Log(subscription.generation_id, position)
            self._by_key[known.key] = known
            if self._waiting:
                self._waiting = False  # one wake-up is enough for all that come before it arrives
                self._start(self._wake())
        elif known.position > position:
            subscription.reread()
        known.subscriptions.add(subscription)

    def remove(self, subscription: _Subscription) -> None:
        known = self.logs.get(subscription.generation_id)
        if known:
            known.subscriptions.discard(subscription)
            if not known.subscriptions:
                del self.logs[subscription.generation_id]
                del self._by_key[known.key]

    async def _wake(self) -> None:
        try:
            pipe = connection.async_redis().pipeline(transaction=False)
            pipe.xadd(self._wake_key, {"": ""}, maxlen=4, approximate=False)
            pipe.expire(self._wake_key, WAKE_TTL_S)
            await pipe.execute()
        except redis.exceptions.ResponseError:  # its memory is full, or its disk
            # Without a wake-up the reader looks after BLOCK_S by itself; this may be sooner.
            await asyncio.sleep(WAKE_AGAIN_S)
            if self._by_key and not self._waiting:
                self._start(self._wake())
        except UNREACHABLE:
            self._waiting = True  # the reader's own connection is gone too, and it starts again with all logs

    async def _run(self) -> None:
        client = connection.async_blocking_redis()
        client.set_response_callback("XREAD", _as_it_comes)
        try:
            while True:
                connection.heed_cancellation()
                try:
                    # It stays for as long as one blocked read when nobody follows any more: another may come soon.
                    if not await self._read(client) and not self.logs:
                        self._on_idle(self)
                        return
                except UNREACHABLE as error:
                    log.warning("follow.disconnected", error=str(error))
                    await self._reconnect(client)
        except Exception as error:
            # Nobody may wait for a reader that is no more.
            log.exception("follow.failed")
            self._on_idle(self)
            for known in self.logs.values():
                for subscription in known.subscriptions:
                    subscription.fail(error)
        finally:
            await client.aclose()

    async def _read(self, client: connection.Redis) -> bool:
        keys = [self._wake_key, *self._by_key]
        reached: list[str | bytes] = [self._wake_id, *(known.reached for known in self._by_key.values())]
        self._waiting = True
        reply = await client.execute_command("XREAD", "COUNT", PAGE, "BLOCK", BLOCK_MS, "STREAMS", *keys, *reached)
        self._waiting = False
        for key, entries in reply or ():
            followed = self._by_key.get(key)
            if followed is not None:
                self._bring(followed, entries)
            elif key == self._wake_key:
                self._wake_id = entries[-1][0]
        return bool(reply)

    def _bring(self, followed: _Log, entries: list[Any]) -> None:
        """Hand on what is new; it may have been asked for before this log's place was another one."""
        items = [_item(entry_id, fields[1]) for entry_id, fields in entries]
        if items[0][0] <= followed.position:
            items = [item for item in items if item[0] > followed.position]
        if items:
            followed.position, followed.reached = items[-1][0], entries[-1][0]
            for subscription in followed.subscriptions:
                subscription.push(items)

    async def _reconnect(self, client: connection.Redis) -> None:
        while True:
            await asyncio.sleep(0.2)
            try:
                await client.ping()
                break
            except UNREACHABLE:
                continue
        self._start(self._find_holes())

    async def _find_holes(self) -> None:
        """A log that ends before what we have read from it lost its tail: its readers must not wait for ever."""
        await asyncio.sleep(HOLE_AFTER_S)
        for generation_id, known in list(self.logs.items()):
            position = known.position  # before the log is asked for its end: while that takes, we may read on
            pipe = connection.async_redis().pipeline(transaction=False)
            pipe.xrevrange(protocol.generation_key(generation_id), count=1)
            pipe.hget(protocol.request_key(generation_id), "state")
            try:
                newest, state = await pipe.execute()
            except UNREACHABLE:
                return  # the reader notices as well, and comes back here
            end = _parse(newest)[0][0] if newest else (0, 0)
            if end >= position:
                continue
            # Where only its place in the queue is left it is answered anew, and perhaps in other words.
            if state is not None and (newest or position > BEFORE_TEXT):
                event = protocol.Interrupted(code="redis_restarted", message=TAIL_LOST, retryable=True)
                await connection.call_async(protocol.end(generation_id, event))
            for subscription in known.subscriptions:
                subscription.reread()


async def _patiently(read: Callable[[], Awaitable[Found]]) -> Found:
    """What it reads from Redis, which may be away for GIVE_UP_AFTER_S."""
    loop = asyncio.get_running_loop()
    give_up_at = loop.time() + GIVE_UP_AFTER_S
    while True:
        try:
            return await read()
        except UNREACHABLE:
            if loop.time() > give_up_at:
                raise
            await asyncio.sleep(0.2)


class Follower:
    """Use `follower()`."""

    def __init__(self) -> None:
        self._name = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
        self._count = 0
        self._readers: list[_Reader] = []

    async def follow(self, generation_id: str, after: int = -1) -> AsyncGenerator[protocol.AnyEvent]:
        """Every event with a seq above `after`, in order, as it comes; ends after the terminal event.

        Raises LogGone when there is no log, and redis.exceptions.ConnectionError when Redis stays away for
        GIVE_UP_AFTER_S. A log that was cut behind the cursor ends with its terminal event, whatever that one's seq.
        """
        # Numbers go on across attempts, so this place is right, or early, in every attempt.
        after = max(-1, min(after, 2**31))
        position: Position = (1, after + 1)
        last = after
        subscription = _Subscription(generation_id)
        reader: _Reader | None = None
        ahead = after >= 0  # perhaps of the log, whose events are all that the cursor can be checked by
        try:
            while True:
                more = True
                while more:
                    items, ended = await self._page(generation_id, position)
                    more = len(items) == PAGE
                    for item_position, event in items:
                        position, last, ahead = item_position, max(last, event.seq), False
                        if event.seq > after or isinstance(event, protocol.Terminal):
                            yield event
                        if isinstance(event, protocol.Terminal):
                            return
                    if ended is not None:
                        if ended.seq != after:
                            yield ended
                        return
                if ahead:
                    # A place that nothing will ever come behind would keep the ending from its reader, and from all
                    # who share that one's view of the log.
                    ahead = False
                    end = await self._end(generation_id)
                    if end < position:
                        position = end
                        continue
                connection.heed_cancellation()
                if reader is None:
                    reader = self._subscribe(subscription, position)
                while (new := await subscription.take()) is not None:
                    for item_position, event in new:
                        if item_position <= position:
                            continue
                        if event.seq > last + 1:
                            # The reader had come further before the log lost its tail, so what was said again since
                            # did not come by here. It is in the log.
                            subscription.reread()
                            break
                        position, last = item_position, max(last, event.seq)
                        if event.seq > after or isinstance(event, protocol.Terminal):
                            yield event
                        if isinstance(event, protocol.Terminal):
                            return
        finally:
            if reader is not None:
                reader.remove(subscription)

    async def _page(self, generation_id: str, position: Position) -> tuple[list[Item], protocol.AnyTerminal | None]:
        """Up to PAGE events behind `position`; where an ended generation has none left, its terminal event."""
        key = protocol.generation_key(generation_id)

        async def read() -> tuple[list[Item], protocol.AnyTerminal | None]:
            pipe = connection.async_redis().pipeline(transaction=False)
            pipe.hget(protocol.request_key(generation_id), "state")
            pipe.xrange(key, f"({_format(position)}", count=PAGE)
            state, entries = await pipe.execute()
            ended: protocol.AnyTerminal | None = None
            if not entries and (state is None or state.decode() not in protocol.LIVE_STATES):
                newest = _parse(await connection.async_redis().xrevrange(key, count=1))
                if not newest or not isinstance(newest[0][1], protocol.Terminal):
                    raise LogGone(f"There is no log of generation {generation_id}.")
                ended = newest[0][1]
            return _parse(entries), ended

        return await _patiently(read)

    async def _end(self, generation_id: str) -> Position:
        """The place of the newest event that the log has."""

        async def read() -> Position:
            newest = _parse(await connection.async_redis().xrevrange(protocol.generation_key(generation_id), count=1))
            return newest[0][0] if newest else (0, 0)

        return await _patiently(read)

    def _subscribe(self, subscription: _Subscription, position: Position) -> _Reader:
        reader = next((r for r in self._readers if subscription.generation_id in r.logs), None)
        reader = reader or next((r for r in self._readers if len(r.logs) < LOGS_PER_READER), None)
        if reader is None:
            self._count += 1
            reader = _Reader(f"{self._name}-{self._count}", self._readers.remove)
            self._readers.append(reader)
        reader.add(subscription, position)
        return reader


_followers: WeakKeyDictionary[asyncio.AbstractEventLoop, Follower] = WeakKeyDictionary()


def follower() -> Follower:
    """The running event loop's Follower."""
    return _followers.setdefault(asyncio.get_running_loop(), Follower())
