"""Connections to Redis for the product, and calls of the wire's function library.

Owns one synchronous client a process and one asynchronous client an event loop. Promises that the library is loaded
before a call of it returns. Knows the URL from the settings, and nothing of what the functions do.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary

import redis
import redis.asyncio
import redis.asyncio.retry
import redis.asyncio.sentinel
import redis.backoff
import redis.exceptions
import redis.retry
import redis.sentinel
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from redis._parsers.base import BaseParser

from chatapp.metrics import figures
from chatapp.settings import redis_urls
from engine import protocol

# A server that has not answered for so long is away. Whoever waits behind a call hears of it then, and not after
# several tries of the same; and for REST_S nobody else waits for it again.
ANSWER_S = 3.0
REST_S = 2.0
# For one of the connections below, while a thousand ask at once.
POOL_S = 5.0
# RESP2 on purpose: redis-py gives XREAD another shape under RESP3. Its default retries would hold a web request for
# most of a minute; who reads blocked must hear of a lost connection, to check what the server still has.
OPTIONS: dict[str, Any] = {
    "protocol": 2, "health_check_interval": 15, "socket_timeout": ANSWER_S, "socket_connect_timeout": ANSWER_S
}  # fmt: skip
RETRIES = 3
CONNECTIONS = 16
# A blocked read answers after BLOCK_S at the latest; a socket silent for longer than that is dead.
BLOCK_S = 10.0
BLOCKING: dict[str, Any] = {"protocol": 2, "socket_timeout": BLOCK_S + 5}

# A primary that is made a replica ends what waits on it with this; for us it is a lost connection, as it soon will be.
BaseParser.EXCEPTION_CLASSES["UNBLOCKED"] = redis.exceptions.ConnectionError

AWAY = (redis.exceptions.RedisError, OSError)
"""What a call raises while Redis cannot be used."""

# redis-py annotates a command's reply with all that any protocol, client and option might give; ours are pinned.
Redis: TypeAlias = Any

_lock = threading.Lock()
_loaded: set[str] = set()
_clients: dict[str, Redis] = {}
_async_clients: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, Redis]] = WeakKeyDictionary()


def _refuse_cluster(info: dict[str, Any]) -> None:
    if int(info.get("cluster_enabled", 0)):
        raise ImproperlyConfigured(
            "REDIS_URL points at a Redis Cluster. One call moves a request between keys of many tenants and workers, "
            "which a cluster cannot do atomically. Use one Redis or Valkey server, or sentinel://."
        )


def _backoff() -> redis.backoff.AbstractBackoff:
    return redis.backoff.ExponentialBackoff(cap=0.5, base=0.05)


class _Silence:
    """That a server did not answer a moment ago. One for all connections of a client."""

    def __init__(self) -> None:
        self._until = 0.0

    def heed(self) -> None:
        if time.monotonic() < self._until:
            raise redis.exceptions.TimeoutError("Redis did not answer a moment ago.")

    def note(self) -> None:
        self._until = time.monotonic() + REST_S

    def __deepcopy__(self, memo: Any) -> _Silence:
        return self  # redis-py copies a client's options for each of its connections


class _Retry(redis.retry.Retry):
    """Tries again where a connection broke, and not where a server is silent."""

    def __init__(self, retries: int, silence: _Silence) -> None:
        super().__init__(_backoff(), retries, (redis.exceptions.ConnectionError,))
        self._silence = silence

    def call_with_retry(self, *args: Any, **kwargs: Any) -> Any:
        self._silence.heed()
        try:
            return super().call_with_retry(*args, **kwargs)
        except redis.exceptions.TimeoutError:
            self._silence.note()
            raise


class _AsyncRetry(redis.asyncio.retry.Retry):
    """As `_Retry`."""

    def __init__(self, retries: int, silence: _Silence) -> None:
        super().__init__(_backoff(), retries, (redis.exceptions.ConnectionError,))
        self._silence = silence

    async def call_with_retry(self, *args: Any, **kwargs: Any) -> Any:
        self._silence.heed()
        try:
            return await super().call_with_retry(*args, **kwargs)
        except redis.exceptions.TimeoutError:
            self._silence.note()
            raise


def _new_client(url: str, retries: int, **options: Any) -> Redis:
    options["retry"] = _Retry(retries, _Silence())
    parts = protocol.sentinel(url)
    if parts is None:
        return redis.Redis.from_url(url, **options)
    sentinels, master, db, password = parts
    return redis.sentinel.Sentinel(sentinels, sentinel_kwargs=protocol.SENTINEL_WAIT).master_for(
        master, db=db, password=password, **options
    )


def _new_async_client(url: str, retries: int, **options: Any) -> Redis:
    options["retry"] = _AsyncRetry(retries, _Silence())
    parts = protocol.sentinel(url)
    if parts is None:
        # A thousand sockets that begin to follow at once share these connections, instead of opening one each.
        options.update(max_connections=CONNECTIONS, timeout=POOL_S)
        pool = redis.asyncio.BlockingConnectionPool.from_url(url, **options)
        return redis.asyncio.Redis.from_pool(pool)
    sentinels, master, db, password = parts
    return redis.asyncio.sentinel.Sentinel(sentinels, sentinel_kwargs=protocol.SENTINEL_WAIT).master_for(
        master, db=db, password=password, **options
    )


def sync_redis(database: int | None = None) -> Redis:
    """The process's client; safe in threads. `database`: of another one of the server's databases, by its number."""
    url = settings.REDIS_URL if database is None else redis_urls.database(settings.REDIS_URL, database)
    with _lock:
        if url not in _clients:
            _clients[url] = _new_client(url, RETRIES, **OPTIONS)
        return _clients[url]


def blocking_redis() -> Redis:
    """A new client for reads that block up to BLOCK_S; the caller closes it."""
    return _new_client(settings.REDIS_URL, 0, **BLOCKING)


def hasty_redis(within_s: float) -> Redis:
    """A new client that waits so long for an answer and tries once; the caller closes it."""
    return _new_client(
        settings.REDIS_URL, 0, protocol=2, socket_timeout=within_s, socket_connect_timeout=within_s
    )  # fmt: skip


def async_redis() -> Redis:
    """The running event loop's client."""
    clients = _async_clients.setdefault(asyncio.get_running_loop(), {})
    url = settings.REDIS_URL
    if url not in clients:
        clients[url] = _new_async_client(url, RETRIES, **OPTIONS)
    return clients[url]


def async_blocking_redis() -> Redis:
    """A new client for reads that block up to BLOCK_S; the caller closes it."""
    return _new_async_client(settings.REDIS_URL, 0, **BLOCKING)


def load_library(client: Redis) -> None:
    """Bring the server this code's function library, unless it has a newer one; refuse a cluster. A server that is full
    has it already, or the call that follows will say that it does not: a process that starts then must still be able to
    end work."""
    _refuse_cluster(client.info("cluster"))
    with suppress(redis.exceptions.OutOfMemoryError):
        client.transaction(protocol.load_library, protocol.LIBRARY_KEY)


async def load_library_async(client: Redis) -> None:
    _refuse_cluster(await client.info("cluster"))

    async def load(pipe: Any) -> None:
        """protocol.load_library, where what is asked has to be awaited."""
        build, present = await pipe.get(protocol.LIBRARY_KEY), await pipe.function_list(protocol.LIBRARY)
        if not protocol.library_is_newer(build, present):
            pipe.multi()
            pipe.function_load(protocol.LIBRARY_SOURCE.read_text(), replace=True)
            pipe.set(protocol.LIBRARY_KEY, protocol.LIBRARY_BUILD)

    with suppress(redis.exceptions.OutOfMemoryError):
        await client.transaction(load, protocol.LIBRARY_KEY)


def _is_missing(error: redis.exceptions.ResponseError) -> bool:
    """Whether a server was put in place of the one that had our library."""
    return "function not found" in str(error).lower()


def call(call: protocol.Call) -> Any:
    """Run a function of the library. Every one of them that the product calls may be repeated, so retries are safe."""
    client, url = sync_redis(), settings.REDIS_URL
    if url not in _loaded:
        load_library(client)
        _loaded.add(url)
    began = time.monotonic()
    try:
        return client.fcall(*call)
    except redis.exceptions.ResponseError as error:
        if not _is_missing(error):
            raise
    finally:
        figures.redis_took(time.monotonic() - began)
    load_library(client)
    return client.fcall(*call)


def heed_cancellation() -> None:
    """Raise a cancellation of this task that got lost: Python 3.11's wait_for, with which redis-py sends, swallows one
    that arrives just as it is done. For loops that would otherwise go on, or wait, for ever."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


async def call_async(call: protocol.Call) -> Any:
    return (await calls_async([call]))[0]


async def calls_async(calls: Sequence[protocol.Call]) -> list[Any]:
    """Several calls in one round trip. Raises the first error among them; the others have been made."""
    client, url = async_redis(), settings.REDIS_URL
    if url not in _loaded:
        await load_library_async(client)
        _loaded.add(url)
    began = time.monotonic()
    try:
        return await _all(client, calls)
    except redis.exceptions.ResponseError as error:
        if not _is_missing(error):
            raise
    finally:
        figures.redis_took(time.monotonic() - began)
    await load_library_async(client)
    return await _all(client, calls)


async def _all(client: Redis, calls: Sequence[protocol.Call]) -> list[Any]:
    if len(calls) == 1:
        return [await client.fcall(*calls[0])]
    pipe = client.pipeline(transaction=False)
    for call in calls:
        pipe.fcall(*call)
    replies: list[Any] = await pipe.execute()
    return replies
