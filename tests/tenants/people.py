"""People for the tests of who belongs to a team: any number, in any role, and clients that are logged in as them."""

from __future__ import annotations

from typing import Any

from django.test import Client

from chatapp.accounts.models import User
from chatapp.tenants.access import Access, access_for_key, access_for_user
from chatapp.tenants.models import KeyScope, Membership, Role, Tenant
from chatapp.tenants.services import add_member, create_api_key


def join(tenant: Tenant, name: str, role: str = Role.MEMBER) -> Access:
    """Somebody new of this role."""
    user = User.objects.create_user(f"{name}@{tenant.slug}.test", "a password", name=name.title())
    add_member(tenant=tenant, user=user, role=role)
    return access_for_user(user, tenant.slug)


def admin_key(tenant: Tenant) -> tuple[Access, str]:
    """A key with the scope to administer the team, and its secret."""
    secret = create_api_key(tenant=tenant, name="Admin", scopes=[KeyScope.ADMIN])[1]
    return access_for_key(secret), secret


def membership(access: Access) -> Membership:
    return Membership.objects.select_related("user").get(tenant=access.tenant, user=access.user)


def log_in(access_or_user: Any) -> Client:
    client = Client()
    user = getattr(access_or_user, "user", access_or_user)
    client.force_login(user, backend="django.contrib.auth.backends.ModelBackend")
    return client
