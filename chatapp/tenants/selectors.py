"""What can be read of tenants."""

from __future__ import annotations

from django.contrib.auth.models import AnonymousUser

from chatapp.accounts.models import User
from chatapp.scope import unscoped
from chatapp.tenants.models import Tenant


def tenants_of(user: User | AnonymousUser) -> list[Tenant]:
    """The tenants that a user may enter, by name."""
    if not user.is_authenticated:
        return []
    with unscoped("own teams"):
        active = Tenant.objects.filter(suspended_at=None, memberships__user=user, memberships__suspended_at=None)
        return list(active.order_by("name", "slug"))
