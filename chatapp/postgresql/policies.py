"""Row-level security for the tables of tenants, made anew after every migration so that no table can be forgotten.

A row is seen, written and deleted in the scope of its tenant, or by code that is unscoped by name (chatapp.scope). It
holds for the owner of the tables too; a superuser is above it, so the product must not be one (see checks).
"""

from __future__ import annotations

from typing import Any

from django.apps import apps
from django.core.checks import CheckMessage, Warning
from django.db import connections, models

from chatapp.owned import TenantOwned

POLICY = "octavo_tenant"
ALL = "current_setting('octavo.all', true) = 'on'"
TENANT = "NULLIF(current_setting('octavo.tenant', true), '')::uuid"


def owned_models() -> list[type[models.Model]]:
    return [model for model in apps.get_models() if issubclass(model, TenantOwned)]


def condition(model: type[models.Model], quote: Any) -> str:
    """SQL that is true of rows of the scope's tenant, along the model's `tenant_path`."""
    names: list[str] = model.tenant_path.split("__")  # type: ignore[attr-defined]
    field: Any = model._meta.get_field(names[0])
    column = f"{quote(model._meta.db_table)}.{quote(field.column)}"
    if len(names) == 1:
        return f"{column} = {TENANT}"
    return _leads_to_it(field.related_model, names[1:], quote, column)


def _leads_to_it(model: type[models.Model], names: list[str], quote: Any, column: str) -> str:
    """That the row of `model` whose key is in `column` is the tenant's, along the rest of the path."""
    table, key = quote(model._meta.db_table), quote(model._meta.pk.column)
    field: Any = model._meta.get_field(names[0])
    inner = f"{table}.{quote(field.column)}"
    rest = f"{inner} = {TENANT}" if len(names) == 1 else _leads_to_it(field.related_model, names[1:], quote, inner)
    # Nothing of it comes from outside: table and column names are our models'.
    return f"EXISTS (SELECT 1 FROM {table} WHERE {table}.{key} = {column} AND {rest})"  # noqa: S608


def make_policies(using: str = "default", **_: Any) -> None:
    """For the signal post_migrate. Does nothing on other databases than PostgreSQL."""
    connection = connections[using]
    if connection.vendor != "postgresql":
        return
    present = set(connection.introspection.table_names())
    with connection.cursor() as cursor:
        for model in owned_models():
            if model._meta.db_table not in present:
                continue  # migrated halfway, or back
            table = connection.ops.quote_name(model._meta.db_table)
            rule = f"{ALL} OR {condition(model, connection.ops.quote_name)}"
            for statement in (
                f"ALTER TABLE {table} ENABLE ROW LEVEL SECURITY",
                f"ALTER TABLE {table} FORCE ROW LEVEL SECURITY",
                f"DROP POLICY IF EXISTS {POLICY} ON {table}",
                f"CREATE POLICY {POLICY} ON {table} USING ({rule}) WITH CHECK ({rule})",
            ):
                cursor.execute(statement)


def check_role(app_configs: Any, databases: Any = None, **_: Any) -> list[CheckMessage]:
    """`manage.py check --database default`, and before migrations: the database's user must be held to the policies."""
    found: list[CheckMessage] = []
    for name in databases or ():
        connection = connections[name]
        if connection.vendor != "postgresql":
            continue
        with connection.cursor() as cursor:
            cursor.execute("SELECT rolsuper OR rolbypassrls FROM pg_roles WHERE rolname = current_user")
            if cursor.fetchone()[0]:
                found.append(
                    Warning(
                        "The database's user is above row-level security, so the second wall between tenants is off.",
                        hint="Let Octavo connect as a role without SUPERUSER and BYPASSRLS that owns its tables.",
                        id="octavo.W001",
                    )
                )
    return found
