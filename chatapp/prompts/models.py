"""Assistants with their system prompts, and the prompts' versions.

A published version never changes (the database refuses it as well): what an answer was given under stays known. An
assistant has one working draft at most, which becomes its next version.
"""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.core.validators import RegexValidator
from django.db import models
from django.db.models import Q
from django.utils import timezone
from django.utils.translation import gettext as _

from chatapp.ids import new_id
from chatapp.owned import TenantOwned
from chatapp.tenants.models import Tenant

LONGEST_NAME = 120
LONGEST_DESCRIPTION = 200
LONGEST_NOTE = 200
LONGEST_SLUG = 60


class SystemPrompt(TenantOwned):
    """A named assistant of a tenant and its prompt; `published` is the version that new answers get.

    `former` is what they get until an engine has the published one in memory (chatapp.prompts.selectors.in_force).
    """

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    tenant = models.ForeignKey(Tenant, on_delete=models.CASCADE, related_name="system_prompts")
    name = models.CharField(max_length=LONGEST_NAME, default="Assistant")
    # What programs call it: the model name assistant:<slug>.
    slug = models.CharField(
        max_length=LONGEST_SLUG,
        validators=[RegexValidator(r"\A[a-z0-9](?:[a-z0-9-]*[a-z0-9])?\Z", "Use a-z, 0-9 and inner hyphens.")],
    )
    description = models.CharField(max_length=LONGEST_DESCRIPTION, blank=True)
    order = models.PositiveIntegerField(default=0)
    # The one that answers where nobody chose another.
    is_default = models.BooleanField(default=False, editable=False)
    archived_at = models.DateTimeField(null=True, blank=True, editable=False)
    published = models.ForeignKey(
        "PromptVersion", null=True, blank=True, on_delete=models.RESTRICT, related_name="+", editable=False
    )
    former = models.ForeignKey(
        "PromptVersion", null=True, blank=True, on_delete=models.RESTRICT, related_name="+", editable=False
    )
    created_at = models.DateTimeField(default=timezone.now, editable=False)

    class Meta:
        ordering = ["order", "created_at", "id"]
        constraints = [
            models.UniqueConstraint(fields=["tenant", "name"], name="system_prompt_name_once"),
            models.UniqueConstraint(fields=["tenant", "slug"], name="system_prompt_slug_once"),
            models.UniqueConstraint(fields=["tenant"], condition=Q(is_default=True), name="system_prompt_one_default"),
            models.CheckConstraint(
                condition=Q(is_default=False) | Q(archived_at__isnull=True),
                name="system_prompt_default_is_not_archived",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.name} of {self.tenant}"


class PublishedVersionIsImmutable(Exception):
    """Make a new version instead."""


class PromptVersion(TenantOwned):
    """`published_at` None: the assistant's working draft. `revision` counts its changes, so that an editor who has not
    seen the newest one is told. `restores` is the version whose text this one brought back."""

    tenant_path = "prompt__tenant"

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    prompt = models.ForeignKey(SystemPrompt, on_delete=models.CASCADE, related_name="versions")
    number = models.PositiveIntegerField(null=True, blank=True)
    text = models.TextField(blank=True)
    note = models.CharField(max_length=LONGEST_NOTE, blank=True)
    revision = models.PositiveIntegerField(default=1, editable=False)
    restores = models.ForeignKey("self", null=True, blank=True, on_delete=models.SET_NULL, related_name="+")
    # As an engine counted them when it was published; None: none ran.
    tokens = models.PositiveIntegerField(null=True, blank=True, editable=False)
    created_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.SET_NULL, related_name="+"
    )
    created_at = models.DateTimeField(default=timezone.now, editable=False)
    changed_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.SET_NULL, related_name="+"
    )
    changed_at = models.DateTimeField(default=timezone.now, editable=False)
    published_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.SET_NULL, related_name="+"
    )
    published_at = models.DateTimeField(null=True, blank=True, editable=False)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["prompt", "number"], name="prompt_version_number_once"),
            models.UniqueConstraint(
                fields=["prompt"], condition=Q(published_at__isnull=True), name="prompt_version_one_draft"
            ),
            models.CheckConstraint(
                condition=Q(published_at__isnull=True) | (Q(number__isnull=False) & ~Q(text="")),
                name="prompt_version_published_is_whole",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.prompt}, {self.title.lower()}"

    @property
    def is_draft(self) -> bool:
        return self.published_at is None

    @property
    def title(self) -> str:
        return _("Draft") if self.is_draft else _("Version %(number)s") % {"number": self.number}

    def save(self, *args: Any, **kwargs: Any) -> None:
        if not self._state.adding:
            stored = PromptVersion.objects.filter(pk=self.pk, published_at__isnull=False).first()
            if stored and (stored.text, stored.published_at) != (self.text, self.published_at):
                raise PublishedVersionIsImmutable(f"{self} is published; publish a new version instead.")
        super().save(*args, **kwargs)
