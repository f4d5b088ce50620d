"""The people of a team as pages: the list, one person, and leaving it oneself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID

from django import forms
from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy as _l

from chatapp.errors import Forbidden, NotFound, Refusal
from chatapp.languages import inside
from chatapp.tenants import members, selectors
from chatapp.tenants.access import Access
from chatapp.tenants.models import Membership
from chatapp.tenants.pages import is_repeat, page, tenant_page
from chatapp.tenants.permissions import OF_ROLE, Permission, Role
from chatapp.tenants.roles import descriptions

SECTION = "tenant-members"


class Filters(forms.Form):
    """What the list is narrowed to; nonsense narrows nothing."""

    q = forms.CharField(label=_l("Search"), required=False)
    role = forms.ChoiceField(label=_l("Role"), required=False, choices=[("", _l("Any role")), *Role.choices])
    state = forms.ChoiceField(
        label=_l("State"),
        required=False,
        choices=[("", _l("Any state")), ("active", _l("Active")), ("suspended", _l("Suspended"))],
    )


class RoleForm(forms.Form):
    role = forms.ChoiceField(label=_l("Role"))

    def __init__(self, access: Access, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        field = self.fields["role"]
        assert isinstance(field, forms.ChoiceField)
        field.choices = [(role.value, role.label) for role in members.assignable_roles(access)]


@tenant_page(Permission.READ_MEMBERS)
def people(request: HttpRequest, access: Access) -> HttpResponse:
    filters = Filters(request.GET)
    filters.is_valid()
    narrowed = {name: str(filters.cleaned_data.get(name, "")) for name in ("q", "role", "state")}
    found = selectors.members_page(
        access,
        search=narrowed["q"],
        role=narrowed["role"],
        state=narrowed["state"],
        page=request.GET.get("page"),
    )
    query = request.GET.copy()
    query.pop("page", None)
    context = {
        "people": found,
        "filters": filters,
        "narrowed": any(narrowed.values()),
        "query": query.urlencode(),
        "open_invitations": selectors.count_of_invitations(access),
        "roles": descriptions(),
    }
    return page(request, access, "tenant/members.html", context)


@tenant_page(Permission.READ_MEMBERS)
def person(request: HttpRequest, access: Access, member_id: UUID) -> HttpResponse:
    return _person(request, access, selectors.member(access, member_id))


def _person(
    request: HttpRequest, access: Access, member: Membership, refusal: Refusal | None = None, status: int = 200
) -> HttpResponse:
    """The page of one member, with a refusal of what was just tried."""
    own = access.user is not None and member.user_id == access.user.pk
    typed = request.POST.get("role", member.role)
    context = {
        "section": SECTION,
        "member": member,
        "own": own,
        "manages": members.may_manage(access, member),
        "form": RoleForm(access, initial={"role": typed}),
        "may_transfer": access.may(Permission.TRANSFER_OWNERSHIP) and not own and member.suspended_at is None,
        "refusal": refusal,
        "roles": descriptions(),
    }
    return page(request, access, "tenant/member.html", context, status=status)


def _role(access: Access, member: Membership, request: HttpRequest) -> str:
    changed = members.change_role(access=access, membership_id=member.pk, role=request.POST.get("role", ""))
    return _("%(email)s is %(role)s now.") % {
        "email": changed.user.email,
        "role": inside(str(Role(changed.role).label)),
    }


def _suspend(access: Access, member: Membership, request: HttpRequest) -> str:
    members.suspend(access=access, membership_id=member.pk)
    return _("%(email)s is suspended. Their chats in this team have been disconnected.") % {"email": member.user.email}


def _resume(access: Access, member: Membership, request: HttpRequest) -> str:
    members.resume(access=access, membership_id=member.pk)
    return _("%(email)s may come in again.") % {"email": member.user.email}


def _remove(access: Access, member: Membership, request: HttpRequest) -> str:
    members.remove(access=access, membership_id=member.pk)
    return _("%(email)s belongs to the team no more. Invite them again to undo this.") % {"email": member.user.email}


def _transfer(access: Access, member: Membership, request: HttpRequest) -> str:
    members.transfer_ownership(access=access, membership_id=member.pk, confirm=request.POST.get("confirm", ""))
    return _("%(email)s owns the team now. You are an admin.") % {"email": member.user.email}


ACTIONS: dict[str, Callable[[Access, Membership, HttpRequest], str]] = {
    "role": _role,
    "suspend": _suspend,
    "resume": _resume,
    "remove": _remove,
    "transfer": _transfer,
}


@tenant_page(Permission.MANAGE_MEMBERS, methods=("POST",))
def act(request: HttpRequest, access: Access, member_id: UUID, action: str) -> HttpResponse:
    """One action on one member. What it needs beyond that, the service asks for."""
    if action not in ACTIONS:
        raise Http404
    try:
        member = selectors.member(access, member_id)
    except NotFound:
        if action == "remove" and is_repeat(request):
            return redirect("tenant-members", slug=access.tenant.slug)
        raise
    if action != "role" and is_repeat(request):
        return redirect("tenant-member", slug=access.tenant.slug, member_id=member_id)
    try:
        said = ACTIONS[action](access, member, request)
    except (Forbidden, NotFound):
        raise
    except Refusal as refusal:
        member.refresh_from_db()
        return _person(request, access, member, refusal, status=refusal.status)
    own = access.user is not None and member.user_id == access.user.pk
    if own and action == "role" and Permission.READ_MEMBERS not in OF_ROLE[Role(request.POST["role"])]:
        return redirect("workspace", slug=access.tenant.slug)
    messages.success(request, said)
    if action == "remove":
        return redirect("tenant-members", slug=access.tenant.slug)
    return redirect("tenant-member", slug=access.tenant.slug, member_id=member_id)


@tenant_page(None, methods=("GET", "HEAD", "POST"))
def leave(request: HttpRequest, access: Access) -> HttpResponse:
    """Anybody's own way out; the last owner is told what to do first."""
    refusal: Refusal | None = None
    if request.method == "POST":
        try:
            members.leave(access=access)
        except Refusal as refused:
            refusal = refused
        else:
            messages.success(request, _("You have left %(team)s.") % {"team": access.tenant.name})
            return redirect("home")
    context = {"refusal": refusal, "last_owner": members.is_last_owner(access)}
    return page(request, access, "tenant/leave.html", context, status=refusal.status if refusal else 200)
