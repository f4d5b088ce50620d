"""Prompts become named assistants with an order, a default and drafts. Their rows are filled in by the next step."""

import django.core.validators
import django.db.models.deletion
import django.utils.timezone
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("prompts", "0001_initial"),
        ("tenants", "0002_roles"),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.AlterModelOptions(
            name="systemprompt",
            options={"ordering": ["order", "created_at", "id"]},
        ),
        migrations.AddField(
            model_name="promptversion",
            name="changed_at",
            field=models.DateTimeField(default=django.utils.timezone.now, editable=False),
        ),
        migrations.AddField(
            model_name="promptversion",
            name="changed_by",
            field=models.ForeignKey(
                blank=True,
                null=True,
                on_delete=django.db.models.deletion.SET_NULL,
                related_name="+",
                to=settings.AUTH_USER_MODEL,
            ),
        ),
        migrations.AddField(
            model_name="promptversion",
            name="published_by",
            field=models.ForeignKey(
                blank=True,
                null=True,
                on_delete=django.db.models.deletion.SET_NULL,
                related_name="+",
                to=settings.AUTH_USER_MODEL,
            ),
        ),
        migrations.AddField(
            model_name="promptversion",
            name="restores",
            field=models.ForeignKey(
                blank=True,
                null=True,
                on_delete=django.db.models.deletion.SET_NULL,
                related_name="+",
                to="prompts.promptversion",
            ),
        ),
        migrations.AddField(
            model_name="promptversion",
            name="revision",
            field=models.PositiveIntegerField(default=1, editable=False),
        ),
        migrations.AddField(
            model_name="promptversion",
            name="tokens",
            field=models.PositiveIntegerField(blank=True, editable=False, null=True),
        ),
        migrations.AddField(
            model_name="systemprompt",
            name="archived_at",
            field=models.DateTimeField(blank=True, editable=False, null=True),
        ),
        migrations.AddField(
            model_name="systemprompt",
            name="description",
            field=models.CharField(blank=True, max_length=200),
        ),
        migrations.AddField(
            model_name="systemprompt",
            name="former",
            field=models.ForeignKey(
                blank=True,
                editable=False,
                null=True,
                on_delete=django.db.models.deletion.RESTRICT,
                related_name="+",
                to="prompts.promptversion",
            ),
        ),
        migrations.AddField(
            model_name="systemprompt",
            name="is_default",
            field=models.BooleanField(default=False, editable=False),
        ),
        migrations.AddField(
            model_name="systemprompt",
            name="order",
            field=models.PositiveIntegerField(default=0),
        ),
        migrations.AddField(
            model_name="systemprompt",
            name="slug",
            field=models.CharField(
                default="",
                max_length=60,
                validators=[
                    django.core.validators.RegexValidator(
                        "\\A[a-z0-9](?:[a-z0-9-]*[a-z0-9])?\\Z", "Use a-z, 0-9 and inner hyphens."
                    )
                ],
            ),
        ),
        migrations.AlterField(
            model_name="promptversion",
            name="created_by",
            field=models.ForeignKey(
                blank=True,
                null=True,
                on_delete=django.db.models.deletion.SET_NULL,
                related_name="+",
                to=settings.AUTH_USER_MODEL,
            ),
        ),
        migrations.AlterField(
            model_name="promptversion",
            name="number",
            field=models.PositiveIntegerField(blank=True, null=True),
        ),
        migrations.AlterField(
            model_name="promptversion",
            name="text",
            field=models.TextField(blank=True),
        ),
    ]
