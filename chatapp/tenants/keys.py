"""What people and keys of a team do with its API keys: make, rotate, change, revoke. Each leaves an audit entry.

People who may manage keys give any scope. A key that manages keys gives no more than it has: no scope beyond its own
rights, no later expiry, no wider origins or networks; and it neither rotates nor changes a key that has more.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from django.db import IntegrityError, models, transaction
from django.utils import timezone
from django.utils.translation import gettext as _

from chatapp.audit.services import record
from chatapp.cursors import within_time
from chatapp.errors import BadInput, Conflict, Forbidden, NotFound
from chatapp.ids import parse_id
from chatapp.tenants.access import Access
from chatapp.tenants.key_limits import networks_within, origins_within, parse_networks, parse_origins
from chatapp.tenants.models import ApiKey, KeyScope, KeyState
from chatapp.tenants.permissions import OF_SCOPE, Permission
from chatapp.tenants.services import create_api_key, revoke_api_key

LONGEST_NAME = 120
# A key that is to be kept longer than this has no expiry.
LONGEST_LIFE = timedelta(days=3660)


class Overlap(models.TextChoices):
    """How long a rotated key goes on working beside its successor."""

    NONE = "0", "Stop the old key now"
    HOUR = "1h", "1 hour"
    DAY = "24h", "24 hours"
    WEEK = "7d", "7 days"


OVERLAPS = {
    Overlap.NONE: timedelta(0),
    Overlap.HOUR: timedelta(hours=1),
    Overlap.DAY: timedelta(hours=24),
    Overlap.WEEK: timedelta(days=7),
}


@dataclass(frozen=True)
class Limits:
    """What a key may and from where, checked. The fields have the names of the model's."""

    scopes: list[str]
    expires_at: datetime | None
    allowed_origins: list[str]
    allowed_networks: list[str]


@transaction.atomic
def create_key(
    *,
    access: Access,
    name: str,
    scopes: Iterable[str],
    expires_at: datetime | None = None,
    allowed_origins: Iterable[str] = (),
    allowed_networks: Iterable[str] = (),
) -> tuple[ApiKey, str]:
    """The key and its secret, which is told once. Raises Forbidden, BadInput, Conflict."""
    access.require(Permission.MANAGE_KEYS)
    limits = Limits(
        _scopes(scopes), _future(expires_at), parse_origins(allowed_origins), parse_networks(allowed_networks)
    )
    _hold_to_own(access, limits)
    key, secret = _make(access, _name(name), limits)
    record("key.created", actor=access.actor, tenant=access.tenant, on=key, details=_told(limits))
    return key, secret


@transaction.atomic
def rotate_key(*, access: Access, key_id: object, overlap: str) -> tuple[ApiKey, str]:
    """A successor with the same rights and name, and its secret. The old one works for the overlap's time."""
    access.require(Permission.MANAGE_KEYS)
    if overlap not in Overlap.values:
        raise BadInput(_("Choose one of %(choices)s.") % {"choices": ", ".join(Overlap.values)}, param="overlap")
    old = _usable(access, key_id)
    if old.state == KeyState.EXPIRED:
        raise Conflict(_("This key has expired. Give it a later expiry first, or create a new one."))
    limits = _limits_of(old)
    _hold_to_own(access, limits)
    now = timezone.now()
    ends = now + OVERLAPS[Overlap(overlap)]
    # The condition lets one of two rotations through; the other finds nothing to replace.
    mine = ApiKey.objects.filter(pk=old.pk, revoked_at=None, replaced_at=None).update(
        replaced_at=now,
        revoked_at=now if overlap == Overlap.NONE else None,
        expires_at=ends if old.expires_at is None else min(ends, old.expires_at),
    )
    if not mine:
        raise Conflict(_("This key has been rotated or revoked meanwhile. Look at the list of keys."))
    new, secret = _make(access, old.name, limits, replaces=old)
    record(
        "key.rotated",
        actor=access.actor,
        tenant=access.tenant,
        on=new,
        details={"replaces": str(old), "old_key_works_for": Overlap(overlap).value},
    )
    return new, secret


@transaction.atomic
def change_key(*, access: Access, key_id: object, changes: Mapping[str, Any]) -> ApiKey:
    """Change name, scopes, expires_at, allowed_origins or allowed_networks; what is not named stays."""
    access.require(Permission.MANAGE_KEYS)
    key = _usable(access, key_id)
    _hold_to_own(access, _limits_of(key))
    before = _limits_of(key)
    name = _name(changes["name"]) if "name" in changes else key.name
    after = Limits(
        _scopes(changes["scopes"]) if "scopes" in changes else before.scopes,
        _changed_expiry(changes["expires_at"], before) if "expires_at" in changes else before.expires_at,
        parse_origins(changes["allowed_origins"]) if "allowed_origins" in changes else before.allowed_origins,
        parse_networks(changes["allowed_networks"]) if "allowed_networks" in changes else before.allowed_networks,
    )
    _hold_to_own(access, after)
    was, now = {"name": key.name, **_told(before)}, {"name": name, **_told(after)}
    details = {field: [was.get(field), now.get(field)] for field in was | now if was.get(field) != now.get(field)}
    if not details:
        return key
    if name.lower() != key.name.lower():
        _free_name(access, name)
    try:
        with transaction.atomic():
            ApiKey.objects.filter(pk=key.pk).update(name=name, **vars(after))
    except IntegrityError:
        raise _name_taken(name) from None
    key.refresh_from_db()
    record("key.changed", actor=access.actor, tenant=access.tenant, on=key, details=details)
    return key


@transaction.atomic
def revoke_key(*, access: Access, key_id: object) -> ApiKey:
    """It ends for good, its open sockets within a second. Again on a revoked key: nothing happens."""
    access.require(Permission.MANAGE_KEYS)
    key = _found(access, key_id)
    if revoke_api_key(key=key):
        record("key.revoked", actor=access.actor, tenant=access.tenant, on=key)
    key.refresh_from_db()
    return key


# --- checks -------------------------------------------------------------------------------------------------------


def _found(access: Access, key_id: object) -> ApiKey:
    key = ApiKey.objects.filter(tenant=access.tenant, pk=parse_id(key_id)).first()
    if key is None:
        raise NotFound(_("There is no such key."))
    return key


def _usable(access: Access, key_id: object) -> ApiKey:
    key = _found(access, key_id)
    if key.state == KeyState.REVOKED:
        raise Conflict(_("This key was revoked, which is for good. Create a new one."))
    if key.replaced_at is not None:
        raise Conflict(_("This key has been rotated; change its successor instead, or revoke this one."))
    return key


def _limits_of(key: ApiKey) -> Limits:
    return Limits(list(key.scopes), key.expires_at, list(key.allowed_origins), list(key.allowed_networks))


def _name(name: str) -> str:
    name = " ".join("".join(c for c in name if c.isprintable() or c.isspace()).split())
    if not name:
        raise BadInput(_("Give the key a name that says what uses it."), param="name")
    if len(name) > LONGEST_NAME:
        raise BadInput(
            _("A name has %(most)s characters at most; this has %(n)s.") % {"most": LONGEST_NAME, "n": len(name)},
            param="name",
        )
    return name


def _scopes(scopes: Iterable[str]) -> list[str]:
    wanted = list(scopes)
    for scope in wanted:
        if scope not in KeyScope.values:
            raise BadInput(
                _("%(text)s is no scope; there are %(choices)s.")
                % {"text": f"{str(scope)[:40]!r}", "choices": ", ".join(KeyScope.values)},
                param="scopes",
            )
    if not wanted:
        raise BadInput(_("Choose at least one thing that the key may do."), param="scopes")
    if KeyScope.SYSTEM in wanted and KeyScope.CHAT not in wanted:
        raise BadInput(_("A system message of one's own needs the scope chat as well."), param="scopes")
    return [scope.value for scope in KeyScope if scope in wanted]


def _future(moment: datetime | None) -> datetime | None:
    if moment is None:
        return None
    now = timezone.now()
    if within_time(moment) is None:
        raise BadInput(_("Say a time with its zone, as in 2027-01-31T12:00:00Z."), param="expires_at")
    if moment <= now:
        raise BadInput(_("This time is over. Choose a later one, or revoke the key."), param="expires_at")
    if moment > now + LONGEST_LIFE:
        raise BadInput(_("A key can expire ten years from now at the latest."), param="expires_at")
    return moment


def _changed_expiry(moment: datetime | None, before: Limits) -> datetime | None:
    return moment if moment == before.expires_at else _future(moment)


def _hold_to_own(access: Access, limits: Limits) -> None:
    """Raises Forbidden where a key would give, or reach through, another key with more than its own rights."""
    own = access.key
    if own is None:
        return
    asked = frozenset[Permission]().union(*(OF_SCOPE[KeyScope(s)] for s in limits.scopes if s in KeyScope.values))
    if not asked <= access.permissions:
        raise Forbidden(_("A key cannot give a key more scopes than it has itself."), param="scopes")
    if own.expires_at is not None and (limits.expires_at is None or limits.expires_at > own.expires_at):
        raise Forbidden(_("A key cannot give a key a later expiry than its own."), param="expires_at")
    if not origins_within(limits.allowed_origins, own.allowed_origins):
        raise Forbidden(_("A key cannot give a key more origins than it has itself."), param="allowed_origins")
    if not networks_within(limits.allowed_networks, own.allowed_networks):
        raise Forbidden(_("A key cannot give a key wider networks than its own."), param="allowed_networks")


def _free_name(access: Access, name: str) -> None:
    taken = ApiKey.objects.filter(tenant=access.tenant, name__iexact=name, revoked_at=None, replaced_at=None).first()
    if taken is not None:
        raise _name_taken(name, expired=taken.state == KeyState.EXPIRED)


def _name_taken(name: str, *, expired: bool = False) -> Conflict:
    if expired:
        return Conflict(
            _("An expired key is called %(name)s too. Revoke it first, or choose another name.") % {"name": name},
            param="name",
        )
    return Conflict(
        _("Another key is called %(name)s already. Choose a name that tells the two apart.") % {"name": name},
        param="name",
    )


def _make(access: Access, name: str, limits: Limits, *, replaces: ApiKey | None = None) -> tuple[ApiKey, str]:
    _free_name(access, name)
    try:
        with transaction.atomic():
            return create_api_key(
                tenant=access.tenant,
                name=name,
                created_by=access.user,
                created_with=access.key,
                replaces=replaces,
                **{**vars(limits), "scopes": [KeyScope(scope) for scope in limits.scopes]},
            )
    except IntegrityError:
        raise _name_taken(name) from None


def _told(limits: Limits) -> dict[str, Any]:
    """For the audit log; what is not limited is not named."""
    told: dict[str, Any] = {"scopes": ", ".join(limits.scopes)}
    if limits.expires_at is not None:
        told["expires"] = limits.expires_at.astimezone(UTC).isoformat(timespec="seconds")
    if limits.allowed_origins:
        told["origins"] = ", ".join(limits.allowed_origins)
    if limits.allowed_networks:
        told["networks"] = ", ".join(limits.allowed_networks)
    return told
