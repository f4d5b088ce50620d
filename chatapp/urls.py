"""Every HTTP address: health, the APIs, logging in, the operators' admin, and the pages."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.contrib.admin import AdminSite
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.urls import include, path
from django.views.decorators.cache import never_cache

from chatapp import health


def admin_login(request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
    """The operators' login; whoever is logged in without being one is told so, and not asked to log in again."""
    if request.user.is_authenticated and not admin.site.has_permission(request):
        raise PermissionDenied
    return AdminSite.login(admin.site, request, extra_context)


admin.site.login = never_cache(admin_login)  # type: ignore[method-assign]

urlpatterns = [
    path("healthz", health.healthz),
    path("readyz", health.readyz),
    path("", include("chatapp.api.urls")),
    path("accounts/", include("allauth.account.urls")),
    path("", include("chatapp.dashboard.urls")),
    path("admin/", admin.site.urls),
    path("", include("chatapp.tenants.urls")),
    path("", include("chatapp.chat.urls")),
]

handler400 = "chatapp.hygiene.bad_request"
