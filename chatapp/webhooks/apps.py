from __future__ import annotations

from django.apps import AppConfig


class WebhooksConfig(AppConfig):
    name = "chatapp.webhooks"

    def ready(self) -> None:
        from chatapp.events import happened
        from chatapp.webhooks.outbox import told

        happened.connect(told, dispatch_uid="webhooks")
