"""Data folders of earlier versions keep their prompts: each team's first published one becomes the default."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import connection
from django.db.migrations.executor import MigrationExecutor
from django.utils import timezone


@pytest.mark.django_db(transaction=True)
def test_prompts_of_before_become_assistants_with_one_default(transactional_db: None) -> None:
    before = [("prompts", "0001_initial"), ("chat", "0001_initial")]
    executor = MigrationExecutor(connection)
    newest = executor.loader.graph.leaf_nodes()
    executor.migrate(before)
    try:
        loader = MigrationExecutor(connection).loader  # of what the database has now, in other apps too
        old: Any = loader.project_state([node for node in loader.applied_migrations if node in loader.graph.nodes]).apps
        tenant = old.get_model("tenants", "Tenant").objects.create(slug="old", name="Old")
        prompts = old.get_model("prompts", "SystemPrompt").objects
        versions = old.get_model("prompts", "PromptVersion").objects
        unpublished = prompts.create(tenant=tenant, name="Never published")
        first, second = prompts.create(tenant=tenant, name="Desk"), prompts.create(tenant=tenant, name="desk")
        for prompt in (first, second):
            prompt.published = versions.create(prompt=prompt, number=1, text="Hi", published_at=timezone.now())
            prompt.save()
    finally:
        executor = MigrationExecutor(connection)
        executor.migrate(newest)
    from chatapp.prompts.models import PromptVersion, SystemPrompt

    rows = {one.pk: one for one in SystemPrompt.objects.filter(tenant_id=tenant.pk)}
    assert [rows[one.pk].is_default for one in (unpublished, first, second)] == [False, True, False]
    assert [rows[one.pk].slug for one in (unpublished, first, second)] == ["never-published", "desk", "desk-2"]
    assert set(PromptVersion.objects.filter(prompt__in=rows).values_list("number", "text")) == {(1, "Hi")}
    SystemPrompt.objects.filter(tenant_id=tenant.pk).update(published=None)
    SystemPrompt.objects.filter(tenant_id=tenant.pk).delete()
