"""A data folder of an earlier version keeps the limits that its tenants had."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import connection
from django.db.migrations.executor import MigrationExecutor

BEFORE = [("tenants", "0002_roles"), ("limits", None)]


@pytest.mark.long
@pytest.mark.django_db(transaction=True)
def test_what_tenants_had_becomes_their_overrides_and_comes_back(transactional_db: None) -> None:
    executor = MigrationExecutor(connection)
    latest = executor.loader.graph.leaf_nodes()
    try:
        executor.migrate(BEFORE)  # type: ignore[arg-type]
        old: Any = MigrationExecutor(connection).loader.project_state([("tenants", "0002_roles")]).apps
        tenants = old.get_model("tenants", "Tenant")
        tenants.objects.create(slug="usual", name="Usual")
        tenants.objects.create(slug="special", name="Special", weight=2.5, max_output_tokens=640, max_queued=16)
        MigrationExecutor(connection).migrate(latest)
        from chatapp.limits.models import TenantLimits

        usual, special = (TenantLimits.objects.get(tenant__slug=slug) for slug in ("usual", "special"))
        assert usual.plan == special.plan
        assert usual.plan.is_default
        assert (usual.weight, usual.output_tokens, usual.queue_length) == (None, None, None)
        assert (special.weight, special.output_tokens, special.queue_length) == (2.5, 640, 16)
        MigrationExecutor(connection).migrate(BEFORE)  # type: ignore[arg-type]
        special_row = tenants.objects.get(slug="special")
        assert (special_row.weight, special_row.max_output_tokens, special_row.max_queued) == (2.5, 640, 16)
        assert tenants.objects.get(slug="usual").max_queued == 512
    finally:
        MigrationExecutor(connection).migrate(latest)
