"""`manage.py backup FOLDER`: a backup of a running Octavo.

A command of the product's, and no script beside it, since it needs what the product's settings say: which database,
which storage, which key. It runs wherever the product does, in a container too.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from chatapp.backups import taking
from chatapp.backups.errors import BackupError
from chatapp.files.services import in_words


def _number(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text)):
        raise argparse.ArgumentTypeError("it must be a whole number: keep at least one")
    return int(text)


class _Parser(CommandParser):
    def exit(self, status: int = 0, message: str | None = None) -> Any:
        """By itself 2, which says here that a backup was made."""
        super().exit(min(status, 1), message)


class Command(BaseCommand):
    help = (
        "Back up database, stored files and what is needed to read them, while Octavo runs. Ends with 0: all is there; "
        "1: nothing was made; 2: made, but the storage itself has files missing or damaged."
    )
    requires_system_checks: list[str] = []

    def create_parser(self, prog_name: str, subcommand: str, **kwargs: Any) -> CommandParser:
        parser = super().create_parser(prog_name, subcommand, **kwargs)
        parser.__class__ = _Parser
        return parser

    def add_arguments(self, parser: Any) -> None:
        parser.add_argument("folder", type=Path, help="where backups are kept; each becomes a folder in it")
        parser.add_argument("--keep", type=_number, metavar="N", help="afterwards remove all but the newest N")
        parser.add_argument(
            "--with-secret-key",
            action="store_true",
            help="put SECRET_KEY in, where the environment gives it; without it keep that key elsewhere",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            path, made = taking.take(
                options["folder"].absolute(), keep=options["keep"], with_secret_key=options["with_secret_key"]
            )
        except BackupError as error:
            raise CommandError(str(error)) from None
        size = made.database.bytes + made.files.bytes
        self.stdout.write(
            f"{path}: {sum(made.rows.values()):,} rows, {made.files.count:,} files, {in_words(size)} of {made.server}."
        )
        if not made.holds_secret_key:
            self.stdout.write(
                "SECRET_KEY is not in it: keep that apart. Without it second factors, webhooks and sign-in services "
                "of a restored Octavo cannot be read."
            )
        faults = [f"{name}: its bytes are missing" for name in made.files.missing]
        faults += [f"{name}: its bytes are not those that were uploaded" for name in made.files.damaged]
        if faults:
            raise CommandError(
                f"The backup is made, but the storage has lost {len(faults)} files (all in its manifest): "
                f"{'; '.join(faults[:5])}. Take them from an older backup.",
                returncode=2,
            )
