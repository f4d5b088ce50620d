"""Which conversations came from elsewhere, and together with which others."""

from __future__ import annotations

from django.conf import settings
from django.db import models
from django.db.models import Q
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from chatapp.chat.models import Conversation
from chatapp.ids import new_id
from chatapp.owned import TenantOwned
from chatapp.tenants.models import Tenant


class Source(models.TextChoices):
    OCTAVO = "octavo", "Octavo"
    CHATGPT = "chatgpt", "ChatGPT"
    OPEN_WEBUI = "open_webui", "Open WebUI"
    # A colleague's, which was shared within the team (chatapp.shares).
    SHARE = "share", _("a shared conversation")


class Import(TenantOwned):
    """A file that a person has brought. One at a time: `finished_at` None is one that runs, or that was cut short."""

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    tenant = models.ForeignKey(Tenant, on_delete=models.CASCADE, related_name="imports")
    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="imports")
    source = models.CharField(max_length=20, choices=Source.choices, blank=True)
    conversations = models.PositiveIntegerField(default=0)
    messages = models.PositiveIntegerField(default=0)
    created_at = models.DateTimeField(default=timezone.now, editable=False)
    finished_at = models.DateTimeField(null=True, blank=True)
    undone_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["-created_at", "-id"]
        constraints = [
            models.UniqueConstraint(
                fields=["tenant", "user"], condition=Q(finished_at__isnull=True), name="import_one_at_a_time"
            )
        ]

    def __str__(self) -> str:
        return f"import {self.pk}"


class Imported(TenantOwned):
    """Marks a conversation that was said elsewhere. `digest` is one of what was said, so that the same file brings it
    once; `told` is what the file knew of its messages and the product keeps nowhere else, by their new ids: model,
    usage, finish_reason, files by name."""

    tenant_path = "conversation__tenant"

    conversation = models.OneToOneField(
        Conversation, primary_key=True, on_delete=models.CASCADE, related_name="imported"
    )
    batch = models.ForeignKey(Import, null=True, blank=True, on_delete=models.SET_NULL, related_name="brought")
    source = models.CharField(max_length=20, choices=Source.choices)
    digest = models.CharField(max_length=64, db_index=True)
    told = models.JSONField(default=dict, blank=True)
    at = models.DateTimeField(default=timezone.now, editable=False)

    def __str__(self) -> str:
        return f"import of {self.conversation_id}"
