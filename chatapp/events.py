"""What has happened to a team, for whoever wants to know: `happened.send` inside the transaction of what it tells of.

The apps that tell do not know who listens. A receiver writes rows of its own in the same transaction, or nothing; what
takes time goes to Celery after the commit.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any

from django.dispatch import Signal

happened = Signal()
"""tenant_id: UUID, kind: str ("member.joined"), data: what a stranger may be told of it, never chat text."""


def tell(*, tenant_id: uuid.UUID, kind: str, data: Mapping[str, Any]) -> None:
    """Call it inside the transaction of the event."""
    happened.send(sender=None, tenant_id=tenant_id, kind=kind, data=dict(data))
