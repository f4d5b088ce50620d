"""Plans, what an operator changed of them for one tenant, what a tenant set lower for its people and keys, and what
has been used of a month.

A column of NULL is no limit (in a plan), the plan's value (in a tenant's overrides), or the wider limit (in a lower
one). Meters count per month and subject: "" is the tenant, others are principals ("user:7", "key:…").
"""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models
from django.db.models import F, Q
from django.utils import timezone

from chatapp.ids import new_id
from chatapp.limits.values import BY_NAME, OF_PERSON, Values
from chatapp.owned import TenantOwned
from chatapp.tenants.models import ApiKey, Tenant

TEAM = ""
"""The subject of a tenant as a whole."""


def _whole(name: str, least: int = 1) -> Any:
    kind = BY_NAME[name]
    return models.PositiveIntegerField(
        kind.title.lower(), null=True, blank=True, validators=[MinValueValidator(least)], help_text=kind.help
    )


class LowerColumns(models.Model):
    """Those limits that can be set for a person or a key too."""

    requests_per_minute = _whole("requests_per_minute")
    tokens_per_minute = _whole("tokens_per_minute")
    concurrent_answers = _whole("concurrent_answers")
    context_tokens = _whole("context_tokens")
    output_tokens = _whole("output_tokens")
    tokens_per_month = models.PositiveBigIntegerField(
        BY_NAME["tokens_per_month"].title.lower(),
        null=True,
        blank=True,
        validators=[MinValueValidator(1)],
        help_text=BY_NAME["tokens_per_month"].help,
    )

    class Meta:
        abstract = True


class AllColumns(LowerColumns):
    queue_length = _whole("queue_length")
    kv_share = models.FloatField(
        BY_NAME["kv_share"].title.lower(),
        null=True,
        blank=True,
        validators=[MinValueValidator(0.001), MaxValueValidator(1.0)],
        help_text=BY_NAME["kv_share"].help,
    )
    weight = models.FloatField(
        null=True, blank=True, validators=[MinValueValidator(0.01)], help_text=BY_NAME["weight"].help
    )
    files_mb = _whole("files_mb")

    class Meta:
        abstract = True

    @property
    def values(self) -> Values:
        return Values(**{name: getattr(self, name) for name in BY_NAME})


def _positive(prefix: str, names: tuple[str, ...]) -> list[models.CheckConstraint]:
    return [
        models.CheckConstraint(condition=Q(**{f"{name}__gt": 0}) | Q(**{name: None}), name=f"{prefix}_{name}")
        for name in names
    ]


ALL = tuple(BY_NAME)
LOWER = tuple(kind.name for kind in OF_PERSON)


class Plan(AllColumns):
    """The platform's: what tenants of this plan may do. New tenants get the default one."""

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    name = models.CharField(max_length=60, unique=True)
    is_default = models.BooleanField("default", default=False, help_text="New teams get this plan.")
    created_at = models.DateTimeField(default=timezone.now, editable=False)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["is_default"], condition=Q(is_default=True), name="plan_one_default"),
            models.CheckConstraint(condition=Q(kv_share__lte=1.0) | Q(kv_share=None), name="plan_kv_share_most"),
            *_positive("plan", ALL),
        ]

    def __str__(self) -> str:
        return self.name


class TenantLimits(AllColumns, TenantOwned):
    """A tenant's plan, and the limits that an operator set otherwise for this tenant alone."""

    tenant = models.OneToOneField(Tenant, primary_key=True, on_delete=models.CASCADE, related_name="limits")
    plan = models.ForeignKey(Plan, on_delete=models.PROTECT, related_name="tenants")

    class Meta:
        verbose_name = verbose_name_plural = "plan and overrides"
        constraints = [
            models.CheckConstraint(condition=Q(kv_share__lte=1.0) | Q(kv_share=None), name="limits_kv_share_most"),
            *_positive("limits", ALL),
        ]

    def __str__(self) -> str:
        return f"limits of {self.tenant}"


class LowerLimits(LowerColumns, TenantOwned):
    """What a tenant's admins allow one key, one person, or (neither) every person who has nothing of their own."""

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    tenant = models.ForeignKey(Tenant, on_delete=models.CASCADE, related_name="lower_limits")
    user = models.ForeignKey(settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.CASCADE)
    key = models.ForeignKey(ApiKey, null=True, blank=True, on_delete=models.CASCADE)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["tenant", "user"], condition=Q(user__isnull=False), name="lower_one_a_user"
            ),
            models.UniqueConstraint(fields=["tenant", "key"], condition=Q(key__isnull=False), name="lower_one_a_key"),
            models.UniqueConstraint(
                fields=["tenant"], condition=Q(user__isnull=True, key__isnull=True), name="lower_one_default"
            ),
            models.CheckConstraint(condition=Q(user__isnull=True) | Q(key__isnull=True), name="lower_user_or_key"),
            *_positive("lower", LOWER),
        ]

    def __str__(self) -> str:
        return f"lower limits of {self.user or self.key or 'every person'}"


class Meter(TenantOwned):
    """Tokens of one month: `used` by what has ended, `reserved` by what is under way. `month` is its first day, UTC."""

    tenant = models.ForeignKey(Tenant, on_delete=models.CASCADE, related_name="meters")
    month = models.DateField()
    subject = models.CharField(max_length=60, blank=True)
    used = models.BigIntegerField(default=0)
    reserved = models.BigIntegerField(default=0)
    # The highest percentage that people have been told of; once a month each.
    warned = models.PositiveSmallIntegerField(default=0)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["tenant", "month", "subject"], name="meter_once"),
            models.CheckConstraint(condition=Q(used__gte=0), name="meter_used"),
            models.CheckConstraint(condition=Q(reserved__gte=0), name="meter_reserved"),
        ]

    def __str__(self) -> str:
        return f"{self.month:%Y-%m} {self.subject or 'team'}: {self.used} used"


class Reservation(TenantOwned):
    """What one generation may use at most, until it has ended. Whoever deletes it settles it: nobody does so twice."""

    generation = models.UUIDField(primary_key=True)
    tenant = models.ForeignKey(Tenant, on_delete=models.CASCADE, related_name="reservations")
    month = models.DateField()
    subject = models.CharField(max_length=60)
    tokens = models.BigIntegerField()
    # What the rates of a minute were charged: {subject: [limit, tokens, second of the epoch]}.
    charged = models.JSONField(default=dict)
    created_at = models.DateTimeField(default=timezone.now)
    # Behind its deadline: should nobody have settled it by then, nobody will.
    expires_at = models.DateTimeField()

    class Meta:
        indexes = [
            models.Index(fields=["tenant", "subject"], name="reservation_of"),
            models.Index(F("expires_at"), name="reservation_expiry"),
        ]

    def __str__(self) -> str:
        return f"{self.tokens} tokens for {self.generation}"
