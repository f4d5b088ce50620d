"""A team's administration: its first page, and the team's own pages. Other apps add theirs under the same address."""

from __future__ import annotations

from django.urls import path

from chatapp.tenants import pages

urlpatterns = [
    path("t/<slug:slug>/admin/", pages.index, name="tenant-admin"),
]
