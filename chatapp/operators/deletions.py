"""What chatapp.data knows of teams that are being deleted: it lies above this app, so it is called by name.

A team that is being deleted is closed by the same mark that a suspension sets. Both have to know of each other.
"""

from __future__ import annotations

from django.apps import apps
from django.utils.module_loading import import_string

from chatapp.audit.services import Actor
from chatapp.tenants.models import Tenant

APP = "chatapp.data"
MODULE = "chatapp.data.deletion"


def installed() -> bool:
    return apps.is_installed(APP)


def request(tenant: Tenant, actor: Actor) -> None:
    import_string(f"{MODULE}.request_deletion")(tenant=tenant, actor=actor)


def running(tenant: Tenant) -> bool:
    """In its grace period, or beyond it."""
    return installed() and import_string(f"{MODULE}.deletion_of")(tenant) is not None


def stay_suspended(tenant: Tenant) -> bool:
    """Undoing the deletion is not to open the team; False where that was so already, or nothing waits."""
    return installed() and bool(import_string(f"{MODULE}.stay_suspended")(tenant))
