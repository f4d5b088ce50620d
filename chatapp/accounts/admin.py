"""Users in the operators' admin."""

from __future__ import annotations

from typing import Any

from allauth.account import app_settings as allauth_settings
from allauth.account.internal.flows.password_reset import get_reset_password_from_key_url
from allauth.account.models import EmailAddress
from allauth.account.utils import user_pk_to_url_str
from allauth.mfa.models import Authenticator
from allauth.socialaccount.models import SocialAccount, SocialApp, SocialToken
from allauth.usersessions.models import UserSession
from django.contrib import admin, messages
from django.contrib.auth.admin import UserAdmin as DjangoUserAdmin
from django.contrib.auth.forms import UserChangeForm as DjangoUserChangeForm
from django.contrib.auth.forms import UserCreationForm as DjangoUserCreationForm
from django.contrib.auth.models import Group
from django.db import transaction
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from unfold.admin import ModelAdmin
from unfold.forms import AdminPasswordChangeForm, UserChangeForm, UserCreationForm

from chatapp.accounts.models import User
from chatapp.accounts.sessions import account_helped


class NewUserForm(UserCreationForm):
    class Meta(DjangoUserCreationForm.Meta):
        model = User
        fields = ("email", "name")


class ChangeUserForm(UserChangeForm):
    class Meta(DjangoUserChangeForm.Meta):
        model = User
        fields = "__all__"
        field_classes = {}


@admin.register(User)
class UserAdmin(DjangoUserAdmin, ModelAdmin):
    form = ChangeUserForm
    add_form = NewUserForm
    change_password_form = AdminPasswordChangeForm
    ordering = ("email",)
    list_display = ("email", "name", "is_staff", "is_active", "last_login")
    list_filter = ("is_staff", "is_active")
    search_fields = ("email", "name")
    readonly_fields = ("last_login", "date_joined")
    filter_horizontal = ()
    fieldsets = (
        (None, {"fields": ("email", "name", "password")}),
        ("Rights", {"fields": ("is_active", "is_staff", "is_superuser")}),
        ("Dates", {"fields": ("last_login", "date_joined")}),
    )
    actions = ("make_password_link", "remove_second_factors")
    add_fieldsets = ((None, {"classes": ("wide",), "fields": ("email", "name", "password1", "password2")}),)

    def has_delete_permission(self, request: HttpRequest, obj: User | None = None) -> bool:
        # A row is not all of a person, and a team may have no other owner: chatapp.data deletes what people ask it to.
        # Whoever is to stay out is made inactive.
        return False

    @transaction.atomic
    def user_change_password(self, request: HttpRequest, id: str, form_url: str = "") -> HttpResponse:
        reply: HttpResponse = super().user_change_password(request, id, form_url)
        return reply

    def log_change(self, request: HttpRequest, obj: User, message: Any) -> Any:
        """The admin's own history is read by operators only; this is told where the person's teams read it too."""
        parts = message if isinstance(message, list) else []
        fields = [field for part in parts for field in part.get("changed", {}).get("fields", [])]
        if fields:
            action = "account.password_given" if fields == ["password"] else "account.changed"
            details = {"fields": [str(field) for field in fields]}
            account_helped.send(sender=User, by=request.user, user=obj, action=action, details=details)
        return super().log_change(request, obj, message)

    @admin.action(description="Make a link to choose a new password")
    def make_password_link(self, request: HttpRequest, queryset: QuerySet[User]) -> None:
        """For who cannot get one by mail. Hand it to the person yourself: whoever has it gets into the account."""
        if queryset.count() != 1:
            self.message_user(request, "Choose one person.", messages.ERROR)
            return
        user = queryset.get()
        if not user.is_active:
            self.message_user(request, "This account is closed.", messages.ERROR)
            return
        token = allauth_settings.PASSWORD_RESET_TOKEN_GENERATOR().make_token(user)
        link = get_reset_password_from_key_url(request, f"{user_pk_to_url_str(user)}-{token}")
        account_helped.send(sender=User, by=request.user, user=user, action="account.password_link_made")
        self.message_user(request, f"Give {user.email} this link, which works once: {link}", messages.WARNING)

    @admin.action(description="Remove all second factors")
    def remove_second_factors(self, request: HttpRequest, queryset: QuerySet[User]) -> None:
        """For who has lost them, and the recovery codes too. Make sure that it is the person who asks."""
        for user in queryset:
            if Authenticator.objects.filter(user=user).delete()[0]:
                account_helped.send(sender=User, by=request.user, user=user, action="account.factors_removed")
        self.message_user(request, "Their passwords are enough to log in now.", messages.WARNING)


# Rights come from memberships and from being an operator; groups would only look as if they did something.
admin.site.unregister(Group)
# Second factors, sessions and links are people's own; operators help by the actions above, which are noted.
for model in (EmailAddress, Authenticator, SocialAccount, SocialApp, SocialToken, UserSession):
    admin.site.unregister(model)


@admin.register(EmailAddress)
class EmailAddressAdmin(ModelAdmin):
    list_display = ("email", "user", "primary", "verified")
    list_filter = ("verified",)
    search_fields = ("email",)
    autocomplete_fields = ("user",)
