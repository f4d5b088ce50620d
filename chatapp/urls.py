"""Every HTTP address: health, the APIs, logging in, the operators' admin, and the pages."""

from __future__ import annotations

from django.contrib import admin
from django.urls import include, path

from chatapp import health

urlpatterns = [
    path("healthz", health.healthz),
    path("readyz", health.readyz),
    path("", include("chatapp.api.urls")),
    path("accounts/", include("allauth.account.urls")),
    path("", include("chatapp.dashboard.urls")),
    path("admin/", admin.site.urls),
    path("", include("chatapp.chat.urls")),
]
