"""The operators' pages; included before the admin's own addresses."""

from __future__ import annotations

from django.contrib import admin
from django.urls import path

from chatapp.dashboard import views

urlpatterns = [
    path("admin/occupancy/", admin.site.admin_view(views.occupancy), name="occupancy"),
]
