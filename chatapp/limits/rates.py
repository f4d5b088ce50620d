"""Requests and tokens a minute, counted in Redis by the library `limits`, so that all web processes agree.

A sliding window of a minute for each subject (a tenant, a person, a key): two counters, the former weighted by what is
left of it. Tokens are charged by an estimate as a request begins, and corrected when it has ended, as long as its
window is the current one; what fell into the former one is on its way out anyway.

Without Redis nothing is counted and nothing refused: no request gets to an engine without it either, and how many may
wait and what they may cost is held in the database.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from threading import Lock

import redis.exceptions
import structlog
from limits import RateLimitItemPerMinute
from limits.storage import RedisStorage

from chatapp.streaming import connection

log = structlog.get_logger(__name__)

MINUTE = 60.0
CLOCKS_DIFFER_S = 1.0
_storages: dict[int, RedisStorage] = {}
_lock = Lock()


@dataclass(frozen=True)
class Rate:
    """One limit a minute of one subject. `what` is "requests" or "tokens"."""

    what: str
    tenant: str
    subject: str
    amount: int

    @property
    def key(self) -> str:
        return RateLimitItemPerMinute(self.amount, namespace="octavo").key_for(self.tenant, self.subject, self.what)


@dataclass(frozen=True)
class Standing:
    """How a rate stands: what is left of it now, and the seconds until all of it is there again."""

    what: str
    limit: int
    remaining: int
    reset_s: float


def _storage() -> RedisStorage:
    """On the process's own connections, which know sentinels and sockets."""
    client = connection.sync_redis()
    with _lock:
        if id(client) not in _storages:
            _storages.clear()
            _storages[id(client)] = RedisStorage(
                "redis://", connection_pool=client.connection_pool, key_prefix="octavo:rates"
            )
        return _storages[id(client)]


@contextmanager
def _without_redis_unlimited() -> Iterator[None]:
    try:
        yield
    except redis.exceptions.RedisError as error:
        log.warning("limits.not_counted", error=type(error).__name__)


@dataclass(frozen=True)
class _Window:
    former: int
    former_ends_s: float
    current: int
    current_ends_s: float  # a minute longer than the window itself, as it is the former one then

    @property
    def count(self) -> int:
        return math.floor(self.former * self.former_ends_s / MINUTE) + self.current

    @property
    def reset_s(self) -> float:
        if self.current > 0:
            return self.current_ends_s
        return self.former_ends_s if self.former > 0 else 0.0

    def wait_s(self, limit: int, cost: int) -> float:
        """When `cost` will fit, if nobody else asks."""
        room = limit - cost
        if self.count <= room:
            return 0.0
        if self.current <= room and self.former > 0:
            return max(0.0, self.former_ends_s - (room - self.current) * MINUTE / self.former)
        into_next = MINUTE * (1 - room / self.current) if self.current > 0 else 0.0
        return max(0.0, self.current_ends_s - MINUTE + into_next)


def _window(rate: Rate) -> _Window:
    return _Window(*_storage().get_sliding_window(rate.key, int(MINUTE)))


def _acquire(rate: Rate, cost: int) -> bool:
    return _storage().acquire_sliding_window_entry(rate.key, rate.amount, int(MINUTE), cost)


def take(rates: Iterable[Rate], cost: int) -> tuple[Rate, float] | None:
    """Charge all of them, or none: then the one that is used up, and the seconds until it will do."""
    taken: list[Rate] = []
    with _without_redis_unlimited():
        for rate in rates:
            if not _acquire(rate, cost):
                for former in taken:
                    _acquire(former, -cost)
                # At least a second: who comes back at once is refused again.
                return rate, max(1.0, _window(rate).wait_s(rate.amount, cost))
            taken.append(rate)
    return None


def correct(rate: Rate, by: int, charged_at: float) -> None:
    """`by` tokens more or less than was charged at `charged_at` (seconds of the epoch)."""
    with suppress(redis.exceptions.RedisError):
        window = _window(rate)
        began = time.time() - (2 * MINUTE - window.current_ends_s) - CLOCKS_DIFFER_S
        if by < 0 and (window.current_ends_s <= 0 or charged_at < began):
            return
        by = max(by, -window.current)
        if by:
            # What is more than estimated is charged up to the limit: beyond it the library charges nothing at all.
            _acquire(rate, min(by, max(0, rate.amount - window.count)))


def standings(rates: Iterable[Rate]) -> tuple[Standing, ...]:
    """How they stand; of each kind the one with least left. Nothing without Redis."""
    tightest: dict[str, Standing] = {}
    with _without_redis_unlimited():
        for rate in rates:
            window = _window(rate)
            standing = Standing(rate.what, rate.amount, max(0, rate.amount - window.count), window.reset_s)
            known = tightest.get(rate.what)
            if known is None or standing.remaining < known.remaining:
                tightest[rate.what] = standing
    return tuple(tightest.values())
