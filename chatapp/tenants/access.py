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
from chatapp.tenants.models import KEY_PREFIX, SHOWN_CHARACTERS, ApiKey, Membership, Role, Tenant, hash_key

# How exact `last_used_at` is; a write per request would be a write in the request path.
LAST_USE_EVERY = timedelta(minutes=1)


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
    def may_send_system_messages(self) -> bool:
        return self.key is not None and self.key.own_system_message

    @property
    def is_admin(self) -> bool:
        return self.role in (Role.OWNER, Role.ADMIN)


def access_for_user(user: User | AnonymousUser, slug: str) -> Access:
    """The user's part in a tenant. Raises NoAccess for a tenant that is not theirs, as for one that does not exist."""
    if not user.is_authenticated or not user.is_active:
        raise NoAccess(slug)
    membership = Membership.objects.select_related("tenant", "user").filter(tenant__slug=slug, user=user).first()
    if membership is None:
        raise NoAccess(slug)
    return Access(tenant=membership.tenant, user=membership.user, role=membership.role)


def access_for_key(secret: str) -> Access:
    """The key's tenant. Raises BadKey. Compares hashes in constant time; the shown prefix finds the candidates."""
    if not secret.startswith(KEY_PREFIX) or not secret.isascii():
        raise BadKey
    digest = hash_key(secret)
    candidates = ApiKey.objects.select_related("tenant").filter(prefix=secret[:SHOWN_CHARACTERS], revoked_at=None)
    for key in candidates:
        if hmac.compare_digest(key.hash, digest):
            _note_use(key)
            return Access(tenant=key.tenant, key=key)
    raise BadKey


def revoked(accesses: Collection[Access]) -> set[Access]:
    """Those of the given accesses that do not hold any more: key revoked, membership or role gone, account closed."""
    keys = {access.key.pk for access in accesses if access.key is not None}
    users = {access.user.pk for access in accesses if access.user is not None}
    live_keys = set(ApiKey.objects.filter(pk__in=keys, revoked_at=None).values_list("pk", flat=True))
    live_members = set(
        Membership.objects.filter(user__in=users, user__is_active=True).values_list("tenant", "user", "role")
    )

    def holds(access: Access) -> bool:
        if access.key is not None:
            return access.key.pk in live_keys
        assert access.user is not None
        return (access.tenant.pk, access.user.pk, access.role) in live_members

    return {access for access in accesses if not holds(access)}


def _note_use(key: ApiKey) -> None:
    now = timezone.now()
    if key.last_used_at is None or now - key.last_used_at > LAST_USE_EVERY:
        ApiKey.objects.filter(pk=key.pk).update(last_used_at=now)
