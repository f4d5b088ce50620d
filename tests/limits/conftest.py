"""A team on a plan of its own, the server, and a worker that says what it is told to."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from chatapp.audit.models import AuditEntry, AuditPurge
from chatapp.limits.models import LowerLimits, Plan, TenantLimits
from chatapp.tenants.models import Tenant
from tests.chat.conftest import Team, record, server, strangers, team, worker

__all__ = ["record", "server", "strangers", "team", "worker"]

Allow = Callable[..., TenantLimits]


@pytest.fixture
def allow(team: Team) -> Allow:
    """Put the team on a plan with these limits."""

    def put(**limits: Any) -> TenantLimits:
        plan, _ = Plan.objects.update_or_create(name="Tried", defaults=limits)
        row, _ = TenantLimits.objects.update_or_create(tenant=team.tenant, defaults={"plan": plan})
        return row

    return put


@pytest.fixture
def lower(team: Team) -> Callable[..., LowerLimits]:
    def put(**columns: Any) -> LowerLimits:
        return LowerLimits.objects.create(tenant=team.tenant, **columns)

    return put


@pytest.fixture
def without_entries(transactional_db: None) -> Iterator[None]:
    """For tests with real transactions: entries of the audit log outlive the flush of the other tables."""
    yield
    for tenant in Tenant.objects.all():
        AuditPurge.objects.create(tenant_id=tenant.pk)
    AuditEntry.objects.all().delete()
