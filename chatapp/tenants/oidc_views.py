"""The way in through a team's sign-in service: by address, to the service, and back."""

from __future__ import annotations

import time
from typing import Any
from urllib.parse import urlsplit
from uuid import UUID

import structlog
from allauth.account.internal.flows.login import record_authentication
from allauth.account.utils import perform_login
from allauth.core.internal import ratelimit
from django.conf import settings
from django.contrib.auth import logout
from django.db import IntegrityError
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.crypto import constant_time_compare
from django.utils.http import url_has_allowed_host_and_scheme, urlencode
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods, require_safe

from chatapp.accounts.forms import WorkAddressForm
from chatapp.accounts.throttle import too_many, wait_s
from chatapp.tenants import oidc
from chatapp.tenants.arrivals import NotLetIn, arrive, service_by_id, service_for
from chatapp.tenants.sign_in import SignIn

log = structlog.get_logger(__name__)

ATTEMPTS = "oidc_attempts"
MOST_ATTEMPTS = 5
LASTS_S = 600
APP = "octavo"
RATES = {"by_address": "20/m/ip", "by_service": "30/m/ip"}


def _limited(request: HttpRequest, action: str) -> HttpResponse | None:
    if ratelimit.consume(request, app=APP, action=action, config=RATES, limit_get=True):
        return None
    return too_many(request, wait=wait_s(request, action, app=APP, config=RATES))


def _next(request: HttpRequest) -> str:
    url = (request.POST if request.method == "POST" else request.GET).get("next", "")
    return url if url_has_allowed_host_and_scheme(url, {request.get_host()}) else ""


def _callback(service: SignIn) -> str:
    return settings.OCTAVO_URL.rstrip("/") + reverse("oidc-callback", args=[service.pk])


def _failed(request: HttpRequest, message: str, *, status: int = 403, title: str = "") -> HttpResponse:
    return render(request, "socialaccount/authentication_error.html", {"why": message, "title": title}, status=status)


@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
def by_address(request: HttpRequest) -> HttpResponse:
    """Asks for an address and leads to the service that speaks for it. Says nothing about accounts."""
    form = WorkAddressForm(request.POST or None, initial={"email": request.GET.get("email", "")})
    if request.method == "POST":
        if (response := _limited(request, "by_address")) is not None:
            return response
        if form.is_valid():
            service = service_for(form.cleaned_data["email"])
            if service is not None:
                query = urlencode({"hint": form.cleaned_data["email"], "next": _next(request)})
                return redirect(f"{reverse('oidc-login', args=[service.pk])}?{query}")
            form.add_error("email", _("No team has a sign-in service for addresses of this domain."))
    return render(request, "account/by_address.html", {"form": form, "next": _next(request)})


@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
def login(request: HttpRequest, service_id: UUID) -> HttpResponse:
    """Says where one is going; going there is a POST, so that no foreign page can begin a login."""
    service = service_by_id(service_id)
    if service is None:
        raise Http404
    if (response := _limited(request, "by_service")) is not None:
        return response
    if request.get_host() != urlsplit(settings.OCTAVO_URL).netloc:
        # The service answers at the one address that it knows, and the session has to be there then.
        return redirect(settings.OCTAVO_URL.rstrip("/") + request.get_full_path())
    hint = (request.POST if request.method == "POST" else request.GET).get("hint", "")[:254]
    try:
        if request.method == "POST":
            return _send(request, service, hint)
        where = oidc.origin(service)
    except oidc.SignInFailed as error:
        log.warning("oidc.unreachable", service=str(service.pk), reason=error.reason)
        return _failed(request, str(error), status=502)
    context = {"team": service.tenant.name, "where": where, "hint": hint, "next": _next(request)}
    response = render(request, "socialaccount/login.html", context)
    # The form's answer leads there, which the policy would forbid.
    response._csp_update = {"form-action": [where]}  # type: ignore[attr-defined]
    return response


def _send(request: HttpRequest, service: SignIn, hint: str) -> HttpResponse:
    url, attempt = oidc.begin(service, callback=_callback(service), hint=hint)
    pending = request.session.get(ATTEMPTS, [])
    pending.append([str(service.pk), attempt.state, attempt.nonce, attempt.verifier, _next(request), time.time()])
    request.session[ATTEMPTS] = pending[-MOST_ATTEMPTS:]
    return redirect(url)


def _take(request: HttpRequest, service: SignIn) -> tuple[oidc.Attempt, str] | None:
    """This browser's attempt that the answer belongs to, once; and where it wanted to go."""
    state = request.GET.get("state", "")
    pending: list[list[Any]] = request.session.get(ATTEMPTS, [])
    for entry in pending:
        if entry[0] == str(service.pk) and constant_time_compare(entry[1], state):
            request.session[ATTEMPTS] = [other for other in pending if other is not entry]
            return (oidc.Attempt(*entry[1:4]), entry[4]) if time.time() - entry[5] < LASTS_S else None
    return None


@never_cache
@require_safe
def callback(request: HttpRequest, service_id: UUID) -> HttpResponse:
    service = service_by_id(service_id)
    if service is None:
        raise Http404
    taken = _take(request, service)
    if taken is None:
        return _failed(request, "This sign-in was begun elsewhere, or too long ago. Begin it again.", status=400)
    if request.GET.get("error") == "access_denied":
        return render(request, "socialaccount/login_cancelled.html")
    attempt, after = taken
    code = request.GET.get("code", "")
    if not code or len(code) > 4096:
        log.warning("oidc.refused", service=str(service.pk), reason=request.GET.get("error", "")[:80])
        return _failed(request, f"The sign-in service of {service.tenant.name} did not let you in.")
    try:
        identity = oidc.finish(service, callback=_callback(service), code=code, attempt=attempt)
        try:
            user = arrive(service, identity)
        except IntegrityError:
            # Two tabs at once made the same account; now it is there.
            user = arrive(service, identity)
    except oidc.SignInFailed as error:
        log.warning("oidc.failed", service=str(service.pk), reason=error.reason)
        return _failed(request, f"{error} Try again, or tell whoever manages {service.tenant.name}.")
    except NotLetIn as refusal:
        log.info("oidc.not_let_in", service=str(service.pk))
        return _failed(request, refusal.message)
    if request.user.is_authenticated and request.user.pk != user.pk:
        logout(request)
    record_authentication(request, user, "socialaccount", provider=str(service.pk), uid=identity.subject)
    to = after or reverse("workspace", args=[service.tenant.slug])
    return perform_login(request, user, email_verification="none", redirect_url=to)
