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


class ReadingState(models.TextChoices):
    QUEUED = "queued", "Waiting"
    RUNNING = "running", "Being read"
    READY = "ready", "Ready"
    FAILED = "failed", "Cannot be read"


UNREAD = (ReadingState.QUEUED, ReadingState.RUNNING)


class Reading(TenantOwned):
    """The text of a file, once a worker has read it. `attempt` fences off a worker that was given up and wakes."""

    tenant_path = "file__tenant"

    file = models.OneToOneField(StoredFile, primary_key=True, on_delete=models.CASCADE, related_name="reading")
    state = models.CharField(max_length=10, choices=ReadingState.choices, default=ReadingState.QUEUED)
    kind = models.CharField(max_length=10, blank=True)
    text = models.TextField(blank=True)
    pages = models.PositiveIntegerField(null=True, blank=True)
    # How many tokens it takes in a prompt, by the model that counted.
    tokens = models.JSONField(default=dict, blank=True)
    error_code = models.CharField(max_length=40, blank=True)
    error = models.CharField(max_length=300, blank=True)
    attempt = models.PositiveSmallIntegerField(default=0)
    queued_at = models.DateTimeField(default=timezone.now)
    lease_until = models.DateTimeField(null=True, blank=True)

    class Meta:
        indexes = [models.Index(fields=["queued_at"], name="reading_unread", condition=Q(state__in=UNREAD))]

    def __str__(self) -> str:
        return f"reading of {self.file_id}, {self.state}"


class Attachment(TenantOwned):
    """A file that stands in front of a message's text. A person's file goes when its last attachment does."""

    tenant_path = "file__tenant"

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    message = models.ForeignKey("chat.Message", on_delete=models.CASCADE, related_name="attachments")
    file = models.ForeignKey(StoredFile, on_delete=models.CASCADE, related_name="attachments")
    position = models.PositiveSmallIntegerField()

    class Meta:
        ordering = ["position"]
        constraints = [
            models.UniqueConstraint(fields=["message", "file"], name="attachment_once"),
            models.UniqueConstraint(fields=["message", "position"], name="attachment_place"),
        ]

    def __str__(self) -> str:
        return f"attachment {self.position} of {self.message_id}"
