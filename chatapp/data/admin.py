"""Deleting teams in the operators' admin: ask for it, watch it, undo it, read its report."""

from __future__ import annotations

from datetime import timedelta

from django.contrib import admin, messages
from django.db.models import QuerySet
from django.http import HttpRequest
from unfold.admin import ModelAdmin

from chatapp.accounts.models import User
from chatapp.audit.services import Actor, operator
from chatapp.data.deletion import GRACE, request_deletion, undo_deletion
from chatapp.data.models import Deletion
from chatapp.errors import Conflict
from chatapp.tenants.admin import TenantAdmin
from chatapp.tenants.models import Tenant


def _actor(request: HttpRequest) -> Actor:
    assert isinstance(request.user, User)
    return operator(request.user)


def _delete(modeladmin: ModelAdmin, request: HttpRequest, teams: QuerySet[Tenant], grace: timedelta) -> None:
    for tenant in teams:
        try:
            deletion = request_deletion(tenant=tenant, actor=_actor(request), grace=grace)
        except Conflict as refusal:
            modeladmin.message_user(request, f"{tenant}: {refusal.message}", messages.WARNING)
        else:
            when = f"{deletion.due_at:%Y-%m-%d %H:%M} UTC" if grace else "now"
            modeladmin.message_user(request, f"{tenant} is closed. Its deletion begins {when}.")


@admin.action(description=f"Close the selected teams, and delete them in {GRACE.days} days")
def delete_with_grace(modeladmin: ModelAdmin, request: HttpRequest, queryset: QuerySet[Tenant]) -> None:
    _delete(modeladmin, request, queryset, GRACE)


@admin.action(description="Delete the selected teams NOW, without undo")
def delete_now(modeladmin: ModelAdmin, request: HttpRequest, queryset: QuerySet[Tenant]) -> None:
    _delete(modeladmin, request, queryset, timedelta(0))


# What deletes a team everywhere lies above the app of the teams themselves.
TenantAdmin.actions = (*(TenantAdmin.actions or ()), delete_with_grace, delete_now)


@admin.register(Deletion)
class DeletionAdmin(ModelAdmin):
    list_display = ("tenant_slug", "state", "step", "actor_name", "requested_at", "due_at", "finished_at")
    list_filter = ("state",)
    search_fields = ("tenant_slug", "tenant_name")
    actions = ("undo",)

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Deletion | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Deletion | None = None) -> bool:
        return False

    @admin.action(description="Undo: open the selected teams again", permissions=["view"])
    def undo(self, request: HttpRequest, queryset: QuerySet[Deletion]) -> None:
        for deletion in queryset:
            try:
                undo_deletion(deletion=deletion, actor=_actor(request))
            except Conflict as refusal:
                self.message_user(request, f"{deletion.tenant_slug}: {refusal.message}", messages.WARNING)
            else:
                self.message_user(request, f"{deletion.tenant_name} is open again.")
