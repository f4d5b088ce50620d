"""The log of the whole platform in the operators' admin: to read and to filter, and nothing else."""

from __future__ import annotations

from django.contrib import admin
from django.http import HttpRequest
from unfold.admin import ModelAdmin

from chatapp.audit import details
from chatapp.audit.models import AuditEntry


@admin.register(AuditEntry)
class AuditEntryAdmin(ModelAdmin):
    list_display = ("at", "tenant", "actor_name", "what", "object_name", "address")
    list_filter = ("actor_kind", "tenant", "at", "action")
    list_select_related = ("tenant",)
    search_fields = ("actor_name", "object_name", "action", "address", "request_id")
    search_help_text = "Person, object, action, address, or the id of a request"
    date_hierarchy = "at"
    ordering = ("-at", "-id")
    show_full_result_count = False
    list_per_page = 50
    fields = (
        "at",
        "tenant",
        "actor_name",
        "actor_kind",
        "what",
        "action",
        "object_name",
        "object_kind",
        "object_id",
        "changes",
        "address",
        "request_id",
    )
    readonly_fields = fields

    @admin.display(description="What", ordering="action")
    def what(self, entry: AuditEntry) -> str:
        return entry.title

    @admin.display(description="Details")
    def changes(self, entry: AuditEntry) -> str:
        return details.text(entry.details) or "none"

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: AuditEntry | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: AuditEntry | None = None) -> bool:
        return False
