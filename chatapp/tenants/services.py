"""What changes tenants: memberships and keys."""

from __future__ import annotations

import secrets

from django.db import transaction
from django.utils import timezone

from chatapp.accounts.models import User
from chatapp.tenants.models import KEY_PREFIX, SHOWN_CHARACTERS, ApiKey, Membership, Tenant, hash_key


def create_api_key(
    *, tenant: Tenant, name: str, own_system_message: bool = False, created_by: User | None = None
) -> tuple[ApiKey, str]:
    """The row and the secret. The secret is nowhere else and cannot be shown again."""
    secret = KEY_PREFIX + secrets.token_urlsafe(32)
    key = ApiKey.objects.create(
        tenant=tenant,
        name=name,
        prefix=secret[:SHOWN_CHARACTERS],
        hash=hash_key(secret),
        own_system_message=own_system_message,
        created_by=created_by,
    )
    return key, secret


def revoke_api_key(*, key: ApiKey) -> None:
    """Once revoked, always revoked: the first time is kept."""
    ApiKey.objects.filter(pk=key.pk, revoked_at=None).update(revoked_at=timezone.now())


@transaction.atomic
def add_member(*, tenant: Tenant, user: User, role: str) -> Membership:
    membership, _ = Membership.objects.update_or_create(tenant=tenant, user=user, defaults={"role": role})
    return membership
