"""The audit log keeps what happened, and lets nobody change it."""

from __future__ import annotations

import pytest
from django.db import DatabaseError, transaction

from chatapp.audit.models import AuditEntry, AuditPurge
from chatapp.audit.services import SYSTEM, record
from chatapp.audit.source import client_address
from chatapp.scope import tenant_scope
from chatapp.tenants.models import Tenant

pytestmark = pytest.mark.django_db


@pytest.fixture
def tenant() -> Tenant:
    return Tenant.objects.create(slug="acme", name="Acme")


def test_an_entry_can_be_neither_changed_nor_deleted(tenant: Tenant) -> None:
    entry = record("team.renamed", actor=SYSTEM, tenant=tenant, on=tenant, details={"name": ["A", "Acme"]})
    for change in (
        lambda: AuditEntry.objects.filter(pk=entry.pk).update(action="nothing"),
        lambda: AuditEntry.objects.filter(pk=entry.pk).delete(),
        lambda: entry.delete(),
    ):
        with pytest.raises(DatabaseError), transaction.atomic():
            change()
    assert AuditEntry.objects.get(pk=entry.pk).action == "team.renamed"


def test_only_a_tenant_that_is_purged_loses_its_entries(tenant: Tenant) -> None:
    other = Tenant.objects.create(slug="other", name="Other")
    for team in (tenant, other):
        record("team.created", actor=SYSTEM, tenant=team, on=team)
    AuditPurge.objects.create(tenant_id=tenant.pk)
    AuditEntry.objects.filter(tenant=tenant).delete()
    with pytest.raises(DatabaseError), transaction.atomic():
        AuditEntry.objects.filter(tenant=other).delete()
    assert [entry.object_name for entry in AuditEntry.objects.all()] == ["Other"]


def test_a_tenant_sees_its_own_entries_only(tenant: Tenant) -> None:
    other = Tenant.objects.create(slug="other", name="Other")
    record("team.created", actor=SYSTEM, tenant=tenant, on=tenant)
    record("team.created", actor=SYSTEM, tenant=other, on=other)
    record("plan.created", actor=SYSTEM, tenant=None, name="Gold")
    with tenant_scope(tenant):
        assert [entry.object_name for entry in AuditEntry.objects.all()] == ["Acme"]


@pytest.mark.parametrize(
    ("proxies", "forwarded", "found"),
    [
        (0, "", "192.0.2.1"),
        (0, "203.0.113.9", "192.0.2.1"),  # nobody of ours wrote that
        (1, "203.0.113.9", "203.0.113.9"),
        (1, "198.51.100.7, 203.0.113.9", "203.0.113.9"),  # the left one is the client's own claim
        (2, "198.51.100.7, 203.0.113.9", "198.51.100.7"),
        (1, "", "192.0.2.1"),
        (1, "nonsense", None),
    ],
)
def test_the_address_is_the_one_that_our_outermost_proxy_saw(
    settings: object, proxies: int, forwarded: str, found: str | None
) -> None:
    settings.ALLAUTH_TRUSTED_PROXY_COUNT = proxies  # type: ignore[attr-defined]
    assert client_address("192.0.2.1", forwarded) == found
