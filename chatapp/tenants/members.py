"""What changes who belongs to a tenant, and as what. One transaction an action, its audit entry inside.

Every action takes the tenant's row first, so that two at once follow one another; what the actor may do is looked at
again behind that lock. Whatever happens, a tenant that has an owner who can act keeps one. Owners are touched and made
by those only who may hand the ownership over; nobody raises the own role.
"""

from __future__ import annotations

from django.db import transaction
from django.utils import timezone
from django.utils.translation import gettext as _

from chatapp.audit.services import record
from chatapp.errors import BadInput, Conflict, Forbidden, NotFound
from chatapp.ids import parse_id
from chatapp.tenants.access import Access, revoked
from chatapp.tenants.models import Membership, Tenant
from chatapp.tenants.permissions import OF_ROLE, Permission, Role

LAST_OWNER = "This is the team's last owner. Make somebody else an owner first, or hand the ownership over."
OWNERS_ONLY = "Only owners may change owners, and make them. Ask one."


def joined(member: Membership, by: str) -> dict[str, str]:
    """What others are told of a new member. `by`: invitation, sign_in or operator."""
    return {"id": str(member.pk), "email": member.user.email, "role": str(member.role), "by": by}


def assignable_roles(access: Access) -> list[Role]:
    """The roles that the asker may give."""
    if not access.may(Permission.MANAGE_MEMBERS):
        return []
    return [role for role in Role if role != Role.OWNER or access.may(Permission.TRANSFER_OWNERSHIP)]


def may_manage(access: Access, membership: Membership) -> bool:
    of_owners = membership.role != Role.OWNER or access.may(Permission.TRANSFER_OWNERSHIP)
    return access.may(Permission.MANAGE_MEMBERS) and of_owners


def lock(access: Access) -> Tenant:
    """Inside a transaction: the tenant's row, until its end. Raises Forbidden where the asker's right has ended."""
    # NO KEY: what only points at the tenant, such as a new chat, need not wait.
    tenant = Tenant.objects.select_for_update(no_key=True).get(pk=access.tenant.pk)
    if revoked({access}):
        raise Forbidden(_("Your own access to this team has just changed. Load the page again."))
    return tenant


def parse_role(access: Access, role: str) -> Role:
    """Raises BadInput for what is none, Forbidden for one that the asker may not give."""
    if role not in Role.values:
        raise BadInput(
            _("There is no such role. Choose one of %(choices)s.") % {"choices": ", ".join(Role.values)}, param="role"
        )
    if role not in assignable_roles(access):
        raise Forbidden(OWNERS_ONLY, param="role")
    return Role(role)


@transaction.atomic
def change_role(*, access: Access, membership_id: object, role: str) -> Membership:
    member = _managed(access, membership_id)
    wanted = parse_role(access, role)
    former = Role(member.role)
    if wanted == former:
        return member
    if access.user is not None and member.user_id == access.user.pk and not OF_ROLE[wanted] <= OF_ROLE[former]:
        raise Forbidden(_("You cannot give yourself a role that may more. Ask an owner."), param="role")
    if former == Role.OWNER:
        _keep_an_owner(without=member)
    member.role = wanted
    member.save(update_fields=["role"])
    _record("member.role_changed", access, member, {"role": [former.value, wanted.value]})
    return member


@transaction.atomic
def suspend(*, access: Access, membership_id: object) -> Membership:
    """Its sockets close within a second (chatapp.api.guard); pages, calls and new sockets end at once."""
    member = _managed(access, membership_id)
    if member.suspended_at is not None:
        return member
    if access.user is not None and member.user_id == access.user.pk:
        raise Conflict(_("You cannot suspend yourself. You can leave the team."))
    if member.role == Role.OWNER:
        _keep_an_owner(without=member)
    member.suspended_at = timezone.now()
    member.save(update_fields=["suspended_at"])
    _record("member.suspended", access, member, {"suspended": [False, True]})
    return member


@transaction.atomic
def resume(*, access: Access, membership_id: object) -> Membership:
    member = _managed(access, membership_id)
    if member.suspended_at is None:
        return member
    member.suspended_at = None
    member.save(update_fields=["suspended_at"])
    _record("member.resumed", access, member, {"suspended": [True, False]})
    return member


@transaction.atomic
def remove(*, access: Access, membership_id: object) -> None:
    """Conversations stay the person's own: nobody sees them until the person comes back, or retention takes them."""
    member = _managed(access, membership_id)
    if access.user is not None and member.user_id == access.user.pk:
        raise Conflict(_("You cannot remove yourself. You can leave the team."))
    if member.role == Role.OWNER:
        _keep_an_owner(without=member)
    _record("member.removed", access, member, {"role": [member.role, None]})
    member.delete()


@transaction.atomic
def leave(*, access: Access) -> None:
    """One's own membership ends; any role may."""
    if access.user is None:
        raise Forbidden(_("A key belongs to no team as a person does; revoke it instead."))
    tenant = lock(access)
    member = Membership.objects.select_related("user").get(tenant=tenant, user=access.user)
    if member.role == Role.OWNER:
        _keep_an_owner(without=member)
    _record("member.left", access, member, {"role": [member.role, None]})
    member.delete()


@transaction.atomic
def transfer_ownership(*, access: Access, membership_id: object, confirm: str) -> Membership:
    """The member becomes an owner, and the owner who asks an admin. `confirm`: the member's address, typed."""
    access.require(Permission.TRANSFER_OWNERSHIP)
    tenant = lock(access)
    assert access.user is not None, "no key may do this"
    member = _found(membership_id)
    if member.user_id == access.user.pk:
        raise Conflict(_("You own this team already. Choose somebody else."))
    if member.suspended_at is not None or not member.user.is_active:
        raise Conflict(_("%(email)s is suspended. Resume them first.") % {"email": member.user.email})
    if confirm.strip().lower() != member.user.email.lower():
        raise BadInput(_("Type %(email)s to confirm.") % {"email": member.user.email}, param="confirm")
    own = Membership.objects.select_related("user").get(tenant=tenant, user=access.user)
    former = member.role
    member.role, own.role = Role.OWNER, Role.ADMIN
    member.save(update_fields=["role"])
    own.save(update_fields=["role"])
    roles = {member.user.email: [former, member.role], own.user.email: [Role.OWNER.value, own.role]}
    _record("ownership.transferred", access, member, {"roles": roles})
    return member


def is_last_owner(access: Access) -> bool:
    """Whether the asker has to make somebody else an owner before leaving."""
    own = Membership.objects.select_related("tenant").filter(user=access.user, role=Role.OWNER).first()
    return own is not None and not _other_owners(own.tenant, own)


def _managed(access: Access, membership_id: object) -> Membership:
    """The member that the asker is to change, its tenant locked. NotFound comes after the right to ask."""
    access.require(Permission.MANAGE_MEMBERS)
    lock(access)
    member = _found(membership_id)
    if not may_manage(access, member):
        raise Forbidden(OWNERS_ONLY)
    return member


def _found(membership_id: object) -> Membership:
    member = Membership.objects.select_related("user", "tenant").filter(pk=parse_id(membership_id)).first()
    if member is None:
        raise NotFound(_("There is no such member."), param="member_id")
    return member


def _other_owners(tenant: Tenant, member: Membership) -> bool:
    others = Membership.objects.filter(tenant=tenant, role=Role.OWNER, suspended_at=None, user__is_active=True)
    return others.exclude(pk=member.pk).exists()


def is_only_owner(member: Membership) -> bool:
    """Whether the team would be left without an owner who can act for it; one who is suspended cannot."""
    can_act = member.role == Role.OWNER and member.suspended_at is None and member.user.is_active
    return can_act and not _other_owners(member.tenant, member)


def _keep_an_owner(*, without: Membership) -> None:
    if is_only_owner(without):
        raise Conflict(LAST_OWNER, code="last_owner")


def _record(action: str, access: Access, member: Membership, details: dict[str, object]) -> None:
    record(action, actor=access.actor, tenant=access.tenant, on=member, name=member.user.email, details=details)
