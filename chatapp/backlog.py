"""How many tasks may wait for Celery: without a worker beat alone would add a hundred a minute, and Redis evicts none.

Beyond MOST_WAITING a task is not sent, as if the broker were away, which every sender has to bear: what matters is in
rows, and beat's own tasks find them once there is room again.
"""

from __future__ import annotations

import time
from typing import Any

import redis.exceptions
from celery import Task
from django.conf import settings
from kombu.exceptions import OperationalError

from chatapp.streaming import connection

QUEUE = "celery"
MOST_WAITING = 5000
LOOK_EVERY_S = 1.0

_looked_at = 0.0
_waiting = 0


def waiting() -> int:
    """Tasks that wait for a worker, looked at once in LOOK_EVERY_S; 0 where Redis does not say."""
    global _looked_at, _waiting
    now = time.monotonic()
    if now - _looked_at >= LOOK_EVERY_S:
        _looked_at = now
        try:
            _waiting = int(connection.sync_redis(settings.OCTAVO_CELERY_DATABASE).llen(QUEUE))
        except redis.exceptions.RedisError:
            _waiting = 0
    return _waiting


class BoundedTask(Task):
    abstract = True

    def apply_async(self, *args: Any, **options: Any) -> Any:
        """Raises kombu's OperationalError where too many wait, as where there is no broker."""
        if not self.app.conf.task_always_eager and waiting() >= MOST_WAITING:
            raise OperationalError(f"{MOST_WAITING:,} tasks wait for Celery already")
        return super().apply_async(*args, **options)
