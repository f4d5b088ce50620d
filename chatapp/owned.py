"""Models of what tenants own: their rows are read in the scope of their tenant (chatapp.scope), or not at all."""

from __future__ import annotations

from typing import Any, ClassVar, TypeVar

from django.db import models

from chatapp.scope import NoScope, current

Owned = TypeVar("Owned", bound=models.Model)


class TenantManager(models.Manager[Owned]):
    """The rows of the scope's tenant. The model says by `tenant_path` how they lead to it."""

    def get_queryset(self) -> models.QuerySet[Owned]:
        scope = current()
        if scope is None:
            raise NoScope(f"{self.model.__name__}: enter a tenant's scope first (chatapp.scope)")
        rows = super().get_queryset()
        if scope.tenant is None:
            return rows
        path: str = self.model.tenant_path  # type: ignore[attr-defined]
        return rows.filter(**{path: scope.tenant})


class TenantOwned(models.Model):
    """A row that belongs to a tenant, directly or through another row."""

    tenant_path: ClassVar[str] = "tenant"

    objects: ClassVar[TenantManager[Any]] = TenantManager()

    class Meta:
        abstract = True
