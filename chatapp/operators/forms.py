"""Forms of the operators' administration: a team with its owner and models, and the site's settings."""

from __future__ import annotations

from typing import Any

from django import forms
from django.conf import settings
from unfold.widgets import (
    UnfoldAdminEmailInputWidget,
    UnfoldAdminSelectWidget,
    UnfoldAdminTextareaWidget,
    UnfoldAdminTextInputWidget,
    UnfoldBooleanSwitchWidget,
)

from chatapp.errors import BadInput
from chatapp.operators.site import clean_mail, clean_name
from chatapp.site import selectors as site
from chatapp.site.models import SiteSettings
from chatapp.tenants.models import Tenant


class TenantForm(forms.ModelForm):
    """A team. Models that are not served any more stay selectable, named as such: they may come back."""

    owner_email = forms.EmailField(
        label="Owner",
        help_text="Who has this address, or a new account whose password is chosen by a link.",
        widget=UnfoldAdminEmailInputWidget,
    )
    allowed_models = forms.MultipleChoiceField(
        required=False,
        help_text="None: all models that are served. The default is always among them.",
        widget=forms.CheckboxSelectMultiple,
    )
    default_model = forms.ChoiceField(required=False, widget=UnfoldAdminSelectWidget)

    class Meta:
        model = Tenant
        fields = ("name", "slug", "accent", "default_model", "allowed_models")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        own = [*(self.instance.allowed_models or []), self.instance.default_model]
        served = list(settings.OCTAVO_MODEL_NAMES)
        gone = [(name, f"{name} (not served now)") for name in dict.fromkeys(own) if name and name not in served]
        choices = [*((name, name) for name in served), *gone]
        if "allowed_models" in self.fields:
            self.fields["allowed_models"].choices = choices  # type: ignore[attr-defined]
        if "default_model" in self.fields:
            platform = f"The platform's ({settings.OCTAVO_MODEL_NAME})"
            self.fields["default_model"].choices = [("", platform), *choices]  # type: ignore[attr-defined]
        if self.instance.pk and not self.instance._state.adding:
            self.fields.pop("owner_email", None)


class SiteSettingsForm(forms.ModelForm):
    """The mail server is never shown with its password: what is typed replaces it, nothing leaves it."""

    smtp_url = forms.CharField(
        label="Mail server",
        required=False,
        max_length=1000,
        widget=UnfoldAdminTextInputWidget(attrs={"autocomplete": "off", "spellcheck": "false"}),
    )
    no_mail = forms.BooleanField(
        label="Send no mail", required=False, help_text="Forgets the mail server.", widget=UnfoldBooleanSwitchWidget
    )

    class Meta:
        model = SiteSettings
        fields = ("name", "mail_from")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        mail = site.mail()
        now = mail.server.shown if mail.server else ""
        text = "smtp://user:password@host:587, or smtps://…"
        if mail.from_environment:
            self.fields["smtp_url"].disabled = self.fields["no_mail"].disabled = True
            self.fields["smtp_url"].initial = now
            text = "Set by OCTAVO_MAIL_URL in the environment of this server, which counts before what is entered here."
        elif mail.trouble:
            text = mail.trouble
        elif now:
            text = f"Now {now}. Empty: it stays."
        self.fields["smtp_url"].help_text = text

    def clean_name(self) -> str:
        try:
            return clean_name(self.cleaned_data["name"])
        except BadInput as refusal:
            raise forms.ValidationError(refusal.message) from None

    def clean_smtp_url(self) -> str:
        if self.fields["smtp_url"].disabled:
            return ""
        try:
            return clean_mail(self.cleaned_data["smtp_url"], "")[0]
        except BadInput as refusal:
            raise forms.ValidationError(refusal.message) from None


class SuspendForm(forms.Form):
    reason = forms.CharField(
        required=False,
        max_length=500,
        label="Reason",
        help_text="Stands in the team's audit log.",
        widget=UnfoldAdminTextareaWidget(attrs={"rows": 3}),
    )


class DeleteForm(forms.Form):
    """The team's short name has to be typed: this cannot be undone once it has run."""

    slug = forms.CharField(label="Short name of the team", widget=UnfoldAdminTextInputWidget)

    def __init__(self, *args: Any, tenant: Tenant, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.tenant = tenant

    def clean_slug(self) -> str:
        slug = str(self.cleaned_data["slug"]).strip()
        if slug != self.tenant.slug:
            raise forms.ValidationError(f"Type {self.tenant.slug} to delete it.")
        return slug
