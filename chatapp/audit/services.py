"""What writes the audit log. Call it inside the transaction of the action: neither happens without the other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from django.db import models

from chatapp.audit.models import ActorKind, AuditEntry
from chatapp.audit.source import source


@dataclass(frozen=True)
class Actor:
    """Who acts, with the name that the log keeps."""

    kind: str
    id: str
    name: str


SYSTEM = Actor(ActorKind.SYSTEM, "", "Octavo")


def operator(user: Any) -> Actor:
    return Actor(ActorKind.OPERATOR, str(user.pk), user.email)


def record(
    action: str,
    *,
    actor: Actor,
    tenant: models.Model | None,
    on: models.Model | None = None,
    name: str = "",
    details: Mapping[str, Any] | None = None,
) -> AuditEntry:
    """`action` reads "member.invited"; `on` is the object, `name` what people call it (its str() by default)."""
    came = source()
    return AuditEntry.objects.create(
        tenant_id=tenant.pk if tenant is not None else None,
        actor_kind=actor.kind,
        actor_id=actor.id,
        actor_name=actor.name[:254],
        action=action,
        object_kind=on._meta.model_name or "" if on is not None else "",
        object_id=str(on.pk) if on is not None else "",
        object_name=(name or (str(on) if on is not None else ""))[:254],
        details=dict(details or {}),
        address=came.address,
        request_id=came.request_id,
    )
