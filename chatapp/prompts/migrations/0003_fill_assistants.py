"""Each tenant's first prompt that is published becomes its default assistant; slugs come from the names."""

from __future__ import annotations

from typing import Any

from django.db import migrations
from django.utils.text import slugify


def fill(apps: Any, editor: Any) -> None:
    SystemPrompt = apps.get_model("prompts", "SystemPrompt")
    PromptVersion = apps.get_model("prompts", "PromptVersion")
    prompts = list(SystemPrompt.objects.order_by("tenant_id", "created_at", "id"))
    taken: set[tuple[Any, str]] = set()
    position: dict[Any, int] = {}
    defaults: dict[Any, Any] = {}
    for prompt in prompts:
        slug = base = slugify(prompt.name)[:50].strip("-") or "assistant"
        number = 2
        while (prompt.tenant_id, slug) in taken:
            slug, number = f"{base}-{number}", number + 1
        taken.add((prompt.tenant_id, slug))
        prompt.slug = slug
        prompt.order = position[prompt.tenant_id] = position.get(prompt.tenant_id, -1) + 1
        known = defaults.get(prompt.tenant_id)
        if known is None or (known.published_id is None and prompt.published_id is not None):
            defaults[prompt.tenant_id] = prompt
    for prompt in prompts:
        prompt.is_default = defaults[prompt.tenant_id] is prompt
        prompt.save(update_fields=["slug", "order", "is_default"])
    published = PromptVersion.objects.filter(published_at__isnull=False)
    for version in published.exclude(created_by=None).iterator():
        PromptVersion.objects.filter(pk=version.pk).update(
            published_by=version.created_by_id, changed_by=version.created_by_id, changed_at=version.published_at
        )
    # There was no page for drafts; of several left by hand the newest stays.
    for prompt in prompts:
        drafts = PromptVersion.objects.filter(prompt=prompt, published_at__isnull=True).order_by("-created_at")
        for old in drafts[1:]:
            old.delete()
        PromptVersion.objects.filter(prompt=prompt, published_at__isnull=True).update(number=None)


class Migration(migrations.Migration):
    dependencies = [("prompts", "0002_assistants")]
    operations = [migrations.RunPython(fill, migrations.RunPython.noop)]
