"""/healthz says that this process answers; /readyz that a message sent now would be answered, and if not, why."""

from __future__ import annotations

import redis.exceptions
from django.db import Error as DatabaseError
from django.db import connection
from django.http import HttpRequest, JsonResponse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from chatapp.streaming import workers
from chatapp.streaming.connection import sync_redis


@require_safe
@never_cache
def healthz(request: HttpRequest) -> JsonResponse:
    return JsonResponse({"status": "ok"})


@require_safe
@never_cache
def readyz(request: HttpRequest) -> JsonResponse:
    """200, or 503 with the parts that are missing: database, redis, worker."""
    missing = []
    if not _database():
        missing.append("database")
    if not _redis():
        missing += ["redis", "worker"]
    elif not _worker():
        missing.append("worker")
    response = JsonResponse(
        {"status": "unavailable" if missing else "ok", "missing": missing}, status=503 if missing else 200
    )
    # Else Django logs an error whenever somebody asks while we start.
    response._has_been_logged = True  # type: ignore[attr-defined]
    return response


def _database() -> bool:
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1")
    except DatabaseError:
        return False
    return True


def _redis() -> bool:
    try:
        sync_redis().ping()
    except (redis.exceptions.RedisError, OSError):
        return False
    return True


def _worker() -> bool:
    try:
        return any(worker.healthy and not worker.draining for worker in workers.live())
    except (redis.exceptions.RedisError, OSError):
        return False
