"""One REDIS_URL, spelled as each library wants it. Every use has its own database number on the same server.

Forms: redis://, rediss://, unix:///path, and sentinel://[:password@]host:port,host:port/master/db.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import quote, urlsplit, urlunsplit

import redis.exceptions
from redis.backoff import NoBackoff
from redis.retry import Retry

from engine import protocol

CACHE_S = 2.0


def database(url: str, number: int) -> str:
    """The same server, another database: ?db= of a unix socket, the last part of the path elsewhere."""
    if url.startswith("unix://"):
        return f"{url.partition('?')[0]}?db={number}"
    if url.startswith("sentinel://"):
        server = url if protocol.sentinel(url) and url.count("/") == 3 else url.rpartition("/")[0]
        return f"{server}/{number}"
    return urlunsplit(urlsplit(url)._replace(path=f"/{number}"))


def check(url: str) -> None:
    """Raises ValueError where no library could make anything of it."""
    if protocol.sentinel(url) is None:
        _ = urlsplit(url).port  # read, and refused, only when it is asked for


def cache(url: str, number: int) -> dict[str, Any]:
    backend = "chatapp.cache.SentinelCache" if protocol.sentinel(url) else "django.core.cache.backends.redis.RedisCache"
    # In a list, since Django splits a text at its commas.
    found: dict[str, Any] = {"BACKEND": backend, "LOCATION": [database(url, number)], "KEY_PREFIX": "octavo"}
    if not protocol.sentinel(url):
        # By itself redis-py would wait for a silent server for twenty seconds, and a login with it.
        wait = {"socket_timeout": CACHE_S, "socket_connect_timeout": CACHE_S}
        found["OPTIONS"] = {**wait, "retry": Retry(NoBackoff(), 1, (redis.exceptions.ConnectionError,))}
    return found


def celery_broker(url: str, number: int) -> tuple[str, dict[str, Any]]:
    """The broker's URL and its transport options."""
    if url.startswith("unix://"):
        return f"redis+socket://{urlsplit(url).path}?virtual_host={number}", {}
    parts = protocol.sentinel(url)
    if parts is None:
        return database(url, number), {}
    sentinels, master, _, password = parts
    login = f":{quote(password, safe='')}@" if password else ""
    return ";".join(f"sentinel://{login}{host}:{port}/{number}" for host, port in sentinels), {"master_name": master}
