"""A migration that the release before could not live with is refused, unless it says why that is not so."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import migrations, models
from django.db.migrations.loader import MigrationLoader

from ops.migrations import faults, release

NULL = models.CharField(max_length=40, null=True)
PLAIN = models.CharField(max_length=40)
NEW_TABLE = migrations.CreateModel("Note", [("id", models.AutoField(primary_key=True)), ("text", PLAIN.clone())])


def said(*operations: Any, reason: str | None = None, app: str = "chat") -> list[str]:
    """What is said of a migration with these operations behind the last release's of that app."""
    loader = MigrationLoader(None)
    released = dict(loader.graph.leaf_nodes())  # as if all that is there were: the test is about what comes next
    last = loader.graph.leaf_nodes(app)[0]
    kind = type("Migration", (migrations.Migration,), {"operations": list(operations), "dependencies": [last]})
    if reason is not None:
        kind.beside_old_code = reason  # type: ignore[attr-defined]
    key = (app, "9999_tried")
    loader.graph.add_node(key, kind(key[1], app))
    loader.graph.add_dependency(None, key, last)
    return list(faults(loader, released))


@pytest.mark.parametrize(
    ("operation", "because"),
    [
        (migrations.RemoveField("conversation", "title"), "takes the column title"),
        (migrations.RenameField("conversation", "title", "name"), "takes the column title"),
        (migrations.DeleteModel("Tag"), "takes the table"),
        (migrations.RenameModel("Tag", "Label"), "takes the table"),
        (migrations.AlterModelTable("tag", "labels"), "takes the table"),
        (migrations.AddField("conversation", "colour", PLAIN.clone()), "without it"),
        (migrations.AddField("conversation", "colour", models.CharField(max_length=9, default="")), "without it"),
        (migrations.AlterField("conversation", "starred_at", models.DateTimeField()), "refuses NULL"),
        (migrations.AlterField("conversation", "title", models.CharField(max_length=50)), "shortens it from 120 to 50"),
        (migrations.AlterField("conversation", "title", models.JSONField()), "from CharField to JSONField"),
        (migrations.AlterField("conversation", "title", models.CharField(max_length=120, unique=True)), "values that"),
        (
            migrations.AlterField("message", "text", models.TextField(blank=True, db_column="said")),
            "renames its column",
        ),
        (
            migrations.AddConstraint("tag", models.CheckConstraint(condition=models.Q(name="x"), name="tag_x")),
            "AddConstraint tag_x refuses",
        ),
        (migrations.RunSQL("DROP TABLE chat_tag"), "RunSQL can do anything"),
        (migrations.RunPython(migrations.RunPython.noop), "RunPython can do anything"),
        (migrations.SeparateDatabaseAndState([migrations.RemoveField("conversation", "title")], []), "column title"),
    ],
)
def test_what_old_code_could_not_live_with_is_refused_and_passes_with_a_reason(operation: Any, because: str) -> None:
    (line,) = said(operation)
    assert line.startswith("chat.9999_tried: ")
    assert because in line
    assert said(operation, reason="Second step: nothing has read or written it since 0.1.") == []
    assert len(said(operation, reason="it is fine")) == 2, "that is no reason"


@pytest.mark.parametrize(
    "operation",
    [
        NEW_TABLE,
        migrations.AddField("conversation", "colour", NULL.clone()),
        migrations.AddField("conversation", "colour", models.CharField(max_length=9, db_default="")),
        migrations.AddField("conversation", "seen", models.ManyToManyField("chat.Tag")),
        migrations.AlterField("conversation", "title", models.CharField(max_length=200)),
        migrations.AlterField("conversation", "title", models.TextField()),
        migrations.AlterField("generation", "last_seq", models.BigIntegerField(default=0)),
        migrations.AlterField("message", "role", models.CharField(max_length=10, choices=[("a", "A")])),
        migrations.AddIndex("tag", models.Index(fields=["name"], name="tag_name")),
        migrations.SeparateDatabaseAndState([], [migrations.RemoveField("conversation", "title")]),
    ],
)
def test_what_old_code_does_not_notice_passes(operation: Any) -> None:
    assert said(operation) == []


def test_a_table_that_came_behind_the_release_may_change_at_will() -> None:
    assert said(NEW_TABLE, migrations.RemoveField("note", "text"), migrations.AddField("note", "body", PLAIN)) == []


def test_a_released_migration_that_is_gone_is_noticed() -> None:
    (line,) = faults(MigrationLoader(None), {"chat": "0099_was_here"})
    assert "chat.0099_was_here: the last release has it, and it is gone" in line


def test_the_migrations_of_this_version_can_be_lived_with_by_the_last_release() -> None:
    assert list(faults(MigrationLoader(None), release()["migrations"])) == []
