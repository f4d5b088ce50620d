"""Generations in the operators' admin: what ran, how long, how it ended. No text of a chat is shown there."""

from __future__ import annotations

from django.contrib import admin
from django.http import HttpRequest
from unfold.admin import ModelAdmin

from chatapp.chat.models import Generation


@admin.register(Generation)
class GenerationAdmin(ModelAdmin):
    list_display = (
        "id",
        "tenant",
        "model",
        "state",
        "prompt_tokens",
        "cached_tokens",
        "completion_tokens",
        "created_at",
    )
    list_filter = ("state", "tenant", "model")
    list_select_related = ("tenant",)
    show_full_result_count = False
    fields = (
        "id",
        "tenant",
        "principal",
        "model",
        "state",
        "finish_reason",
        "error_code",
        "prompt_tokens",
        "cached_tokens",
        "completion_tokens",
        "timing",
        "created_at",
        "deadline",
        "ended_at",
    )
    readonly_fields = fields

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Generation | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Generation | None = None) -> bool:
        return False
