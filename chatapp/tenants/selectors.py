"""What can be read of tenants."""

from __future__ import annotations

from django.contrib.auth.models import AnonymousUser
from django.db.models import QuerySet

from chatapp.accounts.models import User
from chatapp.tenants.models import Tenant


def tenants_of(user: User | AnonymousUser) -> QuerySet[Tenant]:
    """The tenants that a user is a member of, by name."""
    if not user.is_authenticated:
        return Tenant.objects.none()
    return Tenant.objects.filter(memberships__user=user).order_by("name", "slug")
