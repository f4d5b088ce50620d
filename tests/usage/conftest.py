"""Teams, and histories of ended generations: rows written as the recorder writes them."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from chatapp.ids import new_id
from chatapp.tenants.models import Tenant
from chatapp.usage.models import Kind
from chatapp.usage.services import Ended, record
from tests.chat.conftest import server, strangers, team

__all__ = ["server", "strangers", "team"]

NOON = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)


def ended(tenant: Tenant, at: datetime = NOON, **changes: Any) -> Ended:
    fields: dict[str, Any] = {
        "tenant_id": tenant.pk,
        "generation_id": new_id(),
        "at": at,
        "ended_at": at + timedelta(seconds=3),
        "kind": Kind.CHAT,
        "principal": "user:11111111-1111-7111-8111-111111111111",
        "principal_name": "ann@acme.test",
        "model": "smol",
        "state": "finished",
        "finish_reason": "stop",
        "prompt_tokens": 100,
        "cached_tokens": 60,
        "output_tokens": 21,
        "timing": {"queue_s": 0.1, "prefill_s": 0.3, "decode_s": 2.0},
    }
    return Ended(**{**fields, **changes})


def use(tenant: Tenant, at: datetime = NOON, **changes: Any) -> uuid.UUID:
    facts = ended(tenant, at, **changes)
    record(ended=facts)
    return facts.generation_id


@pytest.fixture
def tenant(db: None) -> Tenant:
    return Tenant.objects.create(slug="acme", name="Acme")
