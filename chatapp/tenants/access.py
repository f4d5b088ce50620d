"""Who is asking, for which tenant. An Access comes from a session's user or from a key, and from nothing else.

Everything that reads or writes a tenant's rows takes one, so no request can name a tenant that it has no part in: a
foreign tenant does not exist for it.
"""

from __future__ import annotations

import hmac
from collections.abc import Collection
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from django.contrib.auth.models import AnonymousUser
from django.utils import timezone
from django.utils.translation import gettext as _

from chatapp.accounts.factors import with_second_factor
from chatapp.accounts.models import User
from chatapp.audit.models import ActorKind
from chatapp.audit.services import Actor
from chatapp.audit.source import NOWHERE, Source, source
from chatapp.errors import Forbidden, Refusal
from chatapp.languages import inside
from chatapp.scope import unscoped
from chatapp.tenants.key_limits import network_admitted, origin_admitted
from chatapp.tenants.models import KEY_PREFIX, SHOWN_CHARACTERS, ApiKey, KeyState, Membership, Tenant, hash_key
from chatapp.tenants.permissions import OF_ROLE, Permission, Role
from chatapp.tenants.sign_in import MfaRule, SignIn

# How exact `last_used_at` is; a write per request would be a write in the request path.
LAST_USE_EVERY = timedelta(minutes=1)
# The same of a member's `last_seen_at`: whoever reads a list of people needs no more.
SEEN_EVERY = timedelta(minutes=5)
NO_HASH = hash_key("")


class NoAccess(Exception):
    """No such tenant for this user."""


class MfaRequired(Forbidden):
    """The team is theirs, and wants a second factor that they have not set up."""

    code = "mfa_required"

    def __init__(self, tenant: Tenant) -> None:
        super().__init__(f"{tenant.name} asks for a second factor. Set one up in your account, then come back.")


class BadKey(Refusal):
    """A key that opens nothing. Only who has the whole secret is told more than that it is unknown."""

    status = 401
    code = "invalid_api_key"

    def __init__(self, message: str = "This API key is not valid: it is unknown.", *, code: str | None = None) -> None:
        super().__init__(message, code=code)


class NotFromHere(BadKey):
    """A right key at a place that it is not for."""

    status = 403


@dataclass(frozen=True)
class Access:
    """Exactly one of `user` and `key` is set; `role` is None for a key. `source`: where a key was used from."""

    tenant: Tenant
    user: User | None = None
    key: ApiKey | None = None
    role: str | None = None
    source: Source = NOWHERE

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
            return self.key.permissions
        return OF_ROLE[Role(self.role)] if self.role else frozenset()

    def may(self, permission: Permission) -> bool:
        return permission in self.permissions

    def require(self, permission: Permission) -> None:
        """Raises Forbidden, which says what is missing and who can give it."""
        if self.may(permission):
            return
        if self.key is not None:
            raise Forbidden(
                _("This key's scopes do not include %(value)s; ask an admin for a key that may.")
                % {"value": permission.value}
            )
        raise Forbidden(
            _("Your role in this team is %(role)s, which does not include this. Ask an owner or admin.")
            % {"role": inside(self.role_name)}
        )


def access_for_user(user: User | AnonymousUser, slug: str) -> Access:
    """The user's part in a tenant. Raises NoAccess for a tenant that is not theirs, as for one that does not exist.

    Raises MfaRequired where the team wants a second factor of this user first: nothing of the team is open without.
    """
    if not user.is_authenticated or not user.is_active:
        raise NoAccess(slug)
    with unscoped("access"):
        found = Membership.objects.select_related("tenant", "user").filter(tenant__slug=slug, user=user)
        membership = found.filter(suspended_at=None, tenant__suspended_at=None).first()
        if membership is None:
            raise NoAccess(slug)
        if _lacking({(membership.tenant_id, membership.user_id, membership.role)}):
            raise MfaRequired(membership.tenant)
        _note_seen(membership)
    return Access(tenant=membership.tenant, user=membership.user, role=membership.role)


@unscoped("access")
def access_for_key(secret: str) -> Access:
    """The key's tenant, for a request from where audit's source() says. Raises BadKey.

    The shown prefix finds the candidates, and hashes are compared in constant time, one at least: an unknown prefix
    answers no sooner. Whatever else is wrong with a key is looked at, and said, only once the secret has been proved.
    """
    if not secret.startswith(KEY_PREFIX) or not secret.isascii():
        raise BadKey
    digest = hash_key(secret)
    candidates = list(ApiKey.objects.select_related("tenant").filter(prefix=secret[:SHOWN_CHARACTERS]))
    found = None
    for key in candidates:
        if hmac.compare_digest(key.hash, digest):
            found = key
    if not candidates:
        hmac.compare_digest(NO_HASH, digest)
    if found is None:
        raise BadKey
    came = source()
    _admit(found, came)
    _note_use(found, came)
    return Access(tenant=found.tenant, key=found, source=came)


@unscoped("access")
def access_for_key_id(tenant_id: object, key_id: object) -> Access:
    """The same for a key that was proved before, by what has been given out in its name. Raises BadKey."""
    found = ApiKey.objects.select_related("tenant").filter(pk=key_id, tenant=tenant_id).first()
    if found is None:
        raise BadKey("The API key behind this is no more.")
    came = source()
    _admit(found, came)
    _note_use(found, came)
    return Access(tenant=found.tenant, key=found, source=came)


def _admit(key: ApiKey, came: Source) -> None:
    """Raises BadKey with the reason, for the holder of the key."""
    if key.state == KeyState.REVOKED:
        raise BadKey("This API key was revoked. Ask an admin of your team for another.")
    if key.state == KeyState.EXPIRED:
        assert key.expires_at is not None
        raise BadKey(f"This API key expired on {key.expires_at:%Y-%m-%d at %H:%M} UTC. Ask an admin for another.")
    if key.tenant.suspended_at is not None:
        raise NotFromHere("This key's team is suspended. Ask the operator of this Octavo.", code="team_suspended")
    if not network_admitted(key.allowed_networks, came.address):
        raise NotFromHere(
            f"This API key may not be used from the address {came.address or 'of this request'}. An admin can add it.",
            code="address_not_allowed",
        )
    if not origin_admitted(key.allowed_origins, came.origin):
        said = f"from {came.origin[:200]}" if came.origin else "without an Origin header"
        raise NotFromHere(
            f"This API key may not be used {said}: it is for web pages that an admin lists.", code="origin_not_allowed"
        )


@unscoped("access")
def access_of_job(key: ApiKey) -> Access:
    """For what a key has begun and nobody waits for: its rights as they are now, from where it was let in then. Where
    the key has been replaced and works no more, its successor's. Raises BadKey.
    """
    now = ApiKey.objects.select_related("tenant").get(pk=key.pk)
    while not now.active:
        successor = ApiKey.objects.select_related("tenant").filter(replaces=now).first()
        if successor is None:
            raise BadKey(f"The API key {now} works no more.")
        now = successor
    if now.tenant.suspended_at is not None:
        raise BadKey("The team is suspended.", code="team_suspended")
    return Access(tenant=now.tenant, key=now)


@unscoped("access")
def revoked(accesses: Collection[Access]) -> set[Access]:
    """Those of the given accesses that do not hold any more.

    A key: revoked, expired, with other scopes, or not for where it is used from. A person: membership, role or account
    gone.
    """
    keys = {access.key.pk for access in accesses if access.key is not None}
    users = {access.user.pk for access in accesses if access.user is not None}
    live_keys = ApiKey.objects.select_related("tenant").in_bulk(keys) if keys else {}
    live_members = set(
        Membership.objects.filter(
            user__in=users, user__is_active=True, suspended_at=None, tenant__suspended_at=None
        ).values_list("tenant", "user", "role")
    )

    live_members -= _lacking(live_members)

    def holds(access: Access) -> bool:
        if access.key is not None:
            now = live_keys.get(access.key.pk)
            return now is not None and _still(now, access)
        assert access.user is not None
        return (access.tenant.pk, access.user.pk, access.role) in live_members

    return {access for access in accesses if not holds(access)}


def _lacking(members: Collection[tuple[Any, Any, str]]) -> set[tuple[Any, Any, str]]:
    """Those of (tenant, user, role) whose team wants a second factor of them that they do not have."""
    rules = dict(
        SignIn.objects.filter(tenant__in={tenant for tenant, _, _ in members})
        .exclude(mfa=MfaRule.NONE)
        .values_list("tenant", "mfa")
    )
    covered = {member for member in members if member[0] in rules and MfaRule(rules[member[0]]).covers(member[2])}
    if not covered:
        return set()
    having = with_second_factor({user for _, user, _ in covered})
    return {member for member in covered if member[1] not in having}


def _note_seen(membership: Membership) -> None:
    now = timezone.now()
    if membership.last_seen_at is None or now - membership.last_seen_at > SEEN_EVERY:
        Membership.objects.filter(pk=membership.pk).update(last_seen_at=now)


def _still(now: ApiKey, access: Access) -> bool:
    assert access.key is not None
    try:
        _admit(now, access.source)
    except BadKey:
        return False
    return set(now.scopes) == set(access.key.scopes)


def _note_use(key: ApiKey, came: Source) -> None:
    now = timezone.now()
    if key.last_used_at is None or now - key.last_used_at > LAST_USE_EVERY:
        ApiKey.objects.filter(pk=key.pk).update(last_used_at=now, last_used_address=came.address)
