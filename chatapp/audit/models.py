"""The audit log: who did what to which object, from where. Rows are written once; the database refuses changes."""

from __future__ import annotations

from django.conf import settings
from django.db import models
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy as _l

from chatapp.audit.actions import title
from chatapp.ids import new_id
from chatapp.owned import TenantOwned


class ActorKind(models.TextChoices):
    USER = "user", _l("Person")
    KEY = "key", _l("API key")
    OPERATOR = "operator", _l("Operator")
    SYSTEM = "system", "Octavo"


class AuditEntry(TenantOwned):
    """`tenant` None: it concerns the platform. Names are kept as they were then; what they name may be gone."""

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    tenant = models.ForeignKey(
        "tenants.Tenant", null=True, blank=True, on_delete=models.DO_NOTHING, db_constraint=False, related_name="+"
    )
    at = models.DateTimeField(default=timezone.now, editable=False)
    actor_kind = models.CharField(max_length=10, choices=ActorKind.choices)
    actor_id = models.CharField(max_length=64, blank=True)
    actor_name = models.CharField(max_length=254)
    action = models.CharField(max_length=60)
    object_kind = models.CharField(max_length=40, blank=True)
    object_id = models.CharField(max_length=64, blank=True)
    object_name = models.CharField(max_length=254, blank=True)
    # What changed, in plain values: {"role": ["member", "admin"]}. Never a secret, never a chat's text.
    details = models.JSONField(default=dict, blank=True)
    address = models.GenericIPAddressField(null=True, blank=True)
    request_id = models.CharField(max_length=128, blank=True)

    class Meta:
        ordering = ["-at", "-id"]
        verbose_name_plural = "audit entries"
        indexes = [
            models.Index(fields=["tenant", "-at"], name="audit_by_time"),
            models.Index(fields=["tenant", "action", "-at"], name="audit_by_action"),
        ]

    def __str__(self) -> str:
        return f"{self.at:%Y-%m-%d %H:%M} {self.actor_name}: {self.action} {self.object_name}"

    @property
    def title(self) -> str:
        return _(title(self.action))


class BreakGlass(TenantOwned):
    """An operator's leave to read a team's chats, for a reason and a time. What happens in it is in the team's log."""

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    tenant = models.ForeignKey("tenants.Tenant", on_delete=models.CASCADE, related_name="+")
    operator = models.ForeignKey(settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL, related_name="+")
    operator_name = models.CharField(max_length=254)
    reason = models.TextField()
    # None: all conversations of the team.
    conversation_id = models.UUIDField(null=True, blank=True)
    opened_at = models.DateTimeField(default=timezone.now)
    expires_at = models.DateTimeField()
    closed_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["-opened_at", "-id"]
        indexes = [models.Index(fields=["expires_at"], name="break_glass_open", condition=models.Q(closed_at=None))]
        constraints = [
            models.CheckConstraint(
                condition=models.Q(expires_at__gt=models.F("opened_at")), name="break_glass_ends_after_it_begins"
            )
        ]

    def __str__(self) -> str:
        return f"reading by {self.operator_name}"

    @property
    def open(self) -> bool:
        return self.closed_at is None and self.expires_at > timezone.now()


class AuditPurge(models.Model):
    """Tenants that are being deleted, whose entries may go. Only chatapp.data writes here (see the trigger)."""

    tenant_id = models.UUIDField(primary_key=True)

    def __str__(self) -> str:
        return str(self.tenant_id)
