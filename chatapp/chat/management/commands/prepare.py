"""`manage.py prepare`: what must be there before a program serves, in one process."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.core.checks import Tags
from django.core.management import call_command
from django.core.management.base import BaseCommand


class Command(BaseCommand):
    help = "Bring the database, the pages' files and, with local settings, the demo data up to date; safe to repeat."
    # Those of the database only, below: all of them would load every page's code, which nothing here needs.
    requires_system_checks = ()

    def handle(self, *args: Any, **options: Any) -> None:
        """Says the name of each step before it begins, a line each: the last one is what an error is about."""
        self.stdout.write("migrate")
        self.check(tags=[Tags.database], databases=["default"])
        call_command("migrate", interactive=False, verbosity=0)
        self.stdout.write("collectstatic")
        call_command("collectstatic", interactive=False, verbosity=0)
        if settings.OCTAVO_DEMO:
            self.stdout.write("demo")
            call_command("demo", verbosity=0)
