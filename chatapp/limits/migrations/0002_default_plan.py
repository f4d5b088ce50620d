"""The default plan, and every tenant on it; what a tenant had otherwise becomes its overrides."""

from __future__ import annotations

from typing import Any

from django.db import migrations

NAME = "Standard"
COLUMNS = {"weight": "weight", "max_output_tokens": "output_tokens", "max_queued": "queue_length"}
STANDARD = {"weight": 1.0, "output_tokens": 4096, "queue_length": 512}


def forward(apps: Any, editor: Any) -> None:
    plan_model, limits = apps.get_model("limits", "Plan"), apps.get_model("limits", "TenantLimits")
    plan, _ = plan_model.objects.get_or_create(is_default=True, defaults={"name": NAME, **STANDARD})
    for tenant in apps.get_model("tenants", "Tenant").objects.all():
        values = {new: getattr(tenant, old) or None for old, new in COLUMNS.items()}
        overrides = {name: value for name, value in values.items() if value != STANDARD[name]}
        limits.objects.get_or_create(tenant=tenant, defaults={"plan": plan, **overrides})


def backward(apps: Any, editor: Any) -> None:
    for row in apps.get_model("limits", "TenantLimits").objects.select_related("tenant", "plan"):
        for old, new in COLUMNS.items():
            value = getattr(row, new) or getattr(row.plan, new) or STANDARD[new]
            setattr(row.tenant, old, value)
        row.tenant.save(update_fields=list(COLUMNS))


class Migration(migrations.Migration):
    dependencies = [("limits", "0001_plans")]

    operations = [migrations.RunPython(forward, backward)]
