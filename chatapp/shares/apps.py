from __future__ import annotations

from django.apps import AppConfig


class SharesConfig(AppConfig):
    name = "chatapp.shares"
