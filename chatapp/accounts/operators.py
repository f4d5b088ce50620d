"""Who may look into the machine: operators see every tenant's blocks, so a tenant's own admins are not among them."""

from __future__ import annotations

from django.contrib.auth.base_user import AbstractBaseUser
from django.contrib.auth.models import AnonymousUser

from chatapp.accounts.factors import operator_lacks_factor


def is_operator(user: AbstractBaseUser | AnonymousUser | None) -> bool:
    return bool(
        user is not None
        and user.is_authenticated
        and user.is_active
        and getattr(user, "is_staff", False)
        and getattr(user, "is_superuser", False)
        and not operator_lacks_factor(user)
    )
