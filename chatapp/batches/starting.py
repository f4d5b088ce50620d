"""Hands batches to Celery, by their ids."""

from __future__ import annotations

import uuid

import structlog

log = structlog.get_logger(__name__)


def start(batch_id: uuid.UUID) -> None:
    from chatapp.batches import tasks

    try:
        tasks.advance.apply_async(args=[str(batch_id)], retry=False)
    except Exception as error:  # no broker: the row waits, and `tend` comes by
        log.warning("batch.not_started", batch=str(batch_id), error=type(error).__name__)
