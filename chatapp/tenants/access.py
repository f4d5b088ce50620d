"""Who is asking, for which tenant. An Access comes from a session's user or from a key, and from nothing else.

Everything that reads or writes a tenant's rows takes one, so no request can name a tenant that it has no part in: a
foreign tenant does not exist for it.
"""

from __future__ import annotations

import hmac
from collections.abc import Collection
from dataclasses import dataclass
from datetime import timedelta

from django.contrib.auth.models import AnonymousUser
from django.utils import timezone

from chatapp.accounts.models import User
from chatapp.audit.models import ActorKind
from chatapp.audit.services import Actor
from chatapp.errors import Forbidden
from chatapp.scope import unscoped
from chatapp.tenants.models import KEY_PREFIX, SHOWN_CHARACTERS, ApiKey, Membership, Tenant, hash_key
from chatapp.tenants.permissions import OF_ROLE, OF_SCOPE, Permission, Role

# How exact `last_used_at` is; a write per request would be a write in the request path.
LAST_USE_EVERY = timedelta(minutes=1)
# The same of a member's `last_seen_at`: whoever reads a list of people needs no more.
SEEN_EVERY = timedelta(minutes=5)


class NoAccess(Exception):
    """No such tenant for this user."""


class BadKey(Exception):
    """No key, a wrong one, or one that was revoked."""


@dataclass(frozen=True)
class Access:
    """Exactly one of `user` and `key` is set; `role` is None for a key."""

    tenant: Tenant
    user: User | None = None
    key: ApiKey | None = None
    role: str | None = None

    @property
    def principal(self) -> str:
        if self.user is not None:
            return f"user:{self.user.pk}"
        assert self.key is not None
        return f"key:{self.key.pk}"

    @property
    def actor(self) -> Actor:
        """Who the audit log says it was."""
        if self.user is not None:
            return Actor(ActorKind.USER, str(self.user.pk), self.user.email)
        assert self.key is not None
        return Actor(ActorKind.KEY, str(self.key.pk), str(self.key))

    @property
    def role_name(self) -> str:
        return str(Role(self.role).label) if self.role else ""

    @property
    def permissions(self) -> frozenset[Permission]:
        if self.key is not None:
            return frozenset[Permission]().union(*(OF_SCOPE[scope] for scope in self.key.scopes))
        return OF_ROLE[Role(self.role)] if self.role else frozenset()

    def may(self, permission: Permission) -> bool:
        return permission in self.permissions

    def require(self, permission: Permission) -> None:
        """Raises Forbidden, which says what is missing and who can give it."""
        if self.may(permission):
            return
        if self.key is not None:
            raise Forbidden(f"This key's scopes do not include {permission.value}; ask an admin for a key that may.")
        raise Forbidden(
            f"Your role in this team is {self.role_name.lower()}, which does not include this. Ask an owner or admin."
        )


def access_for_user(user: User | AnonymousUser, slug: str) -> Access:
    """The user's part in a tenant. Raises NoAccess for a tenant that is not theirs, as for one that does not exist."""
    if not user.is_authenticated or not user.is_active:
        raise NoAccess(slug)
    with unscoped("access"):
        found = Membership.objects.select_related("tenant", "user").filter(tenant__slug=slug, user=user)
        membership = found.filter(suspended_at=None, tenant__suspended_at=None).first()
        if membership is None:
            raise NoAccess(slug)
        _note_seen(membership)
    return Access(tenant=membership.tenant, user=membership.user, role=membership.role)


@unscoped("access")
def access_for_key(secret: str) -> Access:
    """The key's tenant. Raises BadKey. Compares hashes in constant time; the shown prefix finds the candidates."""
    if not secret.startswith(KEY_PREFIX) or not secret.isascii():
        raise BadKey
    digest = hash_key(secret)
    candidates = ApiKey.objects.select_related("tenant").filter(prefix=secret[:SHOWN_CHARACTERS], revoked_at=None)
    for key in candidates.filter(tenant__suspended_at=None):
        if hmac.compare_digest(key.hash, digest):
            _note_use(key)
            return Access(tenant=key.tenant, key=key)
    raise BadKey


@unscoped("access")
def revoked(accesses: Collection[Access]) -> set[Access]:
    """Those of the given accesses that do not hold any more: key revoked, membership or role gone, account closed."""
    keys = {access.key.pk for access in accesses if access.key is not None}
    users = {access.user.pk for access in accesses if access.user is not None}
    live_keys = set(
        ApiKey.objects.filter(pk__in=keys, revoked_at=None, tenant__suspended_at=None).values_list("pk", flat=True)
    )
    live_members = set(
        Membership.objects.filter(
            user__in=users, user__is_active=True, suspended_at=None, tenant__suspended_at=None
        ).values_list("tenant", "user", "role")
    )

    def holds(access: Access) -> bool:
        if access.key is not None:
            return access.key.pk in live_keys
        assert access.user is not None
        return (access.tenant.pk, access.user.pk, access.role) in live_members

    return {access for access in accesses if not holds(access)}


def _note_seen(membership: Membership) -> None:
    now = timezone.now()
    if membership.last_seen_at is None or now - membership.last_seen_at > SEEN_EVERY:
        Membership.objects.filter(pk=membership.pk).update(last_seen_at=now)


def _note_use(key: ApiKey) -> None:
    now = timezone.now()
    if key.last_used_at is None or now - key.last_used_at > LAST_USE_EVERY:
        ApiKey.objects.filter(pk=key.pk).update(last_used_at=now)
