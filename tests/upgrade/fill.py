"""A row of every model that has none, whatever the version: run by the code of that version, inside `manage.py shell`.

Prints the tables that it could not fill, as JSON: a model's own rules may ask for more than its fields say.
"""

import json
import uuid
from datetime import date, timedelta
from typing import Any

from django.apps import apps
from django.db import DatabaseError, models, transaction
from django.utils import timezone


def value(field: Any, empty: bool) -> Any:
    if empty and field.get_internal_type() == "CharField":
        return ""
    if field.choices:
        return next(iter(dict(field.flatchoices)))
    kind = field.get_internal_type()
    if kind in ("CharField", "TextField", "SlugField", "FileField"):
        return f"x-{uuid.uuid4().hex}"[: field.max_length or 40]
    if kind == "DateTimeField":
        return timezone.now() + timedelta(days=1)
    if kind == "DateField":
        return date(2026, 11, 1)
    plain = {
        "UUIDField": uuid.uuid4(),
        "BooleanField": True,
        "JSONField": {"x": 1},
        "BinaryField": b"x",
        "FloatField": 1.0,
        "GenericIPAddressField": "127.0.0.1",
        "DurationField": timedelta(1),
    }
    return plain.get(kind, 1)


def make(model: Any, optional: bool, empty: bool = False) -> Any:
    """A row; with `optional`, what may be null is given too; with `empty`, words are."""
    given = {}
    for field in model._meta.concrete_fields:
        if field.auto_created or (field.has_default() and not field.null) or (field.null and not optional):
            continue
        if isinstance(field, models.ForeignKey):
            other = field.related_model
            if other is model:
                continue
            rows = other._base_manager.all()
            if field.unique:
                rows = rows.exclude(pk__in=model._base_manager.values(field.attname))
            given[field.name] = rows.first() or make(other, False)
        elif field.db_default is models.NOT_PROVIDED:
            given[field.name] = value(field, empty)
    return model._base_manager.create(**given)


def fill() -> list[str]:
    empty = []
    for model in apps.get_models():
        if not model._meta.managed or model._base_manager.exists():
            continue
        for optional, without_words in ((True, False), (False, False), (False, True)):
            try:
                with transaction.atomic():
                    make(model, optional, without_words)
                break
            except (DatabaseError, ValueError, TypeError):
                continue
        else:
            empty.append(model._meta.db_table)
    return empty


print(json.dumps(fill()))
