"""Tenants, memberships and keys in the operators' admin. Salts and secrets are not shown."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import admin, messages
from django.db import transaction
from django.db.models import QuerySet
from django.forms import BaseInlineFormSet
from django.http import HttpRequest
from unfold.admin import ModelAdmin, TabularInline

from chatapp.accounts.models import User
from chatapp.audit.services import operator, record
from chatapp.errors import Refusal
from chatapp.tenants.members import LAST_OWNER, is_only_owner
from chatapp.tenants.models import ApiKey, DomainClaim, KeyScope, Membership, Role, SignIn, Tenant
from chatapp.tenants.services import create_api_key, revoke_api_key
from chatapp.tenants.sign_in_services import confirm_domain, take_back_domain


class MembershipForm(forms.ModelForm):
    """Operators hold to the team's own rule: it keeps an owner."""

    def clean(self) -> dict[str, Any]:
        data: dict[str, Any] = super().clean() or {}
        former = Membership.objects.select_related("tenant", "user").filter(pk=self.instance.pk).first()
        stays = data.get("role") == Role.OWNER and (former is None or data.get("user") == former.user)
        if former is not None and is_only_owner(former) and (data.get("DELETE") or not stays):
            raise forms.ValidationError(LAST_OWNER)
        return data


class MembershipsFormSet(BaseInlineFormSet):
    """A row that is marked for deletion is not validated by itself."""

    def clean(self) -> None:
        super().clean()
        if any(is_only_owner(form.instance) for form in self.deleted_forms if form.instance.pk):
            raise forms.ValidationError(LAST_OWNER)


class MembershipInline(TabularInline):
    model = Membership
    form = MembershipForm
    formset = MembershipsFormSet
    extra = 0
    fields = ("user", "role")
    autocomplete_fields = ("user",)


@admin.register(Tenant)
class TenantAdmin(ModelAdmin):
    list_display = ("name", "slug", "created_at")
    search_fields = ("name", "slug")
    ordering = ("name", "slug")
    fields = ("name", "slug", "accent", "default_model", "created_at")
    readonly_fields = ("created_at",)
    inlines = (MembershipInline,)

    def has_delete_permission(self, request: HttpRequest, obj: Tenant | None = None) -> bool:
        return False  # a row is not all of a team: chatapp.data deletes it from everywhere


@admin.register(Membership)
class MembershipAdmin(ModelAdmin):
    form = MembershipForm
    list_display = ("user", "tenant", "role", "created_at")
    list_filter = ("role", "tenant")
    search_fields = ("user__email", "tenant__name")
    autocomplete_fields = ("user", "tenant")
    list_select_related = ("user", "tenant")

    def has_delete_permission(self, request: HttpRequest, obj: Membership | None = None) -> bool:
        return super().has_delete_permission(request, obj) and not (obj is not None and is_only_owner(obj))


class ApiKeyForm(forms.ModelForm):
    scopes = forms.MultipleChoiceField(
        choices=KeyScope.choices, widget=forms.CheckboxSelectMultiple, initial=[KeyScope.CHAT]
    )

    class Meta:
        model = ApiKey
        fields = ("tenant", "name", "scopes")

    def clean_scopes(self) -> list[str]:
        wanted = self.cleaned_data["scopes"]
        if KeyScope.SYSTEM in wanted and KeyScope.CHAT not in wanted:
            raise forms.ValidationError("A system message of one's own needs the scope chat as well.")
        return [scope for scope in KeyScope.values if scope in wanted]

    def clean(self) -> dict[str, Any]:
        data: dict[str, Any] = super().clean() or {}
        tenant = data.get("tenant") or (self.instance.tenant if self.instance.tenant_id else None)
        in_use = ApiKey.objects.filter(
            tenant=tenant, name__iexact=data.get("name", ""), revoked_at=None, replaced_at=None
        )
        counts = self.instance.revoked_at is None and self.instance.replaced_at is None
        if tenant is not None and counts and in_use.exclude(pk=self.instance.pk).exists():
            self.add_error("name", "Another key of this team is called that already.")
        return data


@admin.register(ApiKey)
class ApiKeyAdmin(ModelAdmin):
    """Where keys may be used from, and when they end, their team decides on its own page."""

    form = ApiKeyForm
    list_display = ("name", "tenant", "prefix", "scopes", "state", "created_at", "last_used_at", "expires_at")
    list_filter = ("tenant",)
    search_fields = ("name", "prefix", "tenant__name")
    autocomplete_fields = ("tenant",)
    list_select_related = ("tenant",)
    readonly_fields = (
        "prefix",
        "created_by",
        "created_at",
        "expires_at",
        "allowed_origins",
        "allowed_networks",
        "last_used_at",
        "last_used_address",
        "revoked_at",
    )
    fields = ("tenant", "name", "scopes", *readonly_fields)
    actions = ("revoke",)

    def get_readonly_fields(self, request: HttpRequest, obj: ApiKey | None = None) -> tuple[str, ...]:
        return self.readonly_fields if obj is None else ("tenant", *self.readonly_fields)

    def save_model(self, request: HttpRequest, obj: ApiKey, form: Any, change: bool) -> None:
        assert isinstance(request.user, User)
        actor = operator(request.user)
        if change:
            changed = {name: [form.initial.get(name), form.cleaned_data[name]] for name in form.changed_data}
            obj.save(update_fields=["name", "scopes"])
            details = {name: [str(was), str(now)] for name, (was, now) in changed.items()}
            record("key.changed", actor=actor, tenant=obj.tenant, on=obj, details=details)
            return
        made, secret = create_api_key(tenant=obj.tenant, name=obj.name, scopes=obj.scopes, created_by=request.user)
        record("key.created", actor=actor, tenant=obj.tenant, on=made, details={"scopes": ", ".join(made.scopes)})
        # The form's object stands for the row from here on, so that the admin logs and links the right one.
        obj.__dict__.update(made.__dict__)
        self.message_user(request, f"The key is {secret}. Copy it now: it is not shown again.", messages.WARNING)

    @admin.action(description="Revoke the selected keys")
    def revoke(self, request: HttpRequest, queryset: QuerySet[ApiKey]) -> None:
        with transaction.atomic():
            for key in queryset.select_related("tenant"):
                if revoke_api_key(key=key):
                    record("key.revoked", actor=operator(request.user), tenant=key.tenant, on=key)
        self.message_user(request, "The keys are revoked.")

    def has_delete_permission(self, request: HttpRequest, obj: ApiKey | None = None) -> bool:
        return False  # what was made with a key stays attributable


@admin.register(DomainClaim)
class DomainClaimAdmin(ModelAdmin):
    """Confirm that a domain is a team's: its sign-in service then says who has an address there.

    Ask somebody whom you know to work there, or look up who registered the domain; a claim is a claim only.
    """

    list_display = ("domain", "tenant", "issuer", "created_at", "confirmed_at", "confirmed_by")
    list_filter = (("confirmed_at", admin.EmptyFieldListFilter),)
    search_fields = ("domain", "tenant__name")
    list_select_related = ("tenant", "confirmed_by")
    fields = readonly_fields = ("domain", "tenant", "issuer", "created_at", "confirmed_at", "confirmed_by")
    actions = ("confirm", "take_back")

    @admin.display(description="For the issuer")
    def issuer(self, claim: DomainClaim) -> str:
        service = SignIn.objects.filter(tenant=claim.tenant_id).first()
        return service.issuer if service is not None else ""

    @admin.action(description="Confirm: the domain is this team's")
    def confirm(self, request: HttpRequest, queryset: QuerySet[DomainClaim]) -> None:
        assert isinstance(request.user, User)
        for claim in queryset.select_related("tenant"):
            try:
                confirm_domain(by=request.user, claim=claim)
            except Refusal as refusal:
                self.message_user(request, refusal.message, messages.ERROR)
            else:
                self.message_user(request, f"{claim.domain} is confirmed for {claim.tenant}.")

    @admin.action(description="Take the confirmation back")
    def take_back(self, request: HttpRequest, queryset: QuerySet[DomainClaim]) -> None:
        assert isinstance(request.user, User)
        for claim in queryset.select_related("tenant"):
            take_back_domain(by=request.user, claim=claim)
        self.message_user(request, "The confirmations are taken back.")

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: DomainClaim | None = None) -> bool:
        return False
