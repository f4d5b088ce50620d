"""`manage.py usage rollup`: one round now. `manage.py usage rebuild SLUG --from D --to D`: those UTC days anew."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from chatapp.tenants.models import Tenant
from chatapp.usage import rollup


class Command(BaseCommand):
    help = "Add usage up: by the hour and by the day."

    def add_arguments(self, parser: CommandParser) -> None:
        actions = parser.add_subparsers(dest="action", required=True)
        actions.add_parser("rollup", help="One round now, as beat does every minute.")
        rebuild = actions.add_parser("rebuild", help="Compute the days of a team anew from its rows.")
        rebuild.add_argument("slug")
        rebuild.add_argument("--from", dest="first", type=date.fromisoformat, required=True, help="First day, UTC.")
        rebuild.add_argument("--to", dest="last", type=date.fromisoformat, required=True, help="Last day, UTC.")

    def handle(self, *args: Any, **options: Any) -> None:
        if options["action"] == "rebuild":
            tenant = Tenant.objects.filter(slug=options["slug"]).first()
            if tenant is None:
                raise CommandError(f"There is no team {options['slug']!r}.")
            start, end = (datetime.combine(options[name], time(), UTC) for name in ("first", "last"))
            rollup.rebuild(tenant_id=tenant.pk, start=start, end=end + timedelta(days=1))
        hours, days = rollup.roll_up()
        self.stdout.write(f"{hours} hours and {days} days computed.")
