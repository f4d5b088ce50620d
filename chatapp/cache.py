"""Django's Redis cache on the master that sentinels name."""

from __future__ import annotations

from typing import Any

from django.core.cache.backends.redis import RedisCache, RedisCacheClient
from redis.sentinel import Sentinel

from engine import protocol


class SentinelCacheClient(RedisCacheClient):
    def __init__(self, servers: list[str], **options: Any) -> None:
        super().__init__(servers, **options)
        self._url = servers[0]

    def get_client(self, key: Any = None, *, write: bool = False) -> Any:
        parts = protocol.sentinel(self._url)
        assert parts is not None, "only for sentinel:// addresses"
        sentinels, master, db, password = parts
        if not hasattr(self, "_master"):
            # It asks the sentinels again whenever it connects, so a fail-over needs nothing of us.
            self._master = Sentinel(sentinels, sentinel_kwargs=protocol.SENTINEL_WAIT).master_for(
                master, db=db, password=password
            )
        return self._master


class SentinelCache(RedisCache):
    def __init__(self, server: Any, params: dict[str, Any]) -> None:
        super().__init__(server, params)
        self._class = SentinelCacheClient
