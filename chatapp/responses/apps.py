from __future__ import annotations

from django.apps import AppConfig


class ResponsesConfig(AppConfig):
    name = "chatapp.responses"
