"""System prompts and their versions. A published version never changes: what an answer was given under stays known."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.db import models
from django.utils import timezone

from chatapp.ids import new_id
from chatapp.owned import TenantOwned
from chatapp.tenants.models import Tenant


class SystemPrompt(TenantOwned):
    """A named prompt of a tenant; `published` is the version that new answers get."""

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    tenant = models.ForeignKey(Tenant, on_delete=models.CASCADE, related_name="system_prompts")
    name = models.CharField(max_length=120, default="Assistant")
    published = models.ForeignKey(
        "PromptVersion", null=True, blank=True, on_delete=models.RESTRICT, related_name="+", editable=False
    )
    created_at = models.DateTimeField(default=timezone.now, editable=False)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["tenant", "name"], name="system_prompt_name_once")]

    def __str__(self) -> str:
        return f"{self.name} of {self.tenant}"


class PublishedVersionIsImmutable(Exception):
    """Make a new version instead."""


class PromptVersion(TenantOwned):
    tenant_path = "prompt__tenant"

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    prompt = models.ForeignKey(SystemPrompt, on_delete=models.CASCADE, related_name="versions")
    number = models.PositiveIntegerField()
    text = models.TextField()
    note = models.CharField(max_length=200, blank=True)
    created_by = models.ForeignKey(settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.SET_NULL)
    created_at = models.DateTimeField(default=timezone.now, editable=False)
    published_at = models.DateTimeField(null=True, blank=True, editable=False)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["prompt", "number"], name="prompt_version_number_once")]

    def __str__(self) -> str:
        return f"{self.prompt}, version {self.number}"

    def save(self, *args: Any, **kwargs: Any) -> None:
        if not self._state.adding:
            stored = PromptVersion.objects.filter(pk=self.pk, published_at__isnull=False).first()
            if stored and (stored.text, stored.published_at) != (self.text, self.published_at):
                raise PublishedVersionIsImmutable(f"{self} is published; publish a new version instead.")
        super().save(*args, **kwargs)
