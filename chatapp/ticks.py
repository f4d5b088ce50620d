"""Signs of life of the background processes, and what failed in them: for the operators' dashboard.

Beat notes every task that it sends, a Celery worker every task that has ended, and each that failed by its name and the
error's: never arguments, never a message. All of it in small bounded streams, whose ids carry Redis's own time. A sign
that cannot be left is not left: no task fails because of it.
"""

from __future__ import annotations

import time
from typing import Any

from celery import signals

from chatapp.streaming import connection

BEAT = "octavo:tick:beat"
WORKER = "octavo:tick:celery"
FAILED = "octavo:tasks:failed"
EVERY_S = 1.0
MOST_FAILED = 100
# A failure is of interest for some days; a stopped product leaves nothing behind for ever.
KEPT_S = 7 * 24 * 3600

_noted: dict[str, float] = {}


def note(key: str) -> None:
    """At most once in EVERY_S from this process."""
    now = time.monotonic()
    if now - _noted.get(key, -EVERY_S) < EVERY_S:
        return
    _noted[key] = now
    _add(key, {"at": 1}, 1)


def note_failure(task: str, error: BaseException | None) -> None:
    _add(FAILED, {"task": task, "error": type(error).__name__}, MOST_FAILED)


def _add(key: str, fields: dict[str, Any], most: int) -> None:
    try:
        pipe = connection.sync_redis().pipeline(transaction=False)
        pipe.xadd(key, fields, maxlen=most)
        pipe.expire(key, KEPT_S)
        pipe.execute()
    except connection.AWAY:
        return


def _beat_begins(**_: Any) -> None:
    signals.after_task_publish.connect(_sent, weak=False, dispatch_uid="octavo-sent")


def _worker_begins(**_: Any) -> None:
    signals.task_postrun.connect(_done, weak=False, dispatch_uid="octavo-done")
    signals.task_failure.connect(_failed, weak=False, dispatch_uid="octavo-failed")


def _sent(**_: Any) -> None:
    note(BEAT)


def _done(**_: Any) -> None:
    note(WORKER)


def _failed(sender: Any = None, exception: BaseException | None = None, **_: Any) -> None:
    note_failure(getattr(sender, "name", str(sender)), exception)


def install() -> None:
    """Harmless in every process: only where beat or a worker begins is anything noted from then on."""
    signals.beat_init.connect(_beat_begins, weak=False, dispatch_uid="octavo-beat")
    signals.worker_init.connect(_worker_begins, weak=False, dispatch_uid="octavo-worker")
