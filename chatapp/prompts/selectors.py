"""What can be read of system prompts."""

from __future__ import annotations

from chatapp.prompts.models import PromptVersion
from chatapp.tenants.models import Tenant


def published(tenant: Tenant) -> PromptVersion | None:
    """The version that a tenant's new answers get, None when it has published nothing."""
    return (
        PromptVersion.objects.filter(prompt__tenant=tenant, prompt__published__isnull=False)
        .filter(pk__in=tenant.system_prompts.values("published"))
        .order_by("prompt__created_at")
        .first()
    )
