"""Addresses of an account that have to do with teams: signing in through a team's service."""

from __future__ import annotations

from django.urls import path

from chatapp.tenants import account_views, oidc_views

urlpatterns = [
    path("connections/", account_views.connections, name="socialaccount_connections"),
    path("by-address/", oidc_views.by_address, name="oidc-by-address"),
    path("oidc/<uuid:service_id>/login", oidc_views.login, name="oidc-login"),
    path("oidc/<uuid:service_id>/callback", oidc_views.callback, name="oidc-callback"),
]
