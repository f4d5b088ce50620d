"""The operators' pages, included before the admin's own addresses, and the pages of a team's administration."""

from __future__ import annotations

from django.contrib import admin
from django.urls import path

from chatapp.dashboard import audit, views

urlpatterns = [
    path("admin/occupancy/", admin.site.admin_view(views.occupancy), name="occupancy"),
    path("t/<slug:slug>/admin/audit", audit.log, name="tenant-audit"),
]
