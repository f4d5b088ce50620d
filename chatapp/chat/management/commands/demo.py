"""`manage.py demo`: demo teams, people, prompts and keys, told in $OCTAVO_DATA/demo.json."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

from chatapp.chat.demo import NoDemoHere, make_demo


class Command(BaseCommand):
    help = "Make the demo data, or complete it; safe to repeat."

    def handle(self, *args: Any, **options: Any) -> None:
        path = settings.DATA / "demo.json"
        try:
            make_demo(path)
        except NoDemoHere as error:
            raise CommandError(str(error)) from None
        self.stdout.write(f"The demo's accounts and keys are in {path}")
