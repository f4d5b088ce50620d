"""Deleting rows for good, in bounded batches, whatever other apps have hung on to them.

`erase` goes by the models themselves: rows that can stand without the deleted ones are detached, the others go too. So
a model that is added later needs no mention here. It works in the scope of its caller.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from django.apps import apps
from django.contrib.admin.models import LogEntry
from django.contrib.contenttypes.models import ContentType
from django.db import models

from chatapp.audit.models import AuditEntry
from chatapp.owned import TenantOwned

BATCH = 500


def owned_models() -> list[type[models.Model]]:
    """The models of tenants' rows, those that point at others before these; the audit log has its own way out."""
    left = {model for model in apps.get_models() if issubclass(model, TenantOwned) and model is not AuditEntry}
    ordered: list[type[models.Model]] = []
    while left:
        for weak in (True, False):  # first as if every reference counted; a circle is broken where it can be detached
            free = sorted(
                (model for model in left if not any(_points(other, model, weak) for other in left - {model})),
                key=lambda model: model._meta.label,
            )
            if free:
                break
        assert free, f"models that need each other: {left}"
        ordered += free
        left -= set(free)
    return ordered


def _points(other: type[models.Model], model: type[models.Model], weak: bool) -> bool:
    return any(
        isinstance(field, models.ForeignKey) and field.related_model is model and (weak or not field.null)
        for field in other._meta.get_fields()
    )


def erase(model: type[models.Model], keys: Sequence[Any]) -> Counter[str]:
    """Delete these rows and what cannot be without them; how many of each table. Call it inside a transaction."""
    erased: Counter[str] = Counter()
    if not keys:
        return erased
    for related, field in _pointing(model):
        pointing = related._default_manager.filter(**{f"{field.name}__in": keys})
        if field.null:
            if related is model:  # those within go as well, in whatever order they are deleted
                model._default_manager.filter(pk__in=keys).update(**{field.name: None})
            pointing.update(**{field.name: None})
        else:
            for batch in batches(pointing):
                erased += erase(related, batch)
    # What an operator's administration noted of a row has its name.
    kind = ContentType.objects.get_for_model(model)
    LogEntry.objects.filter(content_type=kind, object_id__in=[str(key) for key in keys]).delete()
    count, _ = model._default_manager.filter(pk__in=keys).delete()
    if count:
        erased[model._meta.db_table] += count
    return erased


def batches(rows: models.QuerySet[Any], size: int = BATCH) -> Iterator[list[Any]]:
    """Their keys, so many at a time, until none are left. The caller deletes a batch before it asks for the next."""
    while keys := list(rows.order_by().values_list("pk", flat=True)[:size]):
        yield keys


def _pointing(model: type[models.Model]) -> Iterator[tuple[type[models.Model], Any]]:
    """The foreign keys to a model, those of tables in between included; not the audit log's, which keeps names."""
    for relation in model._meta.get_fields(include_hidden=True):
        if relation.auto_created and not relation.concrete and (relation.one_to_many or relation.one_to_one):
            field: Any = relation.field  # type: ignore[union-attr]
            if field.db_constraint:
                yield field.model, field
