"""Files of teams: kept, read, and let go; for chats, batches, and whoever calls the Files API."""

from __future__ import annotations

from django.apps import AppConfig


class FilesConfig(AppConfig):
    name = "chatapp.files"

    def ready(self) -> None:
        from chatapp.files.selectors import used
        from chatapp.limits.selectors import KEPT_MB

        KEPT_MB["files_mb"] = lambda tenant: -(-used(tenant) // (1024 * 1024))
