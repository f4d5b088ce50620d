"""What operators see: whether the site is set up, how its parts are, and the teams with their figures. No chats."""

from __future__ import annotations

import hmac
from dataclasses import dataclass
from datetime import timedelta
from hashlib import sha256

from django.conf import settings
from django.db.models import Count, Expression, OuterRef, Q, QuerySet, Subquery, Sum
from django.db.models.functions import Coalesce
from django.utils import timezone

from chatapp.chat.models import UNFINISHED, Generation
from chatapp.prompts.models import SystemPrompt
from chatapp.site import selectors as site_selectors
from chatapp.streaming import workers
from chatapp.streaming.connection import AWAY
from chatapp.tenants.models import ApiKey, Membership, Tenant

USE_DAYS = 30


def setup_token() -> str:
    """What proves that somebody reads this server's log. The same in every process, and another one after each set-up:
    who has seen an old log cannot use it when all operators have gone one day."""
    since = site_selectors.site().set_up_at
    text = f"set-up {since.isoformat() if since else ''}"
    return hmac.new(settings.SECRET_KEY.encode(), text.encode(), sha256).hexdigest()[:40]


def setup_link() -> str:
    return f"{settings.OCTAVO_URL}/setup?token={setup_token()}"


def with_figures(tenants: QuerySet[Tenant]) -> QuerySet[Tenant]:
    """Members, keys and use of the last 30 days, counted by the database in one query."""
    since = timezone.now() - timedelta(days=USE_DAYS)

    def figure(rows: QuerySet, value: Expression) -> Coalesce:
        counted = rows.filter(tenant=OuterRef("pk")).order_by().values("tenant").annotate(n=value).values("n")
        return Coalesce(Subquery(counted), 0)

    recent = Generation.objects.filter(created_at__gte=since)
    return tenants.annotate(
        member_count=figure(Membership.objects.filter(suspended_at=None), Count("pk")),
        key_count=figure(ApiKey.objects.filter(revoked_at=None), Count("pk")),
        answer_count=figure(recent, Count("pk")),
        running_count=figure(Generation.objects.filter(state__in=UNFINISHED), Count("pk")),
        token_count=figure(recent, Sum("prompt_tokens") + Sum("completion_tokens")),
    )


@dataclass(frozen=True)
class Check:
    """One line of the checklist. `state` is good, todo or bad; `link` names a page of the administration."""

    title: str
    state: str
    text: str
    link: str = ""
    link_text: str = ""


def checklist() -> list[Check]:
    """What a site needs before people use it, and whether it has it, as of now."""
    return [*_workers(), _mail(), _backups(), *_teams(), _address()]


def _workers() -> list[Check]:
    try:
        alive = {worker.model for worker in workers.live() if worker.healthy and not worker.draining}
    except AWAY:
        return [Check("Engine", "bad", "Redis does not answer, so no message gets to a worker. Check REDIS_URL.")]
    found = []
    for name in settings.OCTAVO_MODEL_NAMES:
        if name in alive:
            text = "A worker serves it."
            found.append(Check(f"Model {name}", "good", text, "occupancy", "Its memory, live"))
        else:
            text = "No worker serves it: what is asked waits. See engine.log, or start python -m engine.worker."
            found.append(Check(f"Model {name}", "bad", text))
    return found


def _mail() -> Check:
    mail, page = site_selectors.mail(), "admin:site_sitesettings_changelist"
    if mail.server is None:
        text = mail.trouble or "No mail server: invitations and new passwords are links that you hand on yourself."
        return Check("Mail", "bad" if mail.trouble else "todo", text, page, "Enter a mail server")
    where = " (from the environment)" if mail.from_environment else ""
    return Check("Mail", "good", f"Goes through {mail.server.shown}{where}, from {mail.sender}.", page, "Send a test")


def _backups() -> Check:
    seen = site_selectors.site().backups_seen_at
    if seen is None:
        text = (
            "Octavo makes none by itself. Have manage.py backup FOLDER run every day and its folder saved on another "
            "machine, with SECRET_KEY kept apart (docs/backup.md)."
        )
        return Check("Backups", "todo", text)
    return Check("Backups", "good", f"You said on {seen:%Y-%m-%d} that its backup is saved elsewhere.")


def _teams() -> list[Check]:
    page = "admin:tenants_tenant_changelist"
    teams = Tenant.objects.filter(suspended_at=None)
    if not teams.exists():
        return [
            Check(
                "Teams", "todo", "There is no team yet; people chat in teams.", "admin:tenants_tenant_add", "Make one"
            )
        ]
    found = []
    prompted = SystemPrompt.objects.filter(published__isnull=False).values("tenant")
    bare = list(teams.exclude(pk__in=prompted).order_by("name").values_list("name", flat=True)[:4])
    if bare:
        names = ", ".join(bare[:3]) + (" and others" if len(bare) > 3 else "")
        text = (
            f"{names}: nothing is published, so answers begin without instructions. Owners publish one under Prompts."
        )
        found.append(Check("System prompts", "todo", text, page, "Teams"))
    else:
        found.append(Check("System prompts", "good", "Every team has published one.", page, "Teams"))
    owned = Membership.objects.filter(role="owner", suspended_at=None, user__is_active=True).values("tenant")
    orphans = list(teams.exclude(pk__in=owned).order_by("name").values_list("name", flat=True)[:4])
    if orphans:
        text = f"Nobody owns {', '.join(orphans[:3])}{' and others' if len(orphans) > 3 else ''}."
        found.append(Check("Owners", "todo", text, page, "Teams"))
    lost = [
        tenant.name
        for tenant in teams.filter(~Q(default_model="") | ~Q(allowed_models=[]))
        if not tenant.models or (tenant.default_model and tenant.default_model not in tenant.models)
    ]
    if lost:
        text = f"{', '.join(lost[:3])}: a model of theirs is not served any more."
        found.append(Check("Models of teams", "bad", text, page, "Teams"))
    return found


def _address() -> Check:
    url = settings.OCTAVO_URL
    if url.startswith("https://"):
        return Check("Address", "good", f"{url}, over TLS.")
    text = f"{url} has no TLS: fine on this machine alone. For others serve it with chatapp.settings.production."
    return Check("Address", "todo", text)
