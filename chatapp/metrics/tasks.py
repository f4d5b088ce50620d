"""Counts Celery's tasks. Connected in every process that has the Celery application; only workers run tasks."""

from __future__ import annotations

import time
from typing import Any

from celery.signals import task_postrun, task_prerun, worker_init

from chatapp.metrics import figures

_began: dict[str, float] = {}


@worker_init.connect
def _this_is_celery(**_: Any) -> None:
    figures.this_is("celery")


@task_prerun.connect
def _begins(task_id: str, **_: Any) -> None:
    _began[task_id] = time.monotonic()


@task_postrun.connect
def _ends(task_id: str, task: Any, state: str | None = None, **_: Any) -> None:
    name = task.name.removeprefix("chatapp.")
    began = _began.pop(task_id, None)
    if began is not None:
        figures.task_seconds.labels(name).observe(time.monotonic() - began)
    figures.tasks.labels(name, (state or "unknown").lower()).inc()
    if state == "SUCCESS":
        figures.task_success.labels(name).set_to_current_time()
