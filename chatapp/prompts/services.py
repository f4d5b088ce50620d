"""What changes system prompts."""

from __future__ import annotations

import redis.exceptions
import structlog
from django.db import transaction
from django.db.models import Max
from django.utils import timezone

from chatapp.accounts.models import User
from chatapp.limits.selectors import limits_of_team
from chatapp.prompts.models import PromptVersion, SystemPrompt
from chatapp.prompts.selectors import system_texts
from chatapp.streaming.prompts import announce
from chatapp.tenants.models import Tenant
from engine.protocol import PublishedPrompt

log = structlog.get_logger(__name__)


@transaction.atomic
def publish(
    *, tenant: Tenant, text: str, name: str = "Assistant", note: str = "", by: User | None = None
) -> PromptVersion:
    """Make the next version of a tenant's prompt and publish it. Answers that run keep the one they began with."""
    prompt, _ = SystemPrompt.objects.get_or_create(tenant=tenant, name=name)
    SystemPrompt.objects.select_for_update().get(pk=prompt.pk)
    newest = prompt.versions.aggregate(newest=Max("number"))["newest"] or 0
    version = PromptVersion.objects.create(
        prompt=prompt, number=newest + 1, text=text, note=note, created_by=by, published_at=timezone.now()
    )
    SystemPrompt.objects.filter(pk=prompt.pk).update(published=version)
    transaction.on_commit(lambda: _warm(tenant, version))
    return version


def _warm(tenant: Tenant, version: PromptVersion) -> None:
    """Have the engines compute it before somebody asks. That fails only where it is not needed: nobody answers then."""
    prompt = PublishedPrompt(
        tenant=str(tenant.pk),
        version=str(version.pk),
        system=system_texts(tenant, version),
        weight=limits_of_team(tenant).weight,
    )
    try:
        announce(prompt)
    except redis.exceptions.RedisError as error:
        log.info("prompt.not_announced", version=str(version.pk), error=type(error).__name__)
