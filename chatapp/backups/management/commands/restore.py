"""`manage.py restore BACKUP`: an installation out of a backup, with Octavo stopped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from chatapp.backups import restoring
from chatapp.backups.errors import BackupError


class Command(BaseCommand):
    help = "Restore a backup into an empty Octavo. Stop it first; start it again afterwards, with an empty Redis."
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: Any) -> None:
        parser.add_argument("backup", type=Path, help="the folder that `backup` has named")
        parser.add_argument("--replace", action="store_true", help="lose the database that is there")
        parser.add_argument("--check", action="store_true", help="only say whether the backup is whole and would fit")

    def handle(self, *args: Any, **options: Any) -> None:
        folder = options["backup"].absolute()
        try:
            if options["check"]:
                made = restoring.checked(folder)
                self.stdout.write(f"{folder} is whole: {sum(made.rows.values()):,} rows, {made.files.count:,} files.")
                return
            made, done = restoring.restore(folder, replace=options["replace"])
        except BackupError as error:
            raise CommandError(str(error)) from None
        self.stdout.write(
            f"Restored {folder.name} of version {made.version}: {sum(made.rows.values()):,} rows, "
            f"{made.files.count:,} files, as of {made.taken_at:%Y-%m-%d %H:%M:%S} UTC."
        )
        for what, count in done.items():
            if count:
                self.stdout.write(f"  {what}: {count:,}")
        self.stdout.write(
            "Everybody logs in anew. What was deleted or revoked after that moment is there again: go through deleted "
            "accounts and teams, revoked keys and links, and members who have left."
        )
