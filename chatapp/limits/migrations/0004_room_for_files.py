"""Plans from before there were files let a team keep as much as the standard one: nobody's disk is filled unasked."""

from __future__ import annotations

from typing import Any

from django.db import migrations

STANDARD_MB = 1024


def forward(apps: Any, editor: Any) -> None:
    apps.get_model("limits", "Plan").objects.filter(files_mb=None).update(files_mb=STANDARD_MB)


class Migration(migrations.Migration):
    dependencies = [("limits", "0003_files")]

    operations = [migrations.RunPython(forward, migrations.RunPython.noop)]
