"""Deletions of teams in the operators' admin: watched, undone, begun before their time; their reports.

A team's own page there (chatapp.operators) asks for one.
"""

from __future__ import annotations

from django.contrib import admin, messages
from django.db.models import QuerySet
from django.http import HttpRequest
from unfold.admin import ModelAdmin

from chatapp.accounts.models import User
from chatapp.audit.services import Actor, operator
from chatapp.data.deletion import begin_now, undo_deletion
from chatapp.data.models import Deletion
from chatapp.errors import Conflict


def _actor(request: HttpRequest) -> Actor:
    assert isinstance(request.user, User)
    return operator(request.user)


@admin.register(Deletion)
class DeletionAdmin(ModelAdmin):
    list_display = ("tenant_slug", "state", "step", "actor_name", "requested_at", "due_at", "finished_at")
    list_filter = ("state",)
    search_fields = ("tenant_slug", "tenant_name")
    actions = ("undo", "begin")

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

    @admin.action(description="Begin now: before its time, or again after it failed", permissions=["view"])
    def begin(self, request: HttpRequest, queryset: QuerySet[Deletion]) -> None:
        for deletion in queryset:
            try:
                begin_now(deletion=deletion, actor=_actor(request))
            except Conflict as refusal:
                self.message_user(request, f"{deletion.tenant_slug}: {refusal.message}", messages.WARNING)
            else:
                self.message_user(request, f"{deletion.tenant_name} is being deleted.")
