"""Migrations that the release before can live with: while a new release migrates, the old one's processes still serve.

    python -m ops.migrations           refuse what they could not live with, in every migration behind the last release
    python -m ops.migrations leaves    the last release's table for ops/release.toml

What old code reads has to stay, and what it writes has to be taken. So a change that takes something away comes in two
releases: one whose code does without (expand), and the next, whose migration removes it (contract). That second step,
and whatever cannot be judged here (SQL, Python), says in its migration why the release before can live with it:

    class Migration(migrations.Migration):
        beside_old_code = "Second step: nothing has read or written `note` since 0.2."

It looks at Django's operations and the models before and behind them, so it needs no database, and means all of them.
"""

from __future__ import annotations

import os
import sys
import tomllib
from collections.abc import Iterator
from typing import Any

from ops.setup import ROOT

RELEASE = ROOT / "ops" / "release.toml"
MARK = "beside_old_code"
SHORTEST_REASON = 20
# Columns of the second kind hold whatever those of the first do, and old code reads it as before.
WIDER = {
    "SmallIntegerField": {"IntegerField", "BigIntegerField"},
    "IntegerField": {"BigIntegerField"},
    "PositiveSmallIntegerField": {"PositiveIntegerField", "PositiveBigIntegerField", "IntegerField", "BigIntegerField"},
    "PositiveIntegerField": {"PositiveBigIntegerField", "BigIntegerField"},
    "CharField": {"TextField"},
    "SlugField": {"CharField", "TextField"},
}


def release() -> dict[str, Any]:
    return tomllib.loads(RELEASE.read_text())


def leaves(loader: Any) -> Iterator[tuple[str, str]]:
    yield from sorted(loader.graph.leaf_nodes())


def faults(loader: Any, released: dict[str, str]) -> Iterator[str]:
    """What old code could not live with, a line each. `released`: the last migration of each app in the release."""
    graph = loader.graph
    known: set[tuple[str, str]] = set()
    for app, name in released.items():
        if (app, name) not in graph.nodes:
            yield f"{app}.{name}: the last release has it, and it is gone. Migrations that are released stay."
            return
        known.update(graph.forwards_plan((app, name)))
    state = loader.project_state(sorted(known))
    theirs = set(state.models)
    done = set(known)
    for leaf in sorted(graph.leaf_nodes()):
        for key in graph.forwards_plan(leaf):
            if key in done:
                continue
            done.add(key)
            migration = graph.nodes[key]
            reason = str(getattr(migration, MARK, "")).strip()
            if len(reason) < SHORTEST_REASON:
                for said in _of_migration(migration, state, theirs):
                    yield f"{key[0]}.{key[1]}: {said}"
                if reason:
                    yield f"{key[0]}.{key[1]}: {MARK} gives no reason that anybody could check: {reason!r}"
            migration.mutate_state(state, preserve=False)


def _of_migration(migration: Any, before: Any, theirs: set[tuple[str, str]]) -> Iterator[str]:
    state = before.clone()
    for operation in migration.operations:
        yield from _of_operation(operation, migration.app_label, state, theirs)
        operation.state_forwards(migration.app_label, state)


def _of_operation(operation: Any, app: str, state: Any, theirs: set[tuple[str, str]]) -> Iterator[str]:
    from django.db import migrations as m

    name = type(operation).__name__
    if isinstance(operation, m.SeparateDatabaseAndState):
        # What changes in the models alone leaves the tables as they are.
        for inner in operation.database_operations:
            yield from _of_operation(inner, app, state, theirs)
        return
    if isinstance(operation, m.RunSQL | m.RunPython):
        yield f"{name} can do anything: say with {MARK} why old code can live with it."
        return
    model = (
        getattr(operation, "model_name", None) or getattr(operation, "old_name", None) or getattr(operation, "name", "")
    )
    if (app, str(model).lower()) not in theirs:
        return  # a table that old code does not know
    what = f"{app}.{model}"
    if isinstance(operation, m.DeleteModel | m.RenameModel | m.AlterModelTable):
        yield f"{name} takes the table of {what} away, which old code reads and writes."
    elif isinstance(operation, m.RemoveField | m.RenameField):
        field = getattr(operation, "old_name", None) or operation.name
        yield f"{name} takes the column {field} of {what} away, which old code reads and writes."
    elif isinstance(operation, m.AddField):
        if _must_be_given(operation.field):
            yield (
                f"AddField {operation.name}: old code writes rows of {what} without it. "
                "Give it db_default=…, or let it be null."
            )
    elif isinstance(operation, m.AlterField):
        for change in _narrowed(state.models[app, operation.model_name_lower].fields[operation.name], operation.field):
            yield f"AlterField {operation.name} of {what} {change}."
    elif isinstance(operation, m.AddConstraint):
        yield f"AddConstraint {operation.constraint.name} refuses rows of {what} that old code may write."
    elif isinstance(operation, m.AlterUniqueTogether) and operation.option_value:
        yield f"AlterUniqueTogether refuses rows of {what} that old code may write."


def _must_be_given(field: Any) -> bool:
    from django.db.models import NOT_PROVIDED

    return not (
        field.null or field.many_to_many or getattr(field, "generated", False) or field.db_default is not NOT_PROVIDED
    )


def _narrowed(old: Any, new: Any) -> Iterator[str]:
    from django.db.models import NOT_PROVIDED

    if old.null and not new.null:
        yield "refuses NULL, which old code may write"
    if not old.unique and new.unique:
        yield "refuses values that are there already, which old code may write"
    if old.db_default is not NOT_PROVIDED and new.db_default is NOT_PROVIDED and not new.null:
        yield "takes its default in the database away, which old code may rely on"
    if (old.db_column or old.name) != (new.db_column or new.name):
        yield "renames its column"
    was, now = old.get_internal_type(), new.get_internal_type()
    if was != now and now not in WIDER.get(was, ()):
        yield f"changes its type from {was} to {now}"
    elif new.max_length and old.max_length and new.max_length < old.max_length:
        yield f"shortens it from {old.max_length} to {new.max_length}"
    for size in ("max_digits", "decimal_places"):
        if getattr(old, size, None) != getattr(new, size, None):
            yield f"changes its {size}"
    if old.is_relation and new.is_relation and old.related_model != new.related_model:
        yield "refers to another table"


def main() -> int:
    import django

    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "chatapp.settings.local")
    django.setup()
    from django.db.migrations.loader import MigrationLoader

    loader = MigrationLoader(None)
    if sys.argv[1:] == ["leaves"]:
        print("[migrations]\n" + "\n".join(f'{app} = "{name}"' for app, name in leaves(loader)))
        return 0
    found = list(faults(loader, release()["migrations"]))
    for line in found:
        print(line, file=sys.stderr)
    if found:
        print(
            f"While a release takes the other's place, {release()['version']} serves from the migrated database. "
            "See ops/migrations.py.",
            file=sys.stderr,
        )
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
