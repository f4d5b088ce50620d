from __future__ import annotations

from django.apps import AppConfig


class MovingConfig(AppConfig):
    name = "chatapp.moving"
