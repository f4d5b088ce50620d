from __future__ import annotations

from django.apps import AppConfig
from django.core.checks import Tags, register


class BackupsConfig(AppConfig):
    name = "chatapp.backups"

    def ready(self) -> None:
        from chatapp.backups.postgresql import check_whole

        register(check_whole, Tags.database)
