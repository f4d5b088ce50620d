"""How a team's people sign in, as a page of its administration: second factor, sign-in service, mail domains."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID

from django.conf import settings
from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import reverse
from django.utils.translation import gettext as _

from chatapp.dashboard.sign_in_forms import DomainForm, MfaForm, ServiceForm
from chatapp.errors import Forbidden, NotFound, Refusal
from chatapp.tenants import sign_in_services as services
from chatapp.tenants.access import Access
from chatapp.tenants.pages import page, refuse, tenant_page
from chatapp.tenants.permissions import Permission
from chatapp.tenants.selectors import sign_in_of
from chatapp.tenants.sign_in import DomainClaim

P = Permission.MANAGE_SETTINGS


def _show(request: HttpRequest, access: Access, *, status: int = 200, **forms: Any) -> HttpResponse:
    row = sign_in_of(access.tenant)
    context = {
        "row": row,
        "claims": list(DomainClaim.objects.all()),
        "callback": settings.OCTAVO_URL.rstrip("/") + reverse("oidc-callback", args=[row.pk]),
        "mfa_form": MfaForm(initial={"mfa": row.mfa}),
        "service_form": ServiceForm(row=row, access=access),
        "domain_form": DomainForm(),
        "section": "tenant-sign-in",
        **forms,
    }
    return page(request, access, "tenant/sign_in.html", context, status=status)


def _done(request: HttpRequest, access: Access, message: str) -> HttpResponse:
    messages.success(request, message)
    return redirect("tenant-sign-in", slug=access.tenant.slug)


def _try(
    request: HttpRequest, access: Access, name: str, form: Any, action: Callable[[], object], message: str
) -> HttpResponse:
    """Runs the action of a valid form; what is refused is shown at its field, with what was typed."""
    if form.is_valid():
        try:
            action()
        except (Forbidden, NotFound):
            raise
        except Refusal as refusal:
            refuse(form, refusal)
            return _show(request, access, status=refusal.status, **{name: form})
        return _done(request, access, message)
    return _show(request, access, status=400, **{name: form})


@tenant_page(P)
def sign_in(request: HttpRequest, access: Access) -> HttpResponse:
    return _show(request, access)


@tenant_page(P, methods=("POST",))
def second_factor(request: HttpRequest, access: Access) -> HttpResponse:
    form = MfaForm(request.POST)
    return _try(
        request,
        access,
        "mfa_form",
        form,
        lambda: services.require_second_factor(access=access, rule=form.cleaned_data["mfa"]),
        _("Saved. Who has to set up a second factor is led there before anything else."),
    )


@tenant_page(P, methods=("POST",))
def service(request: HttpRequest, access: Access) -> HttpResponse:
    form = ServiceForm(request.POST, row=sign_in_of(access.tenant), access=access)
    return _try(
        request,
        access,
        "service_form",
        form,
        lambda: services.set_service(access=access, **form.cleaned_data),
        _("The sign-in service is saved."),
    )


@tenant_page(P, methods=("POST",))
def remove_service(request: HttpRequest, access: Access) -> HttpResponse:
    services.remove_service(access=access)
    return _done(request, access, _("The sign-in service is removed. People log in with their passwords."))


@tenant_page(P, methods=("POST",))
def claim_domain(request: HttpRequest, access: Access) -> HttpResponse:
    form = DomainForm(request.POST)
    return _try(
        request,
        access,
        "domain_form",
        form,
        lambda: services.claim_domain(access=access, domain=form.cleaned_data["domain"]),
        _("Claimed. It counts once an operator of this Octavo has confirmed it."),
    )


@tenant_page(P, methods=("POST",))
def withdraw(request: HttpRequest, access: Access, claim_id: UUID) -> HttpResponse:
    services.withdraw_domain(access=access, claim_id=claim_id)
    return _done(request, access, _("The claim is withdrawn."))
