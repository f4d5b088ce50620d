"""The operators' pages, included before the admin's own addresses, and the pages of a team's administration."""

from __future__ import annotations

from django.contrib import admin
from django.urls import path

from chatapp.dashboard import (
    audit,
    break_glass,
    data,
    invitations,
    keys,
    limits,
    members,
    overview,
    own_data,
    prompts,
    setup,
    sign_in,
    team,
    usage,
    views,
    webhooks,
)

ADMIN = "t/<slug:slug>/admin/"

urlpatterns = [
    path("admin/occupancy/", admin.site.admin_view(views.occupancy), name="occupancy"),
    path("admin/checklist/", admin.site.admin_view(views.checklist), name="checklist"),
    path("setup", setup.setup, name="setup"),
    path("admin/break-glass/", break_glass.index, name="break-glass"),
    path("admin/break-glass/<uuid:reading_id>/", break_glass.reading, name="break-glass-reading"),
    path("admin/break-glass/<uuid:reading_id>/close", break_glass.close, name="break-glass-close"),
    path(
        "admin/break-glass/<uuid:reading_id>/c/<uuid:conversation_id>",
        break_glass.conversation,
        name="break-glass-conversation",
    ),
    path(f"{ADMIN}", overview.overview, name="tenant-overview"),
    path(f"{ADMIN}usage", usage.usage, name="tenant-usage"),
    path(f"{ADMIN}usage/export", usage.download_usage, name="tenant-usage-export"),
    path("t/<slug:slug>/usage", usage.own, name="own-usage"),
    path(f"{ADMIN}members", members.people, name="tenant-members"),
    path(f"{ADMIN}members/<uuid:member_id>", members.person, name="tenant-member"),
    path(f"{ADMIN}members/<uuid:member_id>/<slug:action>", members.act, name="tenant-member-act"),
    path("t/<slug:slug>/leave", members.leave, name="tenant-leave"),
    path(f"{ADMIN}invitations", invitations.waiting, name="tenant-invitations"),
    path(f"{ADMIN}invitations/new", invitations.invite, name="tenant-invite"),
    path(f"{ADMIN}invitations/<uuid:invitation_id>/<slug:action>", invitations.act, name="tenant-invitation-act"),
    path("invitations/<str:token>", invitations.accept, name="invitation"),
    path(f"{ADMIN}prompts", prompts.listing, name="tenant-prompts"),
    path(f"{ADMIN}prompts/<uuid:assistant_id>", prompts.editor, name="tenant-prompt"),
    path(f"{ADMIN}prompts/<uuid:assistant_id>/versions", prompts.versions, name="tenant-prompt-versions"),
    path(f"{ADMIN}prompts/<uuid:assistant_id>/settings", prompts.settings, name="tenant-prompt-settings"),
    path(f"{ADMIN}prompts/versions/<uuid:version_id>", prompts.version, name="tenant-prompt-version"),
    path(
        f"{ADMIN}prompts/versions/<uuid:version_id>/diff/<uuid:other_id>",
        prompts.compare,
        name="tenant-prompt-diff",
    ),
    path(f"{ADMIN}keys", keys.index, name="tenant-keys"),
    path(f"{ADMIN}keys/new", keys.create, name="tenant-key-new"),
    path(f"{ADMIN}keys/<uuid:key_id>", keys.detail, name="tenant-key"),
    path(f"{ADMIN}keys/<uuid:key_id>/rotate", keys.rotate, name="tenant-key-rotate"),
    path(f"{ADMIN}keys/<uuid:key_id>/revoke", keys.revoke, name="tenant-key-revoke"),
    path(f"{ADMIN}webhooks", webhooks.index, name="tenant-webhooks"),
    path(f"{ADMIN}webhooks/new", webhooks.create, name="tenant-webhook-new"),
    path(f"{ADMIN}webhooks/<uuid:webhook_id>", webhooks.detail, name="tenant-webhook"),
    path(f"{ADMIN}webhooks/<uuid:webhook_id>/switch", webhooks.switch, name="tenant-webhook-switch"),
    path(f"{ADMIN}webhooks/<uuid:webhook_id>/rotate", webhooks.rotate, name="tenant-webhook-rotate"),
    path(f"{ADMIN}webhooks/<uuid:webhook_id>/test", webhooks.test, name="tenant-webhook-test"),
    path(f"{ADMIN}webhooks/<uuid:webhook_id>/delete", webhooks.delete, name="tenant-webhook-delete"),
    path(
        f"{ADMIN}webhooks/<uuid:webhook_id>/deliveries/<uuid:delivery_id>",
        webhooks.delivery,
        name="tenant-webhook-delivery",
    ),
    path(
        f"{ADMIN}webhooks/<uuid:webhook_id>/deliveries/<uuid:delivery_id>/again",
        webhooks.again,
        name="tenant-webhook-again",
    ),
    path(f"{ADMIN}limits", limits.overview, name="tenant-limits"),
    path(f"{ADMIN}limits/lower", limits.lower, name="tenant-limits-lower"),
    path(f"{ADMIN}limits/lower/<uuid:lower_id>/remove", limits.remove, name="tenant-limits-remove"),
    path(f"{ADMIN}audit", audit.log, name="tenant-audit"),
    path(f"{ADMIN}audit/export", audit.export, name="tenant-audit-export"),
    path(f"{ADMIN}data", data.data, name="tenant-data"),
    path(f"{ADMIN}data/exports/<uuid:export_id>", data.export_file, name="tenant-export-file"),
    path("accounts/data", own_data.own_data, name="account-data"),
    path("accounts/data/exports/<uuid:export_id>", own_data.own_export_file, name="account-export-file"),
    path(
        "accounts/data/exports/<uuid:export_id>/progress", own_data.own_export_progress, name="account-export-progress"
    ),
    path(f"{ADMIN}settings", team.settings, name="tenant-settings"),
    path(f"{ADMIN}sign-in", sign_in.sign_in, name="tenant-sign-in"),
    path(f"{ADMIN}sign-in/mfa", sign_in.second_factor, name="tenant-sign-in-mfa"),
    path(f"{ADMIN}sign-in/service", sign_in.service, name="tenant-sign-in-service"),
    path(f"{ADMIN}sign-in/service/remove", sign_in.remove_service, name="tenant-sign-in-remove"),
    path(f"{ADMIN}sign-in/domains", sign_in.claim_domain, name="tenant-sign-in-claim"),
    path(f"{ADMIN}sign-in/domains/<uuid:claim_id>", sign_in.withdraw, name="tenant-sign-in-withdraw"),
]
