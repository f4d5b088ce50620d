"""`manage.py setup`: the first operator, the site's name, its mail and the first team. Asks, or takes options.

Every option has an environment variable OCTAVO_SETUP_<NAME>; a password comes by that or is asked for, since options
stand in everybody's list of processes. Repeating it changes nothing.
"""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser
from getpass import getpass
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from chatapp.accounts.selectors import has_operator
from chatapp.errors import Conflict, Refusal
from chatapp.operators import selectors
from chatapp.operators.services import set_up
from chatapp.site.models import DEFAULT_NAME

# Option, what it is called when it is asked for, and what Enter means (None: an answer is needed).
QUESTIONS: tuple[tuple[str, str, str | None], ...] = (
    ("email", "Your email address, as the first operator", None),
    ("site_name", "Name of this site", DEFAULT_NAME),
    ("smtp_url", "Mail server, as smtp://user:password@host:587 (Enter: none)", ""),
    ("mail_from", "Address that mails come from (Enter: octavo@ that host)", ""),
    ("tenant_name", "Name of the first team (Enter: none)", ""),
    ("tenant_slug", "Its short name in addresses: a-z, 0-9 and -", ""),
    ("owner_email", "Its owner's address (Enter: you)", ""),
)
FIELDS = {"tenant_name": "--tenant-name", "tenant_slug": "--tenant-slug", "password": "OCTAVO_SETUP_PASSWORD"}


class Command(BaseCommand):
    help = "Make the first operator, the site's settings and the first team. Safe to repeat."

    def add_arguments(self, parser: ArgumentParser) -> None:
        for name, text, _ in QUESTIONS:
            parser.add_argument(f"--{name.replace('_', '-')}", help=f"{text} [OCTAVO_SETUP_{name.upper()}]")
        parser.add_argument("--no-input", action="store_true", help="ask nothing; what is missing is an error")
        parser.add_argument("--link", action="store_true", help="print the link of the page that does the same")

    def handle(self, *args: Any, **options: Any) -> None:
        if has_operator():
            if not options["link"]:
                self.stdout.write("This site is set up already; nothing was changed.")
            return
        if options["link"]:
            self.stdout.write(selectors.setup_link())
            return
        asks = sys.stdin.isatty() and not options["no_input"]
        answers = {name: self._answer(name, text, usual, options, asks) for name, text, usual in QUESTIONS}
        try:
            done = set_up(password=self._password(asks), **answers)
        except Conflict as refusal:
            self.stdout.write(refusal.message)
            return
        except Refusal as refusal:
            at = refusal.param or ""
            raise CommandError(f"{FIELDS.get(at, '--' + at.replace('_', '-'))}: {refusal.message}") from None
        self.stdout.write(f"{done.operator.email} is the operator of {answers['site_name']}.")
        if done.team is not None:
            self.stdout.write(f"The team {done.team.tenant.name} belongs to {done.team.owner.email}.")
            if done.team.link and not done.team.mailed:
                self.stdout.write(f"Hand this link on, with which a password is chosen: {done.team.link}")

    def _answer(self, name: str, text: str, usual: str | None, options: dict[str, Any], asks: bool) -> str:
        given = options[name] if options[name] is not None else os.environ.get(f"OCTAVO_SETUP_{name.upper()}")
        if given is not None:
            return str(given)
        if not asks:
            if usual is None:
                option = f"--{name.replace('_', '-')}"
                raise CommandError(f"{option} or OCTAVO_SETUP_{name.upper()} is needed where nobody can be asked.")
            return usual
        while True:
            answer = input(f"{text}{f' [{usual}]' if usual else ''}: ").strip() or usual
            if answer is not None:
                return answer

    def _password(self, asks: bool) -> str:
        given = os.environ.get("OCTAVO_SETUP_PASSWORD", "")
        if given or not asks:
            if not given:
                raise CommandError("OCTAVO_SETUP_PASSWORD is needed where nobody can be asked.")
            return given
        while True:
            first = getpass("Your password: ")
            if first == getpass("The same again: "):
                return first
            self.stderr.write("These were two different ones.")
