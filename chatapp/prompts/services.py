"""What changes system prompts."""

from __future__ import annotations

from django.db import transaction
from django.db.models import Max
from django.utils import timezone

from chatapp.accounts.models import User
from chatapp.prompts.models import PromptVersion, SystemPrompt
from chatapp.tenants.models import Tenant


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
    return version
