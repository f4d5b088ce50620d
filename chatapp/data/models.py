"""How long a team keeps what, its exports, and the deletions that are under way.

The jobs are rows, and Celery messages carry their ids only: whatever dies in between, the row says what is left to do.
Deletions point at nothing: they outlive what they delete.
"""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from django.conf import settings
from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models
from django.db.models import Q
from django.utils import timezone
from django.utils.translation import gettext_lazy as _l

from chatapp.audit.models import ActorKind
from chatapp.audit.services import Actor
from chatapp.ids import new_id
from chatapp.owned import TenantOwned
from chatapp.tenants.models import Tenant

LONGEST_DAYS = 3650
# Budgets count whole months, and last year's figures are asked for: thirteen months.
USAGE_DAYS = 400
LEAST_USAGE_DAYS = 62


class Retention(TenantOwned):
    """`days` None: chats are kept until somebody deletes them. Usage rows hold no text and have a term of their own."""

    tenant = models.OneToOneField(Tenant, primary_key=True, on_delete=models.CASCADE, related_name="retention")
    days = models.PositiveIntegerField(
        null=True, blank=True, validators=[MinValueValidator(1), MaxValueValidator(LONGEST_DAYS)]
    )
    keep_starred = models.BooleanField(default=True)
    usage_days = models.PositiveIntegerField(
        default=USAGE_DAYS, validators=[MinValueValidator(LEAST_USAGE_DAYS), MaxValueValidator(LONGEST_DAYS)]
    )
    changed_at = models.DateTimeField(default=timezone.now)

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=Q(days__isnull=True) | Q(days__gte=1, days__lte=LONGEST_DAYS), name="retention_days"
            ),
            models.CheckConstraint(
                condition=Q(usage_days__gte=LEAST_USAGE_DAYS, usage_days__lte=LONGEST_DAYS), name="retention_usage_days"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.days} days" if self.days else "for ever"


class Sweep(TenantOwned):
    """One night's deletion of what is too old. Its counts grow with each batch, in the batch's own transaction."""

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    tenant = models.ForeignKey(Tenant, on_delete=models.CASCADE, related_name="+")
    started_at = models.DateTimeField(default=timezone.now)
    finished_at = models.DateTimeField(null=True, blank=True)
    conversations = models.PositiveIntegerField(default=0)
    messages = models.PositiveIntegerField(default=0)
    usage_rows = models.PositiveIntegerField(default=0)

    class Meta:
        ordering = ["-started_at"]
        constraints = [
            models.UniqueConstraint(fields=["tenant"], condition=Q(finished_at=None), name="sweep_one_at_a_time")
        ]

    def __str__(self) -> str:
        return f"sweep of {self.started_at:%Y-%m-%d}"


class JobState(models.TextChoices):
    QUEUED = "queued", _l("Waiting")
    RUNNING = "running", _l("Being made")
    DONE = "done", _l("Ready")
    FAILED = "failed", _l("Failed")
    CANCELLED = "cancelled", _l("Stopped")
    EXPIRED = "expired", _l("Expired")


UNFINISHED_JOB = (JobState.QUEUED, JobState.RUNNING)


class ExportJob(models.Model):
    """A zip file that a worker makes. `attempt` fences off a worker that was given up and wakes again."""

    folder: ClassVar[str]

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    state = models.CharField(max_length=10, choices=JobState.choices, default=JobState.QUEUED)
    percent = models.PositiveSmallIntegerField(default=0)
    attempt = models.PositiveSmallIntegerField(default=0)
    size = models.PositiveBigIntegerField(default=0)
    sha256 = models.CharField(max_length=64, blank=True)
    error = models.CharField(max_length=200, blank=True)
    created_at = models.DateTimeField(default=timezone.now)
    heartbeat_at = models.DateTimeField(default=timezone.now)
    finished_at = models.DateTimeField(null=True, blank=True)
    expires_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        abstract = True

    @property
    def owner_id(self) -> str:
        raise NotImplementedError

    @property
    def directory(self) -> Path:
        return Path(settings.DATA) / self.folder / self.owner_id

    @property
    def path(self) -> Path:
        return self.directory / f"{self.pk}.zip"

    @property
    def unfinished(self) -> bool:
        return self.state in UNFINISHED_JOB


class Export(ExportJob, TenantOwned):
    """All that a team has here."""

    folder = "exports"

    tenant = models.ForeignKey(Tenant, on_delete=models.CASCADE, related_name="exports")
    requested_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.SET_NULL, related_name="+"
    )
    requested_by_name = models.CharField(max_length=254)

    class Meta:
        ordering = ["-created_at"]
        constraints = [
            models.UniqueConstraint(
                fields=["tenant"], condition=Q(state__in=UNFINISHED_JOB), name="export_one_at_a_time"
            )
        ]

    def __str__(self) -> str:
        return f"export of {self.created_at:%Y-%m-%d}"

    @property
    def owner_id(self) -> str:
        return str(self.tenant_id)


class OwnExport(ExportJob):
    """What one person has written, in all their teams."""

    folder = "own-exports"

    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="own_exports")

    class Meta:
        ordering = ["-created_at"]
        constraints = [
            models.UniqueConstraint(
                fields=["user"], condition=Q(state__in=UNFINISHED_JOB), name="own_export_one_at_a_time"
            )
        ]

    def __str__(self) -> str:
        return f"own export of {self.created_at:%Y-%m-%d}"

    @property
    def owner_id(self) -> str:
        return str(self.user_id)


class DeletionState(models.TextChoices):
    WAITING = "waiting", _l("In its grace period")
    RUNNING = "running", _l("Being deleted")
    DONE = "done", _l("Deleted")
    FAILED = "failed", _l("Needs a look")
    UNDONE = "undone", _l("Undone")


UNFINISHED_DELETION = (DeletionState.WAITING, DeletionState.RUNNING)


class Deletion(models.Model):
    """A team that is being deleted. `step` is the one to do next; `lease` keeps two workers from doing it at once."""

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    tenant_id = models.UUIDField()
    tenant_slug = models.CharField(max_length=40)
    tenant_name = models.CharField(max_length=120)
    actor_kind = models.CharField(max_length=10, choices=ActorKind.choices)
    actor_id = models.CharField(max_length=64, blank=True)
    actor_name = models.CharField(max_length=254)
    state = models.CharField(max_length=10, choices=DeletionState.choices, default=DeletionState.WAITING)
    step = models.CharField(max_length=20, blank=True)
    # What the team was before: undoing gives it back so.
    suspended_before = models.DateTimeField(null=True, blank=True)
    requested_at = models.DateTimeField(default=timezone.now)
    due_at = models.DateTimeField()
    lease_until = models.DateTimeField(null=True, blank=True)
    step_started_at = models.DateTimeField(null=True, blank=True)
    rounds = models.PositiveSmallIntegerField(default=0)
    finished_at = models.DateTimeField(null=True, blank=True)
    report = models.JSONField(default=dict, blank=True)
    error = models.CharField(max_length=200, blank=True)

    class Meta:
        ordering = ["-requested_at"]
        constraints = [
            models.UniqueConstraint(
                fields=["tenant_id"], condition=Q(state__in=UNFINISHED_DELETION), name="deletion_one_at_a_time"
            )
        ]

    def __str__(self) -> str:
        return f"deletion of {self.tenant_slug}"

    @property
    def actor(self) -> Actor:
        return Actor(self.actor_kind, self.actor_id, self.actor_name)


class Leaving(models.Model):
    """A person whose account is being deleted. They are out at once; what they wrote goes in the background."""

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    user_id = models.UUIDField(unique=True)
    requested_at = models.DateTimeField(default=timezone.now)
    lease_until = models.DateTimeField(null=True, blank=True)
    finished_at = models.DateTimeField(null=True, blank=True)

    def __str__(self) -> str:
        return f"leaving of {self.user_id}"
