"""What can be read of tenants."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from django.contrib.auth.models import AnonymousUser
from django.core.paginator import Paginator
from django.db.models import Q, QuerySet
from django.utils import timezone
from django.utils.translation import gettext as _

from chatapp.accounts.models import User
from chatapp.errors import NotFound
from chatapp.ids import parse_id
from chatapp.scope import unscoped
from chatapp.tenants.access import Access
from chatapp.tenants.models import Invitation, Membership, Tenant
from chatapp.tenants.permissions import OF_ROLE, Permission, Role
from chatapp.tenants.sign_in import SignIn

PAGE = 50
# What a list of members can be narrowed to besides a role.
STATES = {"active": Q(suspended_at=None), "suspended": Q(suspended_at__isnull=False)}

Row = TypeVar("Row")


def tenants_of(user: User | AnonymousUser) -> list[Tenant]:
    """The tenants that a user may enter, by name."""
    if not user.is_authenticated:
        return []
    with unscoped("own teams"):
        active = Tenant.objects.filter(suspended_at=None, memberships__user=user, memberships__suspended_at=None)
        return list(active.order_by("name", "slug"))


def chat_teams_of(user: User | AnonymousUser) -> list[Tenant]:
    """Those of them that the user may chat in."""
    with unscoped("own teams"):
        roles = [role for role in Role if Permission.CHAT in OF_ROLE[role]]
        own = Membership.objects.filter(user=user.pk, role__in=roles).values_list("tenant_id", flat=True)
        mine = set(own)
    return [tenant for tenant in tenants_of(user) if tenant.pk in mine]


def closed_teams_of(user: User | AnonymousUser) -> list[str]:
    """The names of the teams that the user belongs to and may not enter now, by name."""
    if not user.is_authenticated:
        return []
    with unscoped("own teams"):
        closed = Q(suspended_at__isnull=False) | Q(tenant__suspended_at__isnull=False)
        found = Membership.objects.filter(closed, user=user)
        return list(found.order_by("tenant__name").values_list("tenant__name", flat=True))


@dataclass(frozen=True)
class Listed(Generic[Row]):
    """One page of a list; `number` counts from 1, `total` counts rows."""

    items: Sequence[Row]
    number: int
    pages: int
    total: int

    @property
    def previous(self) -> int | None:
        return self.number - 1 if self.number > 1 else None

    @property
    def next(self) -> int | None:
        return self.number + 1 if self.number < self.pages else None


def _listed(rows: QuerySet[Any], number: int | str | None, size: int = PAGE) -> Listed[Any]:
    """The page nearest to the number that is asked for; what is none is the first."""
    found = Paginator(rows, size).get_page(number)
    return Listed(list(found.object_list), found.number, found.paginator.num_pages, found.paginator.count)


def members(access: Access, *, search: str = "", role: str = "", state: str = "") -> QuerySet[Membership]:
    """`search` looks into names and addresses; a role or state that is none narrows nothing. Evaluate it in the
    tenant's scope."""
    access.require(Permission.READ_MEMBERS)
    rows = Membership.objects.select_related("user").order_by("user__email", "pk")
    for word in search.replace("\0", "").split()[:5]:
        rows = rows.filter(Q(user__email__icontains=word) | Q(user__name__icontains=word))
    if role in dict(Membership._meta.get_field("role").choices or ()):
        rows = rows.filter(role=role)
    if state in STATES:
        rows = rows.filter(STATES[state])
    return rows


def members_page(
    access: Access, *, search: str = "", role: str = "", state: str = "", page: int | str | None = 1
) -> Listed[Any]:
    """By address."""
    return _listed(members(access, search=search, role=role, state=state), page)


def member(access: Access, membership_id: object) -> Membership:
    access.require(Permission.READ_MEMBERS)
    found = Membership.objects.select_related("user").filter(pk=parse_id(membership_id)).first()
    if found is None:
        raise NotFound(_("There is no such member."), param="member_id")
    return found


def own_membership(access: Access) -> Membership:
    return Membership.objects.select_related("user").get(tenant=access.tenant, user=access.user)


def _waiting() -> QuerySet[Invitation]:
    return Invitation.objects.filter(accepted_at=None, withdrawn_at=None)


def invitations(access: Access) -> QuerySet[Invitation]:
    """Those that nobody has answered yet, the expired ones among them. Evaluate it in the tenant's scope."""
    access.require(Permission.READ_MEMBERS)
    return _waiting().order_by("-sent_at", "-pk")


def invitations_page(access: Access, *, page: int | str | None = 1) -> Listed[Any]:
    """Newest first."""
    return _listed(invitations(access), page)


def count_of_invitations(access: Access) -> int:
    """How many can still be accepted."""
    access.require(Permission.READ_MEMBERS)
    return _waiting().filter(expires_at__gt=timezone.now()).count()


def people_in(tenant: Tenant) -> int:
    """How many people can get in."""
    return Membership.objects.filter(tenant=tenant, suspended_at=None, user__is_active=True).count()


def sign_in_of(tenant: Tenant) -> SignIn:
    """How the team's people sign in: with the defaults, in no row yet, where nobody has changed them."""
    return SignIn.objects.filter(tenant=tenant).first() or SignIn(tenant=tenant)
