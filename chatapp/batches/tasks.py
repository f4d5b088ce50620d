"""Celery's part of batches. Messages carry ids only."""

from __future__ import annotations

from celery import shared_task

from chatapp.batches import running


@shared_task
def advance(batch_id: str) -> None:
    running.advance(batch_id)


@shared_task
def tend() -> None:
    running.tend()


@shared_task
def forget_old() -> None:
    running.forget_old()
