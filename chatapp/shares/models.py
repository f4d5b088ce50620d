"""Conversations that their owners have let their team read: one branch, as it was at that moment."""

from __future__ import annotations

import uuid
from datetime import datetime
from typing import Any

from django.conf import settings
from django.db import models
from django.utils import timezone

from chatapp.chat.models import LONGEST_TITLE, Conversation
from chatapp.owned import TenantOwned
from chatapp.tenants.models import Tenant


class Share(TenantOwned):
    """`messages`: [{role, text, created_at, model, files: [names], status unless it is done}], oldest first; what is
    said later is not in it.

    The id is the link, and is of chance alone. The row is deleted when it is revoked, and with its conversation: a
    snapshot outlives neither."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    tenant = models.ForeignKey(Tenant, on_delete=models.CASCADE, related_name="shares")
    conversation = models.ForeignKey(Conversation, on_delete=models.CASCADE, related_name="shares")
    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="shares")
    title = models.CharField(max_length=LONGEST_TITLE)
    messages = models.JSONField(default=list)
    created_at = models.DateTimeField(default=timezone.now, editable=False)
    # None: until it is revoked.
    expires_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["-created_at", "-id"]
        indexes = [
            models.Index(fields=["tenant", "user", "-created_at"], name="share_list"),
            models.Index(fields=["expires_at"], name="share_expiry", condition=models.Q(expires_at__isnull=False)),
        ]

    def __str__(self) -> str:
        return f"share {self.pk}"

    @property
    def said(self) -> list[dict[str, Any]]:
        """The messages, with moments for times."""
        return [{**one, "created_at": datetime.fromisoformat(one["created_at"])} for one in self.messages]
