"""Files that a team keeps here. A row is what the database knows of one; its bytes are in the storage (contents).

A file belongs to the person who uploaded it, and nobody else of the team sees it; one that came with an API key
belongs to the team's keys together, as OpenAI's files belong to a project: a rotated key finds what the one before it
has uploaded.
"""

from __future__ import annotations

import uuid

from django.conf import settings
from django.db import models
from django.db.models import Q
from django.utils import timezone

from chatapp.ids import new_id, parse_id
from chatapp.owned import TenantOwned
from chatapp.tenants.models import ApiKey, Tenant

PREFIX = "file-"
LONGEST_NAME = 255


class Purpose(models.TextChoices):
    """OpenAI's words."""

    USER_DATA = "user_data", "For chats"
    ASSISTANTS = "assistants", "For assistants"
    BATCH = "batch", "A batch's requests"
    BATCH_OUTPUT = "batch_output", "A batch's answers"


class StoredFile(TenantOwned):
    """`name` is for showing only; `content` is the random name in the storage. `user` None: it is the team's keys'."""

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    tenant = models.ForeignKey(Tenant, on_delete=models.CASCADE, related_name="files")
    user = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.CASCADE, related_name="files"
    )
    # Which key brought it. The file outlives it.
    key = models.ForeignKey(ApiKey, null=True, blank=True, on_delete=models.SET_NULL, related_name="files")
    name = models.CharField(max_length=LONGEST_NAME)
    purpose = models.CharField(max_length=20, choices=Purpose.choices)
    content = models.CharField(max_length=120, unique=True, editable=False)
    bytes = models.PositiveBigIntegerField()
    sha256 = models.CharField(max_length=64)
    created_at = models.DateTimeField(default=timezone.now, editable=False)
    # None: until somebody deletes it.
    expires_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        indexes = [
            models.Index(fields=["tenant", "-created_at"], name="file_list"),
            models.Index(fields=["expires_at"], name="file_expiry", condition=Q(expires_at__isnull=False)),
        ]
        constraints = [
            models.CheckConstraint(condition=Q(user=None) | Q(key=None), name="file_has_one_owner"),
        ]

    def __str__(self) -> str:
        return self.public_id

    @property
    def public_id(self) -> str:
        return f"{PREFIX}{self.pk.hex}"


def parse_file_id(value: object) -> uuid.UUID:
    """ "file-<hex>", or a bare UUID. What is neither becomes an id that no row has."""
    return parse_id(value.removeprefix(PREFIX) if isinstance(value, str) else value)
