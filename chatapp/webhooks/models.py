"""Where a team wants to be told of what happens, and each thing that is to be told: the outbox and its history.

A delivery is written in the transaction of the event it tells of (chatapp.webhooks.outbox), so neither happens without
the other. `lease_until` of an endpoint keeps two senders from one endpoint; it ends by itself when a sender dies.
"""

from __future__ import annotations

from django.conf import settings
from django.db import models
from django.db.models import Q
from django.utils import timezone
from django.utils.translation import gettext_lazy as _l

from chatapp.ids import new_id
from chatapp.owned import TenantOwned
from chatapp.tenants.models import Tenant

LONGEST_URL = 1000
LONGEST_DESCRIPTION = 200


class WebhookEndpoint(TenantOwned):
    """`failing_since`: the first failure behind the last success.

    `former_sealed_secret` signs as well until `former_until`.
    """

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    tenant = models.ForeignKey(Tenant, on_delete=models.CASCADE, related_name="webhooks")
    url = models.CharField(max_length=LONGEST_URL)
    description = models.CharField(max_length=LONGEST_DESCRIPTION, blank=True)
    events = models.JSONField(default=list)
    sealed_secret = models.TextField()
    former_sealed_secret = models.TextField(blank=True)
    former_until = models.DateTimeField(null=True, blank=True)
    enabled = models.BooleanField(default=True)
    # Why it is off, where Octavo has switched it off and nobody of the team.
    disabled_because = models.CharField(max_length=200, blank=True)
    failing_since = models.DateTimeField(null=True, blank=True)
    # Events that were not kept, since too many waited already.
    missed = models.PositiveIntegerField(default=0)
    lease_until = models.DateTimeField(null=True, blank=True)
    created_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.SET_NULL, related_name="+"
    )
    created_by_name = models.CharField(max_length=254)
    created_at = models.DateTimeField(default=timezone.now, editable=False)

    class Meta:
        ordering = ["created_at", "id"]

    def __str__(self) -> str:
        return self.url


class DeliveryState(models.TextChoices):
    PENDING = "pending", _l("Waiting")
    DELIVERED = "delivered", _l("Delivered")
    FAILED = "failed", _l("Failed")


class WebhookDelivery(TenantOwned):
    """One event for one endpoint. `next_attempt_at` is set while it waits, and only then."""

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    tenant = models.ForeignKey(Tenant, on_delete=models.CASCADE, related_name="+")
    endpoint = models.ForeignKey(WebhookEndpoint, on_delete=models.CASCADE, related_name="deliveries")
    event = models.UUIDField()
    kind = models.CharField(max_length=60)
    payload = models.JSONField()
    state = models.CharField(max_length=10, choices=DeliveryState.choices, default=DeliveryState.PENDING)
    attempts = models.PositiveSmallIntegerField(default=0)
    next_attempt_at = models.DateTimeField(null=True, blank=True, default=timezone.now)
    attempted_at = models.DateTimeField(null=True, blank=True)
    response_status = models.PositiveSmallIntegerField(null=True, blank=True)
    took_ms = models.PositiveIntegerField(null=True, blank=True)
    error = models.CharField(max_length=200, blank=True)
    created_at = models.DateTimeField(default=timezone.now, editable=False)

    class Meta:
        ordering = ["-created_at", "-id"]
        indexes = [
            models.Index(fields=["next_attempt_at"], name="delivery_due", condition=Q(next_attempt_at__isnull=False)),
            models.Index(fields=["endpoint", "-created_at", "-id"], name="delivery_history"),
            models.Index(fields=["created_at"], name="delivery_age"),
        ]
        constraints = [
            models.CheckConstraint(
                condition=Q(state=DeliveryState.PENDING, next_attempt_at__isnull=False)
                | (~Q(state=DeliveryState.PENDING) & Q(next_attempt_at__isnull=True)),
                name="delivery_waits_or_has_ended",
            )
        ]

    def __str__(self) -> str:
        return f"{self.kind} to {self.endpoint_id}"

    @property
    def message_id(self) -> str:
        """What receivers tell repetitions by: the event's, so the same at every attempt and when it is sent again."""
        return f"evt_{self.event.hex}"
