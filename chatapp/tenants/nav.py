"""What the sidebar of a team's administration leads to. A page is listed for those who may open it."""

from __future__ import annotations

from dataclasses import dataclass

from django.urls import reverse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_noop as _n

from chatapp.tenants.access import Access
from chatapp.tenants.permissions import Permission


@dataclass(frozen=True)
class Entry:
    """`view` is the name of a page that takes the tenant's slug; `icon` one of ops/vendor.py's."""

    title: str
    icon: str
    view: str
    needs: Permission


ENTRIES: tuple[Entry, ...] = (
    Entry(_n("Overview"), "gauge", "tenant-overview", Permission.READ_DASHBOARD),
    Entry(_n("Usage"), "chart-column", "tenant-usage", Permission.READ_USAGE),
    Entry(_n("Memory"), "memory-stick", "tenant-memory", Permission.READ_DASHBOARD),
    Entry(_n("Members"), "users", "tenant-members", Permission.READ_MEMBERS),
    Entry(_n("Prompts"), "book-open", "tenant-prompts", Permission.READ_PROMPTS),
    Entry(_n("Feedback"), "thumbs-up", "tenant-feedback", Permission.READ_FEEDBACK),
    Entry(_n("API keys"), "key-round", "tenant-keys", Permission.READ_KEYS),
    Entry(_n("Batches"), "layers", "tenant-batches", Permission.READ_KEYS),
    Entry(_n("Webhooks"), "webhook", "tenant-webhooks", Permission.MANAGE_WEBHOOKS),
    Entry(_n("Limits"), "sliders-horizontal", "tenant-limits", Permission.READ_LIMITS),
    Entry(_n("Audit log"), "scroll-text", "tenant-audit", Permission.READ_AUDIT),
    Entry(_n("Data"), "database", "tenant-data", Permission.MANAGE_DATA),
    Entry(_n("Sign-in"), "shield-check", "tenant-sign-in", Permission.MANAGE_SETTINGS),
    Entry(_n("Settings"), "settings", "tenant-settings", Permission.MANAGE_SETTINGS),
)


@dataclass(frozen=True)
class Link:
    title: str
    icon: str
    url: str
    view: str


def links(access: Access) -> list[Link]:
    slug = access.tenant.slug
    return [
        Link(_(entry.title), entry.icon, reverse(entry.view, args=[slug]), entry.view)
        for entry in ENTRIES
        if access.may(entry.needs)
    ]
