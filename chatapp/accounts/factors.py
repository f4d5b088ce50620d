"""Second factors: who has one, and which operators lack one that they need."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from uuid import UUID

from allauth.mfa.models import Authenticator
from django.conf import settings

# Recovery codes only stand in for one of these.
COUNTED = (Authenticator.Type.TOTP, Authenticator.Type.WEBAUTHN)


def with_second_factor(users: Iterable[UUID]) -> set[UUID]:
    """Those of the users who have one."""
    return set(Authenticator.objects.filter(user__in=list(users), type__in=COUNTED).values_list("user_id", flat=True))


def has_second_factor(user: Any) -> bool:
    return user.pk in with_second_factor([user.pk])


def operator_lacks_factor(user: Any) -> bool:
    """True for an operator who may not work as one before setting up a second factor."""
    return bool(settings.OCTAVO_OPERATOR_MFA and user.is_staff) and not has_second_factor(user)
