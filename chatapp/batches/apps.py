"""Batches: files of requests that are answered when there is room, within a day."""

from __future__ import annotations

from django.apps import AppConfig


class BatchesConfig(AppConfig):
    name = "chatapp.batches"

    def ready(self) -> None:
        from chatapp.batches.results import on_ended
        from chatapp.chat.recorder import ended

        ended.connect(on_ended, dispatch_uid="batches")
