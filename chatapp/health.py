"""/healthz says that this process answers; /readyz that a message sent now would be answered, and if not, why.

Both are 503 from when the process is told to end: a proxy then sends new connections to another one. Neither waits for
longer than ANSWER_S for a Redis that is silent.
"""

from __future__ import annotations

from django.conf import settings
from django.db import Error as DatabaseError
from django.db import connection
from django.http import HttpRequest, JsonResponse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from chatapp.stopping import begun
from chatapp.streaming import workers
from chatapp.streaming.connection import AWAY, sync_redis


@require_safe
@never_cache
def healthz(request: HttpRequest) -> JsonResponse:
    return stopping() or JsonResponse({"status": "ok"})


@require_safe
@never_cache
def readyz(request: HttpRequest) -> JsonResponse:
    """200, or 503 with the parts that are missing: database, redis, worker.

    Of several models the ones without a worker are named ("worker:large"), and the status is "degraded" with 200: a
    proxy must not take everyone's chat away because one model is being loaded.
    """
    if (going := stopping()) is not None:
        return going
    missing = []
    if not _database():
        missing.append("database")
    alive = _models_alive() if _redis() else None
    if alive is None:
        missing += ["redis", "worker"]
    elif not alive & {*settings.OCTAVO_MODEL_NAMES}:
        missing.append("worker")
    degraded = [] if missing or alive is None else [name for name in settings.OCTAVO_MODEL_NAMES if name not in alive]
    status = "unavailable" if missing else "degraded" if degraded else "ok"
    return _quietly(
        JsonResponse(
            {"status": status, "missing": [*missing, *(f"worker:{name}" for name in degraded)]},
            status=503 if missing else 200,
        )
    )


def stopping() -> JsonResponse | None:
    """What is said while this process ends."""
    return _quietly(JsonResponse({"status": "stopping", "missing": []}, status=503)) if begun.reached else None


def _quietly(response: JsonResponse) -> JsonResponse:
    """Else Django logs an error whenever somebody asks while we start."""
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
    except AWAY:
        return False
    return True


def _models_alive() -> set[str] | None:
    """Names of the models that some worker serves and goes on to serve; None when Redis has just gone."""
    try:
        return {worker.model for worker in workers.live() if worker.healthy and not worker.draining}
    except AWAY:
        return None
