"""What changes a tenant as a whole: its name, its colour, who gives its chats their titles."""

from __future__ import annotations

from django.db import transaction
from django.utils.translation import gettext as _

from chatapp.audit.services import record
from chatapp.errors import BadInput
from chatapp.tenants.access import Access
from chatapp.tenants.addresses import clean_name
from chatapp.tenants.members import lock
from chatapp.tenants.models import Accent, Tenant
from chatapp.tenants.permissions import Permission

LONGEST_NAME = 120


@transaction.atomic
def change_team(
    *, access: Access, name: str | None = None, accent: str | None = None, model_titles: bool | None = None
) -> Tenant:
    """None leaves as it is. Its address (slug) stays: links and programs hold it."""
    access.require(Permission.MANAGE_SETTINGS)
    wanted: dict[str, str | bool] = {}
    if name is not None:
        words = clean_name(name)
        if not 0 < len(words) <= LONGEST_NAME:
            raise BadInput(_("A team's name has 1 to %(most)s characters.") % {"most": LONGEST_NAME}, param="name")
        wanted["name"] = words
    if accent is not None:
        if accent not in Accent.values:
            raise BadInput(_("Choose one of %(choices)s.") % {"choices": ", ".join(Accent.values)}, param="accent")
        wanted["accent"] = accent
    if model_titles is not None:
        wanted["model_titles"] = model_titles
    tenant = lock(access)
    changes = {field: [getattr(tenant, field), value] for field, value in wanted.items()}
    changes = {field: pair for field, pair in changes.items() if pair[0] != pair[1]}
    if changes:
        for field, (_former, value) in changes.items():
            setattr(tenant, field, value)
        tenant.save(update_fields=list(changes))
        record("team.changed", actor=access.actor, tenant=tenant, on=tenant, details=changes)
    return tenant
