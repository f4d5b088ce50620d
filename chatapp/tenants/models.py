"""Tenants, who belongs to them, and their API keys. Everything else that a tenant owns points here."""

from __future__ import annotations

import hashlib
import secrets

from django.conf import settings
from django.core.validators import RegexValidator
from django.db import models
from django.db.models.functions import Lower
from django.utils import timezone
from django.utils.translation import gettext_lazy as _l

from chatapp.ids import new_id
from chatapp.owned import TenantOwned
from chatapp.tenants.permissions import OF_SCOPE, KeyScope, Permission, Role

__all__ = [
    "Accent", "ApiKey", "DomainClaim", "Invitation", "KeyScope", "KeyState", "Membership", "MfaRule", "Role", "SignIn",
    "Tenant",
]  # fmt: skip

KEY_PREFIX = "octv_"
# Enough to find a key's row; 24 bits that tell an attacker nothing about the other 232.
SHOWN_CHARACTERS = 9


def new_salt() -> str:
    return secrets.token_hex(16)


class Accent(models.TextChoices):
    """The vetted palette: each has enough contrast in both themes (static/css/tokens.css)."""

    TEAL = "teal", _l("Teal")
    BLUE = "blue", _l("Blue")
    VIOLET = "violet", _l("Violet")
    PLUM = "plum", _l("Plum")
    ROSE = "rose", _l("Rose")
    RUST = "rust", _l("Rust")
    OCHRE = "ochre", _l("Ochre")
    MOSS = "moss", _l("Moss")


class Tenant(models.Model):
    """A team. Its salt keeps its KV blocks apart from everyone else's; what it may use is chatapp.limits'."""

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    slug = models.CharField(
        max_length=40,
        unique=True,
        validators=[RegexValidator(r"\A[a-z0-9](?:[a-z0-9-]*[a-z0-9])?\Z", "Use a-z, 0-9 and inner hyphens.")],
    )
    name = models.CharField(max_length=120)
    accent = models.CharField(max_length=10, choices=Accent.choices, default=Accent.TEAL)
    salt = models.CharField(max_length=64, default=new_salt, editable=False)
    default_model = models.CharField(max_length=120, blank=True, help_text="Empty: the platform's model.")
    # Names out of OCTAVO_MODELS. A name that is not served any more is kept: it may come back.
    allowed_models = models.JSONField(default=list, blank=True, help_text="None: all models that are served.")
    # Whether the model gives new conversations a title; else their first words are it.
    model_titles = models.BooleanField(default=False)
    created_at = models.DateTimeField(default=timezone.now, editable=False)
    # Nobody gets in while it is suspended; nothing of it is lost.
    suspended_at = models.DateTimeField(null=True, blank=True, editable=False)

    def __str__(self) -> str:
        return self.name

    @property
    def models(self) -> list[str]:
        """The models that the team may use now, of those that are served. Its default is always one of them."""
        return [
            name
            for name in settings.OCTAVO_MODEL_NAMES
            if not self.allowed_models or name in self.allowed_models or name == self.default_model
        ]

    @property
    def model(self) -> str:
        """The team's default, the first of its models where that is not served, and "" where none of them is."""
        names = self.models
        return self.default_model if self.default_model in names else names[0] if names else ""


class KeyState(models.TextChoices):
    """Not stored: it follows from a key's times. A replaced key works until its overlap ends."""

    ACTIVE = "active", _l("Active")
    REPLACED = "replaced", _l("Replaced")
    EXPIRED = "expired", _l("Expired")
    REVOKED = "revoked", _l("Revoked")


class Membership(TenantOwned):
    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    tenant = models.ForeignKey(Tenant, on_delete=models.CASCADE, related_name="memberships")
    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="memberships")
    role = models.CharField(max_length=10, choices=Role.choices, default=Role.MEMBER)
    created_at = models.DateTimeField(default=timezone.now, editable=False)
    suspended_at = models.DateTimeField(null=True, blank=True, editable=False)
    # To some minutes (access.SEEN_EVERY): the last page, call or socket in this tenant.
    last_seen_at = models.DateTimeField(null=True, blank=True, editable=False)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["tenant", "user"], name="membership_once")]

    def __str__(self) -> str:
        return f"{self.user} in {self.tenant}: {self.role}"


def new_nonce() -> str:
    return secrets.token_hex(16)


class Invitation(TenantOwned):
    """An offer to one address. Its link carries the id and `nonce`, signed; a new nonce ends the links before it."""

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    tenant = models.ForeignKey(Tenant, on_delete=models.CASCADE, related_name="invitations")
    email = models.EmailField()  # as tenants.addresses writes it, so that equal ones are equal
    role = models.CharField(max_length=10, choices=Role.choices, default=Role.MEMBER)
    nonce = models.CharField(max_length=32, default=new_nonce, editable=False)
    invited_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.SET_NULL, related_name="+"
    )
    inviter = models.CharField(max_length=254)  # the name as it was then: a person may go, and keys invite too
    created_at = models.DateTimeField(default=timezone.now, editable=False)
    sent_at = models.DateTimeField(default=timezone.now, editable=False)
    expires_at = models.DateTimeField(editable=False)
    mailed_at = models.DateTimeField(null=True, blank=True, editable=False)
    accepted_at = models.DateTimeField(null=True, blank=True, editable=False)
    accepted_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.SET_NULL, related_name="+"
    )
    withdrawn_at = models.DateTimeField(null=True, blank=True, editable=False)

    class Meta:
        indexes = [models.Index(fields=["tenant", "-sent_at"], name="invitation_list")]
        constraints = [
            models.UniqueConstraint(
                fields=["tenant", "email"],
                condition=models.Q(accepted_at=None, withdrawn_at=None),
                name="invitation_open_once",
            ),
            models.CheckConstraint(
                condition=models.Q(accepted_at=None) | models.Q(withdrawn_at=None),
                name="invitation_ends_one_way",
            ),
        ]

    def __str__(self) -> str:
        return self.email

    @property
    def expired(self) -> bool:
        return self.expires_at <= timezone.now()


def hash_key(secret: str) -> str:
    """SHA-256: a key has 256 random bits, so nothing slower is needed to keep it from being guessed."""
    return hashlib.sha256(secret.encode()).hexdigest()


def only_chat() -> list[str]:
    return [KeyScope.CHAT.value]


class ApiKey(TenantOwned):
    """A tenant's key for the APIs. The secret is shown once; here are its hash and its first characters.

    Rotation gives it a successor with the same rights (`replaces`); both work until the old one's `expires_at`.
    """

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    tenant = models.ForeignKey(Tenant, on_delete=models.CASCADE, related_name="api_keys")
    name = models.CharField(max_length=120)
    prefix = models.CharField(max_length=20, db_index=True, editable=False)
    hash = models.CharField(max_length=64, unique=True, editable=False)
    salt = models.CharField(max_length=64, default=new_salt, editable=False)
    # Values of KeyScope, in its order.
    scopes = models.JSONField(default=only_chat)
    # Where it may be used from; an empty list means anywhere (chatapp.tenants.key_limits).
    allowed_origins = models.JSONField(default=list, blank=True)
    allowed_networks = models.JSONField(default=list, blank=True)
    # Who made it: a person, or another key. People who leave leave their keys behind.
    created_by = models.ForeignKey(settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.SET_NULL)
    created_with = models.ForeignKey("self", null=True, blank=True, on_delete=models.SET_NULL, related_name="minted")
    created_at = models.DateTimeField(default=timezone.now, editable=False)
    expires_at = models.DateTimeField(null=True, blank=True)
    last_used_at = models.DateTimeField(null=True, blank=True, editable=False)
    last_used_address = models.GenericIPAddressField(null=True, blank=True, editable=False)
    revoked_at = models.DateTimeField(null=True, blank=True)
    # One successor at most: of two people who rotate at once the second is told.
    replaces = models.OneToOneField(
        "self", null=True, blank=True, on_delete=models.SET_NULL, related_name="successor", editable=False
    )
    replaced_at = models.DateTimeField(null=True, blank=True, editable=False)

    class Meta:
        indexes = [models.Index(fields=["tenant", "-created_at"], name="apikey_list")]
        constraints = [
            models.UniqueConstraint(
                "tenant",
                Lower("name"),
                condition=models.Q(revoked_at=None, replaced_at=None),
                name="apikey_name_once",
            )
        ]

    def __str__(self) -> str:
        return f"{self.prefix}… ({self.name})"

    @property
    def state(self) -> KeyState:
        if self.revoked_at is not None:
            return KeyState.REVOKED
        if self.expires_at is not None and self.expires_at <= timezone.now():
            return KeyState.EXPIRED
        return KeyState.REPLACED if self.replaced_at is not None else KeyState.ACTIVE

    @property
    def active(self) -> bool:
        """It opens doors; also while its successor does already."""
        return self.state in (KeyState.ACTIVE, KeyState.REPLACED)

    @property
    def permissions(self) -> frozenset[Permission]:
        """A scope that this version does not know gives nothing."""
        return frozenset[Permission]().union(*(OF_SCOPE[KeyScope(s)] for s in self.scopes if s in KeyScope.values))


# Django finds models here. They point back to Tenant by name.
from chatapp.tenants.sign_in import DomainClaim, MfaRule, SignIn  # noqa: E402
