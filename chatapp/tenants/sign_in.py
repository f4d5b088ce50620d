"""How a team's people sign in: whether they need a second factor, its own sign-in service (OIDC), its mail domains.

A service speaks for the mail domains that its team has claimed and an operator has confirmed, for that very issuer,
and for no others. Of all teams one at most holds a domain.
"""

from __future__ import annotations

from django.conf import settings
from django.db import models
from django.utils import timezone
from django.utils.translation import gettext_lazy as _l

from chatapp.ids import new_id
from chatapp.owned import TenantOwned
from chatapp.tenants.permissions import Role


class MfaRule(models.TextChoices):
    """Who needs a second factor before anything else of the team."""

    NONE = "none", _l("Nobody has to")
    MANAGERS = "managers", _l("Owners and admins")
    EVERYONE = "everyone", _l("Everyone")

    def covers(self, role: str) -> bool:
        return self is MfaRule.EVERYONE or (self is MfaRule.MANAGERS and role in (Role.OWNER, Role.ADMIN))


class SignIn(TenantOwned):
    """A team without a row has the defaults. The team's own id stands in the service's callback address."""

    tenant = models.OneToOneField("tenants.Tenant", primary_key=True, on_delete=models.CASCADE, related_name="sign_in")
    mfa = models.CharField(max_length=10, choices=MfaRule.choices, default=MfaRule.NONE)
    enabled = models.BooleanField(default=False)
    issuer = models.CharField(max_length=500, blank=True)
    client_id = models.CharField(max_length=255, blank=True)
    sealed_secret = models.TextField(blank=True, editable=False)
    # What people become who come by the service for the first time.
    role = models.CharField(max_length=10, choices=Role.choices, default=Role.MEMBER)

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=models.Q(enabled=False) | ~(models.Q(issuer="") | models.Q(client_id="")),
                name="sign_in_enabled_is_complete",
            ),
            models.CheckConstraint(condition=~models.Q(role=Role.OWNER), name="sign_in_makes_no_owners"),
        ]

    def __str__(self) -> str:
        return f"Sign-in of {self.tenant}"


class DomainClaim(TenantOwned):
    """`confirmed_at` None: an operator has not looked at it, and it counts for nothing."""

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    tenant = models.ForeignKey("tenants.Tenant", on_delete=models.CASCADE, related_name="domain_claims")
    domain = models.CharField(max_length=253)
    created_at = models.DateTimeField(default=timezone.now, editable=False)
    confirmed_at = models.DateTimeField(null=True, blank=True, editable=False)
    confirmed_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, blank=True, editable=False, on_delete=models.SET_NULL, related_name="+"
    )

    class Meta:
        ordering = ["domain"]
        constraints = [
            models.UniqueConstraint(fields=["tenant", "domain"], name="domain_claimed_once"),
            # A claim that nobody has confirmed keeps no other team from the domain that is really theirs.
            models.UniqueConstraint(
                fields=["domain"], condition=models.Q(confirmed_at__isnull=False), name="domain_held_by_one_team"
            ),
        ]

    def __str__(self) -> str:
        return self.domain
