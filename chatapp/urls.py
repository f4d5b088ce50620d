"""Every HTTP address: health, the APIs, logging in, the operators' admin, and the pages."""

from __future__ import annotations

from typing import Any

from django.contrib import admin, messages
from django.contrib.auth import REDIRECT_FIELD_NAME
from django.contrib.auth.views import redirect_to_login
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import include, path, reverse
from django.utils.http import url_has_allowed_host_and_scheme
from django.views.decorators.cache import never_cache

from chatapp import health, languages
from chatapp.accounts.factors import operator_lacks_factor
from chatapp.metrics import views as metrics


def admin_login(request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
    """The operators log in where everyone does: counted and with a second factor, which the admin's own page is not.

    Whoever is logged in without being an operator is told so, and not asked to log in again.
    """
    user = request.user
    if not user.is_authenticated:
        after = request.GET.get(REDIRECT_FIELD_NAME, "")
        after = after if url_has_allowed_host_and_scheme(after, {request.get_host()}) else reverse("admin:index")
        return redirect_to_login(after)
    if not (user.is_active and user.is_staff):
        raise PermissionDenied
    if operator_lacks_factor(user):
        messages.warning(request, "Operators need a second factor here. Set one up to go on.")
        return redirect("mfa_index")
    return redirect("admin:index")


def may_operate(request: HttpRequest) -> bool:
    user = request.user
    return user.is_active and user.is_staff and not operator_lacks_factor(user)


admin.site.login = never_cache(admin_login)  # type: ignore[method-assign]
admin.site.has_permission = may_operate  # type: ignore[method-assign]

urlpatterns = [
    path("healthz", health.healthz),
    path("readyz", health.readyz),
    path("metrics", metrics.metrics),
    path("metrics/targets", metrics.targets),
    path("words/<language>/<digest>.js", languages.words, name="words"),
    path("", include("chatapp.api.urls")),
    path("accounts/", include("chatapp.accounts.urls")),
    path("accounts/", include("chatapp.tenants.account_urls")),
    path("", include("chatapp.dashboard.urls")),
    path("admin/", admin.site.urls),
    path("", include("chatapp.tenants.urls")),
    path("", include("chatapp.chat.urls")),
    path("", include("chatapp.shares.urls")),
]

handler400 = "chatapp.hygiene.bad_request"
handler404 = "chatapp.languages.not_found"
handler500 = "chatapp.away.server_error"
handler429 = "chatapp.accounts.throttle.too_many"
