"""This month's meters for what earlier versions have used: budgets begin with it, and so does what the pages say."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from typing import Any

from django.apps.registry import Apps
from django.db import migrations
from django.db.models import F, Sum
from django.utils import timezone

TEAM = ""


def fill(apps: Apps, schema_editor: Any) -> None:
    meter_model = apps.get_model("limits", "Meter")
    now = timezone.now().astimezone(UTC)
    month = datetime(now.year, now.month, 1, tzinfo=UTC)
    rows = apps.get_model("usage", "UsageRow").objects.filter(at__gte=month)
    used: Counter[tuple[Any, str]] = Counter()
    sums = rows.values_list("tenant", "principal").annotate(used=Sum(F("prompt_tokens") + F("output_tokens")))
    for tenant, principal, tokens in sums.order_by():
        used[tenant, principal] += tokens
        used[tenant, TEAM] += tokens
    meter_model.objects.bulk_create(
        [
            meter_model(tenant_id=tenant, month=month.date(), subject=subject, used=tokens)
            for (tenant, subject), tokens in used.items()
        ],
        batch_size=1000,
        ignore_conflicts=True,  # those that are there have counted, and are reconciled at night
    )


class Migration(migrations.Migration):
    dependencies = [("usage", "0002_backfill"), ("limits", "0001_plans")]

    operations = [migrations.RunPython(fill, migrations.RunPython.noop)]
