"""What the pages of a team's administration share: who asks, in whose scope, the frame around them, and refusals.

A view gets the Access of the session's user, already allowed what the page needs, and runs in that tenant's scope. A
foreign team does not exist (404); what a role does not include is said in the frame (403). Who lacks a second factor
that the team wants is led to setting one up.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any

from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.core.cache import cache
from django.forms import BaseForm
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import redirect, render
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods

from chatapp.errors import Forbidden, NotFound, Refusal
from chatapp.scope import tenant_scope
from chatapp.tenants import nav
from chatapp.tenants.access import Access, MfaRequired, NoAccess, access_for_user
from chatapp.tenants.permissions import Permission
from chatapp.tenants.selectors import tenants_of

View = Callable[..., HttpResponseBase]


@dataclass(frozen=True)
class Banner:
    """Something that everyone who may know of it should see on each page. `kind`: warn or bad; `view` says more."""

    kind: str
    text: str
    view: str


# What apps above this one have to say in the frame; each asks the Access whether its reader may know of it.
BANNERS: list[Callable[[Access], Banner | None]] = []
ONCE = "once"
ONCE_FOR_S = 600
# Where somebody was going who had to set up a second factor first: the pages of that lead there afterwards.
WANTED = "wanted"


def tenant_page(needs: Permission | None, *, methods: tuple[str, ...] = ("GET", "HEAD")) -> Callable[[View], View]:
    """Decorates `view(request, access, **kwargs)` at an address with the tenant's <slug>. None: any role will do."""

    def decorate(view: View) -> View:
        @wraps(view)
        @require_http_methods(list(methods))
        @never_cache
        @login_required
        def wrapped(request: HttpRequest, slug: str, **kwargs: Any) -> HttpResponseBase:
            try:
                access = access_for_user(request.user, slug)
            except NoAccess:
                raise Http404 from None
            except MfaRequired as refusal:
                messages.warning(request, refusal.message)
                request.session[WANTED] = request.get_full_path()
                return redirect("mfa_index")
            if WANTED in request.session:
                del request.session[WANTED]
            with tenant_scope(access.tenant):
                try:
                    if needs is not None:
                        access.require(needs)
                    return view(request, access, **kwargs)
                except NotFound:
                    raise Http404 from None
                except Forbidden as refusal:
                    return page(request, access, "tenant/forbidden.html", {"refusal": refusal}, status=403)

        # For the test that walks every address as every role.
        wrapped.needs, wrapped.methods = needs, methods  # type: ignore[attr-defined]
        return wrapped

    return decorate


def page(
    request: HttpRequest, access: Access, template: str, context: dict[str, Any] | None = None, *, status: int = 200
) -> HttpResponse:
    """A page in the frame (templates/tenant/frame.html)."""
    return render(request, template, {**frame(request, access), **(context or {})}, status=status)


def frame(request: HttpRequest, access: Access) -> dict[str, Any]:
    """What the frame needs: the team, the reader's other teams, who the reader is here, and where the pages are."""
    tenant = access.tenant
    return {
        "access": access,
        "tenant": tenant,
        "tenants": tenants_of(request.user),
        "accent": tenant.accent,
        "base": f"/t/{tenant.slug}/",
        "account": access.user.get_short_name() if access.user else "",
        "role": access.role_name,
        "may": {permission.name: True for permission in access.permissions},
        "admin_links": nav.links(access),
        "banners": [banner for say in BANNERS if (banner := say(access)) is not None],
        "here": request.resolver_match.view_name if request.resolver_match else "",
    }


@tenant_page(None)
def index(request: HttpRequest, access: Access) -> HttpResponse:
    """The first page that the reader may open."""
    for link in nav.links(access):
        return redirect(link.url)
    raise Forbidden(_("Your role in this team does not include its administration. Ask an owner or admin."))


def refuse(form: BaseForm, refusal: Refusal) -> None:
    """A service's refusal as an error of the form, at the field that it names."""
    form.add_error(refusal.param if refusal.param in form.fields else None, refusal.message)


def is_repeat(request: HttpRequest) -> bool:
    """True when this very form has been sent before: by a double click, or a reload that sends it again.

    The form carries {% once %}. Ask only once it is valid: a form that is shown again has a token of its own.
    """
    token = request.POST.get(ONCE, "")
    if not token:
        return False
    return not cache.add(f"once:{request.user.pk}:{token[:64]}", 1, ONCE_FOR_S)


def once_token() -> str:
    return uuid.uuid4().hex
