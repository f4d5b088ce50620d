"""What changes tenants: memberships and keys."""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from typing import Any

from django.db import transaction
from django.utils import timezone

from chatapp.accounts.models import User
from chatapp.tenants.models import KEY_PREFIX, SHOWN_CHARACTERS, ApiKey, KeyScope, Membership, Tenant, hash_key


def create_api_key(
    *,
    tenant: Tenant,
    name: str,
    scopes: Iterable[KeyScope] = (KeyScope.CHAT,),
    created_by: User | None = None,
    **limits: Any,
) -> tuple[ApiKey, str]:
    """The row and the secret. The secret is nowhere else and cannot be shown again.

    For set-up and operators; people and keys of a team go through chatapp.tenants.keys, which asks what they may.
    """
    secret = KEY_PREFIX + secrets.token_urlsafe(32)
    key = ApiKey.objects.create(
        tenant=tenant,
        name=name,
        prefix=secret[:SHOWN_CHARACTERS],
        hash=hash_key(secret),
        scopes=[scope.value for scope in KeyScope if scope in set(scopes)],
        created_by=created_by,
        **limits,
    )
    return key, secret


def revoke_api_key(*, key: ApiKey) -> bool:
    """Once revoked, always revoked: the first time is kept. False when it was revoked before."""
    return bool(ApiKey.objects.filter(pk=key.pk, revoked_at=None).update(revoked_at=timezone.now()))


@transaction.atomic
def add_member(*, tenant: Tenant, user: User, role: str) -> Membership:
    membership, _ = Membership.objects.update_or_create(tenant=tenant, user=user, defaults={"role": role})
    return membership
