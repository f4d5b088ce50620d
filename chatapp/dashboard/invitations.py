"""Invitations as pages: for those who send them, and for whoever holds a link."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django import forms
from django.contrib import messages
from django.contrib.auth import login, password_validation
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils.html import format_html
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy as _l
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods

from chatapp.accounts.models import User
from chatapp.errors import Conflict, Forbidden, NotFound, Refusal
from chatapp.site.selectors import mail_is_set_up
from chatapp.tenants import addresses, invitations, selectors
from chatapp.tenants.access import Access, MfaRequired, NoAccess, access_for_user
from chatapp.tenants.invitations import LinkOver, LinkState
from chatapp.tenants.members import assignable_roles
from chatapp.tenants.models import Invitation
from chatapp.tenants.pages import is_repeat, page, refuse, tenant_page
from chatapp.tenants.permissions import Permission, Role
from chatapp.tenants.roles import describe

SECTION = "tenant-members"
RESULTS = "invited"
LONGEST_PASTE = 20_000
ROLE = '<strong>{}</strong><br><span class="quiet">{}</span>'
BACKEND = "django.contrib.auth.backends.ModelBackend"


class InviteForm(forms.Form):
    emails = forms.CharField(
        label=_l("Email addresses"),
        max_length=LONGEST_PASTE,
        widget=forms.Textarea(attrs={"rows": 4, "spellcheck": "false", "autocapitalize": "off"}),
        help_text=_l("One or more, up to %(most)s: one a line, or with commas between them.")
        % {"most": invitations.MOST_AT_ONCE},
    )
    role = forms.ChoiceField(label=_l("Role"), widget=forms.RadioSelect)

    def __init__(self, access: Access, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        field = self.fields["role"]
        assert isinstance(field, forms.ChoiceField)
        given = [describe(role) for role in assignable_roles(access)]
        field.choices = [(said.role.value, format_html(ROLE, said.name, said.may)) for said in given]
        field.initial = Role.MEMBER.value


@tenant_page(Permission.READ_MEMBERS)
def waiting(request: HttpRequest, access: Access) -> HttpResponse:
    """Who was invited and has not answered; first what the form has just done, address by address."""
    found = selectors.invitations_page(access, page=request.GET.get("page"))
    results = request.session.pop(RESULTS, None) or {}
    context = {
        "section": SECTION,
        "waiting": found,
        "rows": [(invitation, _link(request, access, invitation)) for invitation in found.items],
        "results": results.get("rows") if results.get("team") == access.tenant.slug else None,
        "open_invitations": selectors.count_of_invitations(access),
        "by_mail": mail_is_set_up(),
        "owners": access.may(Permission.TRANSFER_OWNERSHIP),
    }
    return page(request, access, "tenant/invitations.html", context)


def _link(request: HttpRequest, access: Access, invitation: Invitation) -> str:
    """To be handed over where no mail is sent. Only to who may send it: whoever holds it can join."""
    if not invitations.may_hand_over(access, invitation):
        return ""
    return request.build_absolute_uri(invitations.path(invitation))


@tenant_page(Permission.MANAGE_MEMBERS, methods=("GET", "HEAD", "POST"))
def invite(request: HttpRequest, access: Access) -> HttpResponse:
    form = InviteForm(access, request.POST or None)
    if request.method == "POST" and form.is_valid():
        if is_repeat(request):
            return redirect("tenant-invitations", slug=access.tenant.slug)
        try:
            said = invitations.invite(
                access=access, addresses=addresses.parse(form.cleaned_data["emails"]), role=form.cleaned_data["role"]
            )
        except Refusal as refusal:
            refuse(form, refusal)
        else:
            if all(one.outcome == "invalid" for one in said):
                form.add_error("emails", " ".join(f"{one.email}: {one.message}" for one in said))
            else:
                rows = [[one.email, one.outcome, one.message] for one in said]
                request.session[RESULTS] = {"team": access.tenant.slug, "rows": rows}
                return redirect("tenant-invitations", slug=access.tenant.slug)
    context = {"section": SECTION, "form": form, "by_mail": mail_is_set_up()}
    return page(request, access, "tenant/invite.html", context, status=400 if form.errors else 200)


@tenant_page(Permission.MANAGE_MEMBERS, methods=("POST",))
def act(request: HttpRequest, access: Access, invitation_id: UUID, action: str) -> HttpResponse:
    """Resend or withdraw."""
    if action not in ("resend", "withdraw"):
        raise Http404
    if not is_repeat(request):
        try:
            if action == "resend":
                sent = invitations.resend(access=access, invitation_id=invitation_id)
                if mail_is_set_up():
                    told = _("A new link for %(email)s is sent; the one before works no more.")
                else:
                    told = _("A new link for %(email)s is made; the one before works no more.")
                messages.success(request, told % {"email": sent.email})
            else:
                invitations.withdraw(access=access, invitation_id=invitation_id)
                messages.success(request, _("The invitation is withdrawn. Its link works no more."))
        except (Forbidden, NotFound):
            raise
        except Refusal as refusal:
            messages.error(request, refusal.message)
    return redirect("tenant-invitations", slug=access.tenant.slug)


# --- whoever holds the link -------------------------------------------------------------------------------------------


class AccountForm(forms.Form):
    name = forms.CharField(
        label=_l("Your name"), max_length=120, widget=forms.TextInput(attrs={"autocomplete": "name", "autofocus": True})
    )
    password = forms.CharField(
        label=_l("Password"),
        strip=False,
        max_length=1000,
        widget=forms.PasswordInput(attrs={"autocomplete": "new-password"}),
        help_text=password_validation.password_validators_help_text_html(),
    )
    again = forms.CharField(
        label=_l("Password again"),
        strip=False,
        max_length=1000,
        widget=forms.PasswordInput(attrs={"autocomplete": "new-password"}),
    )

    def clean(self) -> None:
        super().clean()
        password, again = self.cleaned_data.get("password"), self.cleaned_data.get("again")
        if password and again and password != again:
            self.add_error("again", _("The two passwords differ."))


@require_http_methods(["GET", "HEAD", "POST"])
@never_cache
def accept(request: HttpRequest, token: str) -> HttpResponse:
    try:
        invitation = invitations.open_link(token)
        if request.method == "POST":
            return _accept(request, token, invitation)
        return _offer(request, invitation)
    except LinkOver as over:
        return _over(request, over)


def _offer(
    request: HttpRequest, invitation: Invitation, form: AccountForm | None = None, refusal: Refusal | None = None
) -> HttpResponse:
    """What the reader can do with the link, being who they are."""
    account = invitations.account_of(invitation)
    if request.user.is_authenticated:
        way = "join" if account == request.user else "other"
    else:
        way = "login" if account is not None else "account"
    context = {
        "invitation": invitation,
        "tenant": invitation.tenant,
        "role": describe(Role(invitation.role)),
        "way": way,
        "form": form or AccountForm(),
        "refusal": refusal,
    }
    status = refusal.status if refusal else 400 if form is not None and form.errors else 200
    return render(request, "tenant/invitation.html", context, status=status)


def _accept(request: HttpRequest, token: str, invitation: Invitation) -> HttpResponse:
    try:
        if request.user.is_authenticated:
            assert isinstance(request.user, User)
            tenant = invitations.accept(token=token, user=request.user)
            return redirect("workspace", slug=tenant.slug)
        if invitations.account_of(invitation) is not None:
            raise Conflict(_("There is an account with this address already. Log in with it."), code="account_exists")
    except LinkOver:
        raise
    except Refusal as refusal:
        return _offer(request, invitation, refusal=refusal)
    form = AccountForm(request.POST)
    if form.is_valid():
        try:
            tenant, user = invitations.join_with_new_account(
                token=token, name=form.cleaned_data["name"], password=form.cleaned_data["password"]
            )
        except LinkOver:
            raise
        except Conflict as refusal:
            return _offer(request, invitation, refusal=refusal)
        except Refusal as refusal:
            refuse(form, refusal)
        else:
            login(request, user, backend=BACKEND)
            return redirect("workspace", slug=tenant.slug)
    return _offer(request, invitation, form)


def _over(request: HttpRequest, over: LinkOver) -> HttpResponse:
    """Why the link leads nowhere, and what to do. Whoever is in already, by this very link perhaps, goes in."""
    if over.code == LinkState.USED and over.tenant is not None and request.user.is_authenticated:
        try:
            access_for_user(request.user, over.tenant.slug)
        except NoAccess:
            pass
        except MfaRequired:  # which the workspace leads on from
            return redirect("workspace", slug=over.tenant.slug)
        else:
            return redirect("workspace", slug=over.tenant.slug)
    context = {"state": over.code, "tenant": over.tenant}
    return render(request, "tenant/invitation_over.html", context, status=over.status)
