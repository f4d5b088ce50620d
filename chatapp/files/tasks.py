"""Celery's part of files: messages carry ids only."""

from __future__ import annotations

from celery import shared_task

from chatapp.files import jobs
from chatapp.files import sweep as sweeping


@shared_task
def read(file_id: str) -> None:
    again_s = jobs.run(file_id)
    if again_s is not None:
        read.apply_async([file_id], countdown=again_s)


@shared_task
def tend() -> None:
    jobs.tend()


@shared_task
def sweep() -> None:
    sweeping.expired()
    sweeping.strays()
