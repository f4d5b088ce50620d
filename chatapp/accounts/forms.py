"""Forms of the account's own pages, and allauth's with our words."""

from __future__ import annotations

from typing import Any, ClassVar

from allauth.account.forms import (
    AddEmailForm,
    ChangePasswordForm,
    ResetPasswordKeyForm,
    SetPasswordForm,
)
from allauth.mfa.base.forms import AuthenticateForm, ReauthenticateForm
from allauth.mfa.totp.forms import ActivateTOTPForm
from allauth.mfa.webauthn.forms import AddWebAuthnForm
from django import forms
from django.conf import settings
from django.utils.translation import gettext_lazy as _

from chatapp.accounts.models import User
from chatapp.accounts.text import one_line


class ProfileForm(forms.ModelForm):
    class Meta:
        model = User
        fields = ("name", "language")
        labels = {"name": _("Name"), "language": _("Language")}
        help_texts = {
            "name": _("What your teams see beside what you do."),
            "language": _("Of these pages, and of mail to you."),
        }
        widgets = {"name": forms.TextInput(attrs={"autocomplete": "name"})}

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["language"] = forms.ChoiceField(
            label=self.fields["language"].label,
            help_text=self.fields["language"].help_text,
            required=False,
            choices=[("", _("As your browser asks")), *settings.LANGUAGES],
        )

    def clean_name(self) -> str:
        return one_line(self.cleaned_data["name"])


class _CodeForm:
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        field = self.fields["code"]  # type: ignore[attr-defined]
        field.label = self.label  # type: ignore[attr-defined]
        field.max_length = 40
        field.widget.attrs = {
            "autocomplete": "one-time-code",
            "inputmode": "numeric",
            "autofocus": True,
            "maxlength": 40,
            "spellcheck": "false",
        }


class SecondFactorForm(_CodeForm, AuthenticateForm):
    label = _("Code of your app, or a recovery code")


class ConfirmBySecondFactorForm(_CodeForm, ReauthenticateForm):
    label = _("Code of your app, or a recovery code")


class ActivateAppForm(_CodeForm, ActivateTOTPForm):
    label = _("The code that the app shows now")


class AddPasskeyForm(AddWebAuthnForm):
    """Always one that one can log in with: it proves both that one has it and who one is."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["name"].max_length = 100
        self.fields["name"].help_text = _("To tell it from others: the device, or where it is kept.")
        self.fields["passwordless"].widget = forms.HiddenInput()
        self.fields["passwordless"].initial = True
        self.fields["name"].widget.attrs["maxlength"] = 100

    def clean_name(self) -> str:
        return one_line(super().clean_name())[:100]


class WorkAddressForm(forms.Form):
    email = forms.EmailField(
        label=_("Your address at work"),
        max_length=254,
        widget=forms.EmailInput(attrs={"autocomplete": "email", "autofocus": True}),
    )


class _Relabelled:
    """allauth's form with our labels."""

    labels: ClassVar[dict[str, Any]] = {"password1": _("New password"), "password2": _("New password again")}

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for name, label in self.labels.items():
            self.fields[name].label = label  # type: ignore[attr-defined]


class NewPasswordForm(_Relabelled, ChangePasswordForm):
    labels: ClassVar[dict[str, Any]] = {**_Relabelled.labels, "oldpassword": _("Current password")}


class FirstPasswordForm(_Relabelled, SetPasswordForm):
    pass


class ForgottenPasswordForm(_Relabelled, ResetPasswordKeyForm):
    pass


class NewAddressForm(_Relabelled, AddEmailForm):
    labels: ClassVar[dict[str, Any]] = {"email": _("New address")}
