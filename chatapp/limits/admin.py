"""Plans, and each tenant's plan and overrides, in the operators' admin. Changes go into the logs of those concerned."""

from __future__ import annotations

from typing import Any

from django.contrib import admin, messages
from django.db import transaction
from django.db.models import QuerySet
from django.http import HttpRequest
from unfold.admin import ModelAdmin

from chatapp.accounts.models import User
from chatapp.audit.services import Actor, operator
from chatapp.limits import services
from chatapp.limits.models import ALL, Plan, TenantLimits
from chatapp.limits.selectors import ensure
from chatapp.tenants.models import Tenant

RATES = ("requests_per_minute", "tokens_per_minute", "concurrent_answers", "queue_length")
SIZES = ("context_tokens", "output_tokens", "tokens_per_month", "files_mb")
ENGINE = ("kv_share", "weight")


def _actor(request: HttpRequest) -> Actor:
    assert isinstance(request.user, User)
    return operator(request.user)


@admin.register(Plan)
class PlanAdmin(ModelAdmin):
    list_display = ("name", "is_default", "tokens_per_month", "requests_per_minute", "concurrent_answers", "teams")
    search_fields = ("name",)
    fieldsets = (
        (None, {"fields": ("name", "is_default"), "description": "An empty field is no limit."}),
        ("Rates", {"fields": RATES}),
        ("Sizes", {"fields": SIZES}),
        ("On a busy engine", {"fields": ENGINE}),
    )

    readonly_fields = ("is_default",)
    actions = ("make_default",)

    @admin.action(description="Make it the default for new teams")
    def make_default(self, request: HttpRequest, queryset: QuerySet[Plan]) -> None:
        if queryset.count() != 1:
            self.message_user(request, "Select one plan: new teams get it.", messages.ERROR)
            return
        plan = queryset.get()
        services.make_default(plan=plan, actor=_actor(request))
        self.message_user(request, f"New teams get the plan {plan.name}.")

    @admin.display(description="teams")
    def teams(self, plan: Plan) -> int:
        return plan.tenants.count()

    def save_model(self, request: HttpRequest, obj: Plan, form: Any, change: bool) -> None:
        with transaction.atomic():
            before: dict[str, Any] = {}
            if change:
                before = Plan.objects.filter(pk=obj.pk).values(*ALL).get()
            obj.save()
            services.plan_changed(plan=obj, before=before, actor=_actor(request))

    def has_delete_permission(self, request: HttpRequest, obj: Plan | None = None) -> bool:
        allowed: bool = super().has_delete_permission(request, obj)
        return allowed and (obj is None or not (obj.is_default or obj.tenants.exists()))

    def get_actions(self, request: HttpRequest) -> dict[str, Any]:
        return {name: action for name, action in super().get_actions(request).items() if name != "delete_selected"}


@admin.register(TenantLimits)
class TenantLimitsAdmin(ModelAdmin):
    list_display = ("tenant", "plan", *SIZES, *RATES[:1])
    list_filter = ("plan",)
    search_fields = ("tenant__name", "tenant__slug")
    list_select_related = ("tenant", "plan")
    readonly_fields = ("tenant",)
    fieldsets = (
        (None, {"fields": ("tenant", "plan"), "description": "An empty field is the plan's value."}),
        ("Rates", {"fields": RATES}),
        ("Sizes", {"fields": SIZES}),
        ("On a busy engine", {"fields": ENGINE}),
    )

    def get_queryset(self, request: HttpRequest) -> QuerySet[TenantLimits]:
        for tenant in Tenant.objects.filter(limits=None):
            ensure(tenant)
        rows: QuerySet[TenantLimits] = super().get_queryset(request)
        return rows

    def save_model(self, request: HttpRequest, obj: TenantLimits, form: Any, change: bool) -> None:
        tenant = Tenant.objects.get(pk=obj.tenant_id)
        overrides = {name: getattr(obj, name) for name in ALL}
        services.set_plan(tenant=tenant, plan=obj.plan, overrides=overrides, actor=_actor(request))

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False  # every team has one from the start

    def has_delete_permission(self, request: HttpRequest, obj: TenantLimits | None = None) -> bool:
        return False  # it goes with its team
