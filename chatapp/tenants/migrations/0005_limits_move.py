"""Weight and the two limits that a tenant had are chatapp.limits' now."""

from __future__ import annotations

from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [("tenants", "0004_keys"), ("limits", "0002_default_plan")]

    operations = [
        migrations.RemoveConstraint(model_name="tenant", name="tenant_weight_positive"),
        migrations.RemoveField(model_name="tenant", name="max_output_tokens"),
        migrations.RemoveField(model_name="tenant", name="max_queued"),
        migrations.RemoveField(model_name="tenant", name="weight"),
    ]
