"""The operators' pages, included before the admin's own addresses, and the pages of a team's administration."""

from __future__ import annotations

from django.contrib import admin
from django.urls import path

from chatapp.dashboard import audit, data, invitations, keys, members, overview, own_data, team, usage, views

urlpatterns = [
    path("admin/occupancy/", admin.site.admin_view(views.occupancy), name="occupancy"),
    path("t/<slug:slug>/admin/members", members.people, name="tenant-members"),
    path("t/<slug:slug>/admin/members/<uuid:member_id>", members.person, name="tenant-member"),
    path("t/<slug:slug>/admin/members/<uuid:member_id>/<slug:action>", members.act, name="tenant-member-act"),
    path("t/<slug:slug>/admin/invitations", invitations.waiting, name="tenant-invitations"),
    path("t/<slug:slug>/admin/invitations/new", invitations.invite, name="tenant-invite"),
    path(
        "t/<slug:slug>/admin/invitations/<uuid:invitation_id>/<slug:action>",
        invitations.act,
        name="tenant-invitation-act",
    ),
    path("t/<slug:slug>/admin/", overview.overview, name="tenant-overview"),
    path("t/<slug:slug>/admin/usage", usage.usage, name="tenant-usage"),
    path("t/<slug:slug>/admin/usage/export", usage.download_usage, name="tenant-usage-export"),
    path("t/<slug:slug>/usage", usage.own, name="own-usage"),
    path("t/<slug:slug>/admin/audit", audit.log, name="tenant-audit"),
    path("t/<slug:slug>/admin/settings", team.settings, name="tenant-settings"),
    path("t/<slug:slug>/leave", members.leave, name="tenant-leave"),
    path("invitations/<str:token>", invitations.accept, name="invitation"),
    path("t/<slug:slug>/admin/keys", keys.index, name="tenant-keys"),
    path("t/<slug:slug>/admin/keys/new", keys.create, name="tenant-key-new"),
    path("t/<slug:slug>/admin/keys/<uuid:key_id>", keys.detail, name="tenant-key"),
    path("t/<slug:slug>/admin/keys/<uuid:key_id>/rotate", keys.rotate, name="tenant-key-rotate"),
    path("t/<slug:slug>/admin/keys/<uuid:key_id>/revoke", keys.revoke, name="tenant-key-revoke"),
    path("t/<slug:slug>/admin/data", data.data, name="tenant-data"),
    path("t/<slug:slug>/admin/data/exports/<uuid:export_id>", data.export_file, name="tenant-export-file"),
    path("accounts/data", own_data.own_data, name="account-data"),
    path("accounts/data/exports/<uuid:export_id>", own_data.own_export_file, name="account-export-file"),
    path(
        "accounts/data/exports/<uuid:export_id>/progress", own_data.own_export_progress, name="account-export-progress"
    ),
]
