"""What can be read of system prompts."""

from __future__ import annotations

from django.conf import settings

from chatapp.prompts.models import PromptVersion
from chatapp.tenants.models import Tenant
from engine.protocol import SystemText

PUBLIC_SALT = "public"


def published(tenant: Tenant) -> PromptVersion | None:
    """The version that a tenant's new answers get, None when it has published nothing."""
    return (
        PromptVersion.objects.filter(prompt__tenant=tenant, prompt__published__isnull=False)
        .filter(pk__in=tenant.system_prompts.values("published"))
        .order_by("prompt__created_at")
        .first()
    )


def system_texts(tenant: Tenant, version: PromptVersion | None) -> list[SystemText]:
    """What stands before every conversation of a tenant, each part with the salt of those who share it."""
    texts = [SystemText(settings.OCTAVO_PREAMBLE, PUBLIC_SALT)] if settings.OCTAVO_PREAMBLE else []
    if version is not None:
        texts.append(SystemText(version.text, tenant.salt))
    return texts
