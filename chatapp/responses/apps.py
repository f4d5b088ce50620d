from __future__ import annotations

from django.apps import AppConfig


class ResponsesConfig(AppConfig):
    name = "chatapp.responses"

    def ready(self) -> None:
        from chatapp.chat.recorder import ended
        from chatapp.responses.services import keep

        ended.connect(keep)
