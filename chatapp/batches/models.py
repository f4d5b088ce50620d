"""Batches: many requests in a file, answered when there is room, within a day.

Everything that is done stands in rows, so that whatever dies, the next worker goes on: an item is one line of the
input, an answer links it with a generation from the transaction that accepts that one, and keeps what came of it from
the transaction that records its end. Items go when their results are in files.
"""

from __future__ import annotations

import uuid
from datetime import timedelta
from typing import Any

from django.db import models
from django.db.models import Q
from django.utils import timezone
from django.utils.translation import gettext_lazy as _l

from chatapp.chat.models import Generation
from chatapp.ids import new_id, parse_id
from chatapp.owned import TenantOwned
from chatapp.tenants.models import ApiKey, Tenant

PREFIX = "batch_"
WINDOW = "24h"
WINDOW_LENGTH = timedelta(hours=24)
LONGEST_CUSTOM_ID = 512


class Status(models.TextChoices):
    """OpenAI's words."""

    VALIDATING = "validating", _l("Being checked")
    FAILED = "failed", _l("Refused")
    IN_PROGRESS = "in_progress", _l("Under way")
    FINALIZING = "finalizing", _l("Being written")
    COMPLETED = "completed", _l("Completed")
    EXPIRED = "expired", _l("Out of time")
    CANCELLING = "cancelling", _l("Being cancelled")
    CANCELLED = "cancelled", _l("Cancelled")


UNFINISHED = (Status.VALIDATING, Status.IN_PROGRESS, Status.FINALIZING, Status.CANCELLING)


def end_of_window() -> Any:
    return timezone.now() + WINDOW_LENGTH


class Batch(TenantOwned):
    """It belongs to the team's keys together, as their files do. `ending`: the status that comes after finalizing.

    Files are named and not pointed at: their owner may delete them, and the batch still says which they were.
    """

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    tenant = models.ForeignKey(Tenant, on_delete=models.CASCADE, related_name="batches")
    # Whose rights it has; where that key was rotated, its successor's.
    key = models.ForeignKey(ApiKey, null=True, blank=True, on_delete=models.SET_NULL, related_name="batches")
    endpoint = models.CharField(max_length=60)
    input_file = models.UUIDField()
    output_file = models.UUIDField(null=True, blank=True)
    error_file = models.UUIDField(null=True, blank=True)
    metadata = models.JSONField(null=True, blank=True)
    status = models.CharField(max_length=12, choices=Status.choices, default=Status.VALIDATING)
    ending = models.CharField(max_length=12, blank=True)
    # Of its file, each with its line where it is about one; or of all of it.
    errors = models.JSONField(default=list, blank=True)
    total = models.PositiveIntegerField(default=0)
    # Counted when it has ended; until then the items say it.
    completed = models.PositiveIntegerField(default=0)
    failed = models.PositiveIntegerField(default=0)
    # Why nothing goes on at the moment, and until when nobody needs to look.
    paused_code = models.CharField(max_length=60, blank=True)
    paused_because = models.CharField(max_length=400, blank=True)
    next_at = models.DateTimeField(null=True, blank=True)
    lease_until = models.DateTimeField(null=True, blank=True)
    # Its items are still there.
    has_items = models.BooleanField(default=True)
    created_at = models.DateTimeField(default=timezone.now, editable=False)
    expires_at = models.DateTimeField(default=end_of_window)
    in_progress_at = models.DateTimeField(null=True, blank=True)
    finalizing_at = models.DateTimeField(null=True, blank=True)
    completed_at = models.DateTimeField(null=True, blank=True)
    failed_at = models.DateTimeField(null=True, blank=True)
    expired_at = models.DateTimeField(null=True, blank=True)
    cancelling_at = models.DateTimeField(null=True, blank=True)
    cancelled_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["-created_at", "-id"]
        indexes = [
            models.Index(fields=["tenant", "-created_at", "-id"], name="batch_list"),
            models.Index(fields=["created_at"], name="batch_unfinished", condition=Q(status__in=UNFINISHED)),
        ]

    def __str__(self) -> str:
        return self.public_id

    @property
    def public_id(self) -> str:
        return f"{PREFIX}{self.pk.hex}"

    @property
    def unfinished(self) -> bool:
        return self.status in UNFINISHED


def parse_batch_id(value: object) -> uuid.UUID:
    """ "batch_<hex>", or a bare UUID. What is neither becomes an id that no row has."""
    return parse_id(value.removeprefix(PREFIX) if isinstance(value, str) else value)


class ItemState(models.TextChoices):
    PENDING = "pending", "Waiting, or being answered"
    DONE = "done", "Answered"
    FAILED = "failed", "Failed"


class BatchItem(TenantOwned):
    """A line of the input, found again at `offset`; `body` is its request once it has been begun.

    `status_code` and `refusal`: what was said of one that never became a generation.
    """

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    tenant = models.ForeignKey(Tenant, on_delete=models.CASCADE, related_name="+")
    batch = models.ForeignKey(Batch, on_delete=models.CASCADE, related_name="items")
    line = models.PositiveIntegerField()
    custom_id = models.CharField(max_length=LONGEST_CUSTOM_ID)
    offset = models.PositiveBigIntegerField()
    length = models.PositiveIntegerField()
    state = models.CharField(max_length=10, choices=ItemState.choices, default=ItemState.PENDING)
    attempts = models.PositiveSmallIntegerField(default=0)
    body = models.BinaryField(null=True, blank=True)
    status_code = models.PositiveSmallIntegerField(null=True, blank=True)
    refusal = models.BinaryField(null=True, blank=True)

    class Meta:
        ordering = ["line"]
        constraints = [
            models.UniqueConstraint(fields=["batch", "line"], name="batch_item_line"),
            models.UniqueConstraint(fields=["batch", "custom_id"], name="batch_item_custom_id"),
        ]
        indexes = [models.Index(fields=["batch", "state", "line"], name="batch_item_next")]

    def __str__(self) -> str:
        return f"line {self.line} of {self.batch_id}"

    @property
    def public_id(self) -> str:
        return f"batch_req_{self.pk.hex}"

    @property
    def idempotency_key(self) -> str:
        """Of this attempt: however often it is begun, there is one generation."""
        return f"batch-{self.pk.hex}-{self.attempts}"


class BatchAnswer(TenantOwned):
    """One of an item's generations, as a completion may have several prompts; `kept`: what it said, once it ended."""

    generation = models.OneToOneField(Generation, primary_key=True, on_delete=models.CASCADE, related_name="+")
    tenant = models.ForeignKey(Tenant, on_delete=models.CASCADE, related_name="+")
    item = models.ForeignKey(BatchItem, on_delete=models.CASCADE, related_name="answers")
    place = models.PositiveSmallIntegerField()
    kept = models.BinaryField(null=True, blank=True)

    class Meta:
        ordering = ["place"]
        indexes = [models.Index(fields=["tenant"], name="batch_answer_running", condition=Q(kept=None))]

    def __str__(self) -> str:
        return f"answer {self.place} of {self.item_id}"
