"""Tenants, memberships and keys in the operators' admin. Salts and secrets are not shown."""

from __future__ import annotations

from typing import Any

from django.contrib import admin, messages
from django.db.models import QuerySet
from django.http import HttpRequest
from unfold.admin import ModelAdmin, TabularInline

from chatapp.accounts.models import User
from chatapp.tenants.models import ApiKey, Membership, Tenant
from chatapp.tenants.services import create_api_key, revoke_api_key


class MembershipInline(TabularInline):
    model = Membership
    extra = 0
    fields = ("user", "role")
    autocomplete_fields = ("user",)


@admin.register(Tenant)
class TenantAdmin(ModelAdmin):
    list_display = ("name", "slug", "weight", "max_output_tokens", "max_queued", "created_at")
    search_fields = ("name", "slug")
    fields = ("name", "slug", "accent", "default_model", "weight", "max_output_tokens", "max_queued", "created_at")
    readonly_fields = ("created_at",)
    inlines = (MembershipInline,)


@admin.register(Membership)
class MembershipAdmin(ModelAdmin):
    list_display = ("user", "tenant", "role", "created_at")
    list_filter = ("role", "tenant")
    search_fields = ("user__email", "tenant__name")
    autocomplete_fields = ("user", "tenant")
    list_select_related = ("user", "tenant")


@admin.register(ApiKey)
class ApiKeyAdmin(ModelAdmin):
    list_display = ("name", "tenant", "prefix", "own_system_message", "created_at", "last_used_at", "revoked_at")
    list_filter = ("tenant", "own_system_message")
    search_fields = ("name", "prefix", "tenant__name")
    autocomplete_fields = ("tenant",)
    list_select_related = ("tenant",)
    fields = (
        "tenant",
        "name",
        "own_system_message",
        "prefix",
        "created_by",
        "created_at",
        "last_used_at",
        "revoked_at",
    )
    actions = ("revoke",)

    def get_readonly_fields(self, request: HttpRequest, obj: ApiKey | None = None) -> tuple[str, ...]:
        fixed = ("prefix", "created_by", "created_at", "last_used_at", "revoked_at")
        return fixed if obj is None else ("tenant", *fixed)

    def save_model(self, request: HttpRequest, obj: ApiKey, form: Any, change: bool) -> None:
        if change:
            obj.save(update_fields=["name", "own_system_message"])
            return
        assert isinstance(request.user, User)
        made, secret = create_api_key(
            tenant=obj.tenant, name=obj.name, own_system_message=obj.own_system_message, created_by=request.user
        )
        # The form's object stands for the row from here on, so that the admin logs and links the right one.
        obj.__dict__.update(made.__dict__)
        self.message_user(request, f"The key is {secret}. Copy it now: it is not shown again.", messages.WARNING)

    @admin.action(description="Revoke the selected keys")
    def revoke(self, request: HttpRequest, queryset: QuerySet[ApiKey]) -> None:
        for key in queryset:
            revoke_api_key(key=key)
        self.message_user(request, "The keys are revoked.")

    def has_delete_permission(self, request: HttpRequest, obj: ApiKey | None = None) -> bool:
        return False  # what was made with a key stays attributable
