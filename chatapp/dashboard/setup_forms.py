"""The form of /setup. What its fields mean, and most of what is wrong with them, the service says."""

from __future__ import annotations

from django import forms
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy as _l

from chatapp.site.models import DEFAULT_NAME


def _typed(kind: str, **attrs: str) -> dict[str, str]:
    return {"autocomplete": kind, **attrs}


class SetupForm(forms.Form):
    """Passwords stay when the form is shown again: a wrong mail server must not cost them."""

    token = forms.CharField(widget=forms.HiddenInput, required=False)
    email = forms.EmailField(label=_l("Your email"), widget=forms.EmailInput(_typed("username", autofocus="")))
    password = forms.CharField(
        label=_l("Password"),
        help_text=_l("At least 10 characters."),
        strip=False,
        max_length=1000,
        widget=forms.PasswordInput(_typed("new-password"), render_value=True),
    )
    again = forms.CharField(
        label=_l("The same again"),
        strip=False,
        max_length=1000,
        widget=forms.PasswordInput(_typed("new-password"), render_value=True),
    )
    site_name = forms.CharField(
        label=_l("Name of this site"), initial=DEFAULT_NAME, max_length=60, help_text=_l("Stands in titles and mails.")
    )
    smtp_url = forms.CharField(
        label=_l("Mail server"),
        required=False,
        max_length=1000,
        help_text=_l("smtp://user:password@host:587 or smtps://… Without one, invitations are links that you hand on."),
        widget=forms.TextInput(_typed("off", spellcheck="false")),
    )
    mail_from = forms.EmailField(
        label=_l("Sender"), required=False, help_text=_l("The address that mails come from."),
        widget=forms.EmailInput(_typed("off")),
    )  # fmt: skip
    tenant_name = forms.CharField(label=_l("Name"), required=False, max_length=120)
    tenant_slug = forms.CharField(
        label=_l("Short name"), required=False, max_length=40, help_text=_l("For addresses: a-z, 0-9 and hyphens."),
        widget=forms.TextInput(_typed("off", spellcheck="false")),
    )  # fmt: skip
    owner_email = forms.EmailField(
        label=_l("Owner's email"), required=False, help_text=_l("Empty: you."), widget=forms.EmailInput(_typed("off"))
    )

    def clean(self) -> dict[str, object]:
        data: dict[str, object] = super().clean() or {}
        if "password" in data and "again" in data and data["password"] != data["again"]:
            self.add_error("again", _("This is not the same password."))
        return data


class TestMailForm(forms.Form):
    """The part of it that a test mail needs."""

    email = forms.EmailField()
    smtp_url = forms.CharField(max_length=1000, required=False)
    mail_from = forms.EmailField(required=False)
    site_name = forms.CharField(max_length=60, required=False)
