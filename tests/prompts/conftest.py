"""The same team and server as in the tests of the chat."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from chatapp.audit.models import AuditEntry, AuditPurge
from tests.chat.conftest import server, strangers, team

__all__ = ["server", "strangers", "team"]


@pytest.fixture
def emptied_log(transactional_db: None) -> Iterator[None]:
    """For tests that commit: the log's rows go as those of a deleted team; else none may go."""
    yield
    for tenant_id in set(AuditEntry.objects.values_list("tenant_id", flat=True)):
        AuditPurge.objects.create(tenant_id=tenant_id)
    AuditEntry.objects.all().delete()
