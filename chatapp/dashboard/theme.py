"""How the operators' admin looks and what its sidebar leads to; the settings of django-unfold point here."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest
from django.templatetags.static import static
from django.urls import reverse

from chatapp.accounts.operators import is_operator
from chatapp.site import selectors as site

# Our own greys are warm; the theme asks for eleven steps of each, from light to dark.
STEPS = ["50", "100", "200", "300", "400", "500", "600", "700", "800", "900", "950"]
GREYS = [
    "#faf9f6", "#f5f3ee", "#eae6df", "#ded9d0", "#a19d95", "#7b776f",
    "#66625b", "#3c3b40", "#2b2b31", "#1a1a1d", "#121214",
]  # fmt: skip
TEALS = [
    "#eef8f7", "#d6efed", "#aedfda", "#84cdc6", "#63c2b9", "#2f9a92",
    "#0f6b66", "#0d5c58", "#0c4c49", "#0b3f3c", "#062725",
]  # fmt: skip


def greys(request: HttpRequest) -> dict[str, str]:
    return dict(zip(STEPS, GREYS, strict=True))


def teals(request: HttpRequest) -> dict[str, str]:
    return dict(zip(STEPS, TEALS, strict=True))


def mark(request: HttpRequest) -> str:
    return static("img/favicon.svg")


def name(request: HttpRequest) -> str:
    return site.name()


def navigation(request: HttpRequest) -> list[dict[str, Any]]:
    """Links of the sidebar, the engine first; only what the reader may open is shown."""

    def changelist(title: str, icon: str, app: str, model: str) -> dict[str, Any]:
        return {
            "title": title,
            "icon": icon,
            "link": reverse(f"admin:{app}_{model}_changelist"),
            "permission": lambda request: request.user.has_perm(f"{app}.view_{model}"),
        }

    return [
        {
            "title": "Engine",
            "items": [
                {"title": "Operations", "icon": "monitoring", "link": reverse("admin:index")},
                {"title": "Block table", "icon": "grid_view", "link": reverse("occupancy")},
                {"title": "KV planner", "icon": "calculate", "link": reverse("planner")},
                changelist("Generations", "bolt", "chat", "generation"),
            ],
        },
        {
            "title": "Teams",
            "items": [
                changelist("Teams", "groups", "tenants", "tenant"),
                changelist("Plans", "speed", "limits", "plan"),
                changelist("Limits of teams", "tune", "limits", "tenantlimits"),
                changelist("Memberships", "badge", "tenants", "membership"),
                changelist("API keys", "key", "tenants", "apikey"),
                changelist("Domain claims", "domain_verification", "tenants", "domainclaim"),
                changelist("Audit log", "history", "audit", "auditentry"),
                {
                    "title": "Break glass",
                    "icon": "emergency",
                    "link": reverse("break-glass"),
                    "permission": lambda request: is_operator(request.user),
                },
            ],
        },
        {
            "title": "Site",
            "items": [
                {"title": "Checklist", "icon": "checklist", "link": reverse("checklist")},
                changelist("Settings", "tune", "site", "sitesettings"),
            ],
        },
        {
            "title": "People",
            "items": [
                changelist("Users", "person", "accounts", "user"),
                changelist("Email addresses", "mail", "account", "emailaddress"),
            ],
        },
    ]
