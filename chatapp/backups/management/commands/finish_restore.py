"""`manage.py finish_restore BACKUP`: what `restore` calls for the database it has loaded, before that counts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from django.core.management import call_command
from django.core.management.base import BaseCommand

from chatapp.backups import aftermath, manifest


class Command(BaseCommand):
    help = "Migrate and settle a database that `restore` has loaded. Not to be called by hand."
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: Any) -> None:
        parser.add_argument("backup", type=Path)

    def handle(self, *args: Any, **options: Any) -> None:
        made = manifest.read(options["backup"])
        call_command("migrate", interactive=False, verbosity=0, skip_checks=True)
        self.stdout.write(json.dumps(aftermath.settle(made)))
