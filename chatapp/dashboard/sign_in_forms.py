"""Forms of the page of sign-in."""

from __future__ import annotations

from typing import Any

from django import forms
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy as _l

from chatapp.tenants.access import Access
from chatapp.tenants.permissions import Role
from chatapp.tenants.sign_in import MfaRule, SignIn


class MfaForm(forms.Form):
    mfa = forms.ChoiceField(label=_l("Who needs a second factor"), choices=MfaRule.choices, widget=forms.RadioSelect)


class ServiceForm(forms.Form):
    issuer = forms.CharField(
        label=_l("Issuer"),
        max_length=500,
        help_text=_l("As the service's configuration spells it, such as https://login.example.com."),
        widget=forms.URLInput(attrs={"autocomplete": "off", "spellcheck": "false"}),
    )
    client_id = forms.CharField(
        label=_l("Client id"), max_length=255, widget=forms.TextInput(attrs={"autocomplete": "off"})
    )
    secret = forms.CharField(
        label=_l("Client secret"),
        max_length=1000,
        required=False,
        strip=True,
        widget=forms.PasswordInput(attrs={"autocomplete": "off"}),
    )
    role = forms.ChoiceField(label=_l("Role of who comes for the first time"))
    enabled = forms.BooleanField(label=_l("People can sign in through it"), required=False)

    def __init__(self, *args: Any, row: SignIn, access: Access, **kwargs: Any) -> None:
        start = {"issuer": row.issuer, "client_id": row.client_id, "role": row.role, "enabled": row.enabled}
        kwargs["initial"] = start
        super().__init__(*args, **kwargs)
        field = self.fields["role"]
        assert isinstance(field, forms.ChoiceField)
        grantable = [role for role in Role if role is not Role.OWNER]
        if access.role != Role.OWNER:
            grantable = [role for role in grantable if role is not Role.ADMIN or row.role == Role.ADMIN]
        field.choices = [(role.value, role.label) for role in grantable]
        self.fields["secret"].help_text = (
            _("Kept sealed. Leave it empty to keep the one there is.")
            if row.sealed_secret
            else _("Kept sealed, and never shown again.")
        )


class DomainForm(forms.Form):
    domain = forms.CharField(
        label=_l("Mail domain"),
        max_length=260,
        widget=forms.TextInput(attrs={"placeholder": "example.com", "autocomplete": "off", "spellcheck": "false"}),
    )
