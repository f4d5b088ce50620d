"""Celery's part of exports, retention and deletions. Messages carry ids only.

They may take minutes; the worker has threads, so that they do not keep the reaper from its seconds.
"""

from __future__ import annotations

from celery import shared_task

from chatapp.data import deletion, exports, own, purge, retention


@shared_task
def export(kind: str, export_id: str) -> None:
    exports.run(kind, export_id)


@shared_task
def delete_tenant(deletion_id: str) -> None:
    again_s = purge.run(deletion_id)
    if again_s is not None:
        delete_tenant.apply_async([deletion_id], countdown=again_s)


@shared_task
def leave(leaving_id: str) -> None:
    own.run(leaving_id)


@shared_task
def apply_retention() -> None:
    retention.sweep_all()


@shared_task
def tend() -> None:
    """Start what is due, and what a worker that died has left."""
    exports.tend()
    deletion.tend()
    own.tend()
