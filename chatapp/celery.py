"""The Celery application: `celery -A chatapp.celery worker --beat`.

A task is done on behalf of the request that sent it, and belongs to its trace: both travel in the message's headers.
What beat sends begins something of its own.
"""

from __future__ import annotations

import gc
import os
import time
from contextlib import ExitStack
from typing import Any

import structlog
from celery import Celery
from celery.signals import before_task_publish, setup_logging, task_postrun, task_prerun, worker_init, worker_ready

from chatapp import ticks
from chatapp.audit.source import set_source, source
from chatapp.backlog import BoundedTask
from chatapp.metrics import tasks as _counted  # noqa: F401  counts the tasks that this process runs
from engine import tracing

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "chatapp.settings.local")

app = Celery("octavo", task_cls=BoundedTask)
# Tasks are sent from many threads of the web processes, and Celery's current app is a thread's own.
app.set_default()
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()
ticks.install()

log = structlog.get_logger(__name__)

REQUEST_ID, TRACEPARENT = "octavo_request_id", "octavo_traceparent"


@setup_logging.connect
def _log_as_all_do(**more: Any) -> None:
    """Whoever answers this keeps Celery from setting up logs, and levels, of its own."""


@worker_init.connect
def _begin(**more: Any) -> None:
    tracing.begin("celery")


@worker_ready.connect
def _settle(**more: Any) -> None:
    """What has been imported stays for good. Python looks for garbage that refers to itself once there is a quarter as
    much as there is of all: without this, some tens of megabytes of what tasks have left behind."""
    gc.collect()
    gc.freeze()


@before_task_publish.connect
def _hand_on(headers: dict[str, Any] | None = None, **more: Any) -> None:
    came = source()
    if headers is not None and came.request_id:
        headers[REQUEST_ID] = came.request_id
        headers[TRACEPARENT] = tracing.current() or came.traceparent


@task_prerun.connect
def _take_up(task_id: str, task: Any, **more: Any) -> None:
    if task.request.is_eager:  # done where it was sent, in the sender's own context
        return
    request_id, traceparent = task.request.get(REQUEST_ID), task.request.get(TRACEPARENT) or ""
    # Threads are used again: whatever the last task was done for does not count any more.
    set_source(None, request_id or f"task_{task_id}", None, traceparent)
    task.request.octavo_began = time.monotonic()
    task.request.octavo_span = ExitStack()
    if traceparent:
        task.request.octavo_span.enter_context(
            tracing.span(f"task {task.name}", kind="consumer", parent=traceparent, octavo__request_id=request_id)
        )


@task_postrun.connect
def _say_done(task: Any, state: str | None = None, **more: Any) -> None:
    began = task.request.get("octavo_began")
    if began is None:
        return
    if task.request.get(REQUEST_ID):  # beat's come every few seconds, and say what they did where they did something
        log.info("task.done", task=task.name, state=state, took_s=round(time.monotonic() - began, 3))
    task.request.octavo_span.close()
