"""Addresses of an account: our own pages, and allauth's."""

from __future__ import annotations

from django.urls import include, path

from chatapp.accounts import views

urlpatterns = [
    path("", views.profile, name="account"),
    path("language", views.language, name="language"),
    path("sessions/", views.session_list, name="usersessions_list"),
    path("sessions/revoke", views.session_revoke, name="usersessions_revoke"),
    path("", include("allauth.account.urls")),
    path("2fa/", include("allauth.mfa.urls")),
]
