"""What holds of assistants and versions, in the database: one default, one draft, and published versions that stay.

The trigger comes last: on SQLite a change of the table's columns makes the table anew, without it. A migration that does
so has to call `guard` again; tests/prompts/test_versions.py sees when it is missing.
"""

from __future__ import annotations

from typing import Any

import django.core.validators
from django.db import migrations, models

KEPT = ("prompt_id", "number", "text", "note", "published_at", "created_at")
DIFFERS = " OR ".join(f"NEW.{name} IS DISTINCT FROM OLD.{name}" for name in KEPT)
POSTGRESQL = f"""
CREATE FUNCTION prompt_version_immutable() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF OLD.published_at IS NOT NULL AND ({DIFFERS}) THEN
        RAISE EXCEPTION 'a published version is immutable';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER prompt_version_immutable BEFORE UPDATE ON prompts_promptversion
    FOR EACH ROW EXECUTE FUNCTION prompt_version_immutable();
"""
SQLITE = f"""
CREATE TRIGGER prompt_version_immutable BEFORE UPDATE ON prompts_promptversion
WHEN OLD.published_at IS NOT NULL AND ({DIFFERS.replace("IS DISTINCT FROM", "IS NOT")})
BEGIN SELECT RAISE(ABORT, 'a published version is immutable'); END
"""


def guard(apps: Any, editor: Any) -> None:
    editor.execute(POSTGRESQL if editor.connection.vendor == "postgresql" else SQLITE)


def unguard(apps: Any, editor: Any) -> None:
    if editor.connection.vendor == "postgresql":
        editor.execute("DROP TRIGGER prompt_version_immutable ON prompts_promptversion")
        editor.execute("DROP FUNCTION prompt_version_immutable()")
    else:
        editor.execute("DROP TRIGGER prompt_version_immutable")


class Migration(migrations.Migration):
    dependencies = [("prompts", "0003_fill_assistants")]
    operations = [
        migrations.AlterField(
            model_name="systemprompt",
            name="slug",
            field=models.CharField(
                max_length=60,
                validators=[
                    django.core.validators.RegexValidator(
                        r"\A[a-z0-9](?:[a-z0-9-]*[a-z0-9])?\Z", "Use a-z, 0-9 and inner hyphens."
                    )
                ],
            ),
        ),
        migrations.AddConstraint(
            model_name="promptversion",
            constraint=models.UniqueConstraint(
                condition=models.Q(("published_at__isnull", True)), fields=("prompt",), name="prompt_version_one_draft"
            ),
        ),
        migrations.AddConstraint(
            model_name="promptversion",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    ("published_at__isnull", True),
                    models.Q(("number__isnull", False), models.Q(("text", ""), _negated=True)),
                    _connector="OR",
                ),
                name="prompt_version_published_is_whole",
            ),
        ),
        migrations.AddConstraint(
            model_name="systemprompt",
            constraint=models.UniqueConstraint(fields=("tenant", "slug"), name="system_prompt_slug_once"),
        ),
        migrations.AddConstraint(
            model_name="systemprompt",
            constraint=models.UniqueConstraint(
                condition=models.Q(("is_default", True)), fields=("tenant",), name="system_prompt_one_default"
            ),
        ),
        migrations.AddConstraint(
            model_name="systemprompt",
            constraint=models.CheckConstraint(
                condition=models.Q(("is_default", False), ("archived_at__isnull", True), _connector="OR"),
                name="system_prompt_default_is_not_archived",
            ),
        ),
        migrations.RunPython(guard, unguard),
    ]
