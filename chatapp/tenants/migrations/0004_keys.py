"""Keys get scopes, an expiry, successors, and places they may be used from."""

from __future__ import annotations

from typing import Any

import django.db.models.deletion
import django.db.models.functions.text
from django.conf import settings
from django.db import migrations, models

import chatapp.tenants.models


def carry_over(apps: Any, editor: Any) -> None:
    """The one right that keys had becomes a scope; of keys in use with the same name the later ones get a number."""
    keys = apps.get_model("tenants", "ApiKey")
    keys.objects.filter(own_system_message=True).update(scopes=["chat", "system"])
    taken: set[tuple[Any, str]] = set()
    for key in keys.objects.filter(revoked_at=None).order_by("created_at", "pk"):
        name, number = key.name, 1
        while (key.tenant_id, name.lower()) in taken:
            number += 1
            name = f"{key.name[:110]} ({number})"
        taken.add((key.tenant_id, name.lower()))
        if name != key.name:
            keys.objects.filter(pk=key.pk).update(name=name)


def carry_back(apps: Any, editor: Any) -> None:
    keys = apps.get_model("tenants", "ApiKey")
    for key in keys.objects.all():
        keys.objects.filter(pk=key.pk).update(own_system_message="system" in key.scopes)


class Migration(migrations.Migration):
    dependencies = [
        ("tenants", "0003_people"),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.AddField(
            model_name="apikey",
            name="allowed_networks",
            field=models.JSONField(blank=True, default=list),
        ),
        migrations.AddField(
            model_name="apikey",
            name="allowed_origins",
            field=models.JSONField(blank=True, default=list),
        ),
        migrations.AddField(
            model_name="apikey",
            name="created_with",
            field=models.ForeignKey(
                blank=True,
                null=True,
                on_delete=django.db.models.deletion.SET_NULL,
                related_name="minted",
                to="tenants.apikey",
            ),
        ),
        migrations.AddField(
            model_name="apikey",
            name="expires_at",
            field=models.DateTimeField(blank=True, null=True),
        ),
        migrations.AddField(
            model_name="apikey",
            name="last_used_address",
            field=models.GenericIPAddressField(blank=True, editable=False, null=True),
        ),
        migrations.AddField(
            model_name="apikey",
            name="replaced_at",
            field=models.DateTimeField(blank=True, editable=False, null=True),
        ),
        migrations.AddField(
            model_name="apikey",
            name="replaces",
            field=models.OneToOneField(
                blank=True,
                editable=False,
                null=True,
                on_delete=django.db.models.deletion.SET_NULL,
                related_name="successor",
                to="tenants.apikey",
            ),
        ),
        migrations.AddField(
            model_name="apikey",
            name="scopes",
            field=models.JSONField(default=chatapp.tenants.models.only_chat),
        ),
        migrations.RunPython(carry_over, carry_back),
        migrations.RemoveField(
            model_name="apikey",
            name="own_system_message",
        ),
        migrations.AddIndex(
            model_name="apikey",
            index=models.Index(fields=["tenant", "-created_at"], name="apikey_list"),
        ),
        migrations.AddConstraint(
            model_name="apikey",
            constraint=models.UniqueConstraint(
                models.F("tenant"),
                django.db.models.functions.text.Lower("name"),
                condition=models.Q(("replaced_at", None), ("revoked_at", None)),
                name="apikey_name_once",
            ),
        ),
    ]
