"""What was used: one row a generation, and what these add up to by the hour and by the day (UTC).

Rows name people, keys and assistants by id and by the name of that time, as text and not as references: they outlive
what they name. No text of a chat is here. Times are whole microseconds, so that sums are exact in any order.
"""

from __future__ import annotations

from django.db import models
from django.db.models import F, Q
from django.utils.translation import gettext_lazy as _l

from chatapp.ids import new_id
from chatapp.owned import TenantOwned
from chatapp.tenants.models import Tenant


class Kind(models.TextChoices):
    CHAT = "chat", _l("Chat")
    API = "api", _l("API")


class UsageRow(TenantOwned):
    """One generation that has ended, however it ended. The generation's id makes it unique: a replay writes nothing."""

    generation_id = models.UUIDField(primary_key=True, editable=False)
    tenant = models.ForeignKey(Tenant, on_delete=models.CASCADE, related_name="usage_rows")
    # When it was asked for: that decides its hour, day and month, as it does for the budget that was reserved then.
    at = models.DateTimeField()
    ended_at = models.DateTimeField()
    kind = models.CharField(max_length=4, choices=Kind.choices)
    # "user:7" or "key:<uuid>", as Access.principal says it.
    principal = models.CharField(max_length=60)
    principal_name = models.CharField(max_length=254, blank=True)
    assistant_id = models.CharField(max_length=36, blank=True)
    assistant_name = models.CharField(max_length=120, blank=True)
    prompt_version_id = models.CharField(max_length=36, blank=True)
    model = models.CharField(max_length=120)
    state = models.CharField(max_length=12)
    finish_reason = models.CharField(max_length=20, blank=True)
    error_code = models.CharField(max_length=60, blank=True)
    prompt_tokens = models.PositiveBigIntegerField(default=0)
    cached_tokens = models.PositiveBigIntegerField(default=0)
    output_tokens = models.PositiveBigIntegerField(default=0)
    queue_us = models.PositiveBigIntegerField(default=0)
    prefill_us = models.PositiveBigIntegerField(default=0)
    decode_us = models.PositiveBigIntegerField(default=0)
    # From being asked for to the first token; None where none came.
    first_token_us = models.PositiveBigIntegerField(null=True, blank=True)
    total_us = models.PositiveBigIntegerField(default=0)
    # Not yet in the roll-up of its hour.
    pending = models.BooleanField(default=True)

    class Meta:
        indexes = [
            models.Index(fields=["tenant", "at", "generation_id"], name="usage_by_time"),
            models.Index(fields=["tenant", "at"], name="usage_pending", condition=Q(pending=True)),
        ]

    def __str__(self) -> str:
        return f"usage of generation {self.generation_id}"


class RollUp(TenantOwned):
    """Sums of one bucket of time for one principal, assistant, model and kind. Names are the latest of the bucket."""

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    at = models.DateTimeField()
    kind = models.CharField(max_length=4, choices=Kind.choices)
    principal = models.CharField(max_length=60)
    principal_name = models.CharField(max_length=254, blank=True)
    assistant_id = models.CharField(max_length=36, blank=True)
    assistant_name = models.CharField(max_length=120, blank=True)
    model = models.CharField(max_length=120)
    requests = models.PositiveBigIntegerField(default=0)
    finished = models.PositiveBigIntegerField(default=0)
    cancelled = models.PositiveBigIntegerField(default=0)
    refused = models.PositiveBigIntegerField(default=0)
    # Failed, timed out or interrupted.
    failed = models.PositiveBigIntegerField(default=0)
    prompt_tokens = models.PositiveBigIntegerField(default=0)
    cached_tokens = models.PositiveBigIntegerField(default=0)
    output_tokens = models.PositiveBigIntegerField(default=0)
    queue_us = models.PositiveBigIntegerField(default=0)
    prefill_us = models.PositiveBigIntegerField(default=0)
    decode_us = models.PositiveBigIntegerField(default=0)
    # chatapp.usage.histogram: times to the first token, one an answer; times between tokens, one a token.
    first_token = models.JSONField(default=dict)
    between_tokens = models.JSONField(default=dict)

    class Meta:
        abstract = True

    def __str__(self) -> str:
        return f"{self.at:%Y-%m-%d %H:%M} {self.principal}: {self.requests}"


class UsageHour(RollUp):
    """`at`: the beginning of the hour, UTC. Computed from the rows of the hour."""

    tenant = models.ForeignKey(Tenant, on_delete=models.CASCADE, related_name="usage_hours")
    # Not yet in the roll-up of its day.
    pending = models.BooleanField(default=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["tenant", "at", "principal", "assistant_id", "model", "kind"], name="usage_hour_once"
            ),
            models.CheckConstraint(
                condition=Q(requests=F("finished") + F("cancelled") + F("refused") + F("failed")),
                name="usage_hour_ends_add_up",
            ),
        ]
        indexes = [models.Index(fields=["tenant", "at"], name="usage_hour_pending", condition=Q(pending=True))]


class UsageTotal(RollUp):
    """`at`: the beginning of the hour, UTC. All of a tenant's hour in one row, its principal, assistant, model and kind
    empty: what charts and sums of a whole team are read from, however many people it has."""

    tenant = models.ForeignKey(Tenant, on_delete=models.CASCADE, related_name="usage_totals")

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["tenant", "at"], name="usage_total_once"),
            models.CheckConstraint(
                condition=Q(principal="", assistant_id="", model="", kind=""), name="usage_total_of_all"
            ),
        ]


class UsageDay(RollUp):
    """`at`: midnight, UTC. Computed from the hours of the day; pages show days of the reader's zone, out of hours."""

    tenant = models.ForeignKey(Tenant, on_delete=models.CASCADE, related_name="usage_days")

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["tenant", "at", "principal", "assistant_id", "model", "kind"], name="usage_day_once"
            ),
            models.CheckConstraint(
                condition=Q(requests=F("finished") + F("cancelled") + F("refused") + F("failed")),
                name="usage_day_ends_add_up",
            ),
        ]


class UsageHorizon(TenantOwned):
    """Rows asked for before `before` have been deleted: their roll-ups stay as they are, and only grow."""

    tenant = models.OneToOneField(Tenant, on_delete=models.CASCADE, primary_key=True, related_name="usage_horizon")
    before = models.DateTimeField()

    def __str__(self) -> str:
        return f"usage rows since {self.before:%Y-%m-%d %H:%M}"
