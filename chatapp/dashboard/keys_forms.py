"""The forms of the pages about API keys."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

from django import forms
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy as _l

from chatapp.tenants.keys import LONGEST_NAME, Overlap
from chatapp.tenants.models import ApiKey, KeyScope
from chatapp.zones import end_of

SCOPES = [
    (KeyScope.CHAT, _l("Chat: ask and read its own conversations")),
    (KeyScope.SYSTEM, _l("Send a system message of its own, beside the team's prompt")),
    (KeyScope.USAGE, _l("Read usage and limits")),
    (KeyScope.ADMIN, _l("Administer the team: people, prompts, keys, limits, settings; no chats")),
]


class KeyForm(forms.Form):
    name = forms.CharField(
        label=_l("Name"),
        max_length=LONGEST_NAME,
        help_text=_l("What uses it, so that you know it again: “Website, production”."),
        widget=forms.TextInput(attrs={"autocomplete": "off"}),
    )
    scopes = forms.MultipleChoiceField(
        label=_l("It may"), choices=SCOPES, widget=forms.CheckboxSelectMultiple, initial=[KeyScope.CHAT]
    )
    expires_on = forms.DateField(label=_l("Expires"), required=False, widget=forms.DateInput(attrs={"type": "date"}))
    allowed_networks = forms.CharField(
        label=_l("Only from these networks"),
        required=False,
        widget=forms.Textarea(attrs={"rows": 3, "spellcheck": "false", "placeholder": "203.0.113.7\n10.0.0.0/8"}),
        help_text=_l("An address or CIDR a line, IPv4 or IPv6. Empty: from anywhere."),
    )
    allowed_origins = forms.CharField(
        label=_l("Only from these web origins"),
        required=False,
        widget=forms.Textarea(attrs={"rows": 3, "spellcheck": "false", "placeholder": "https://app.example.com"}),
        help_text=_l(
            "One a line. Then only pages of these sites can use it, and servers, which send no Origin, cannot."
        ),
    )

    def __init__(self, *args: Any, zone: ZoneInfo, key: ApiKey | None = None, **kwargs: Any) -> None:
        self.zone = zone
        self.key = key
        if key is not None:
            ends = key.expires_at
            kwargs["initial"] = {
                "name": key.name,
                "scopes": key.scopes,
                # The last day on which it works: an expiry at midnight belongs to the day before.
                "expires_on": (ends - datetime.resolution).astimezone(zone).date() if ends else None,
                "allowed_networks": "\n".join(key.allowed_networks),
                "allowed_origins": "\n".join(key.allowed_origins),
            }
        super().__init__(*args, **kwargs)
        self.fields["expires_on"].help_text = _(
            "It works to the end of that day in %(zone)s. Empty: until it is revoked."
        ) % {"zone": zone.key.replace("_", " ")}

    @property
    def wanted(self) -> dict[str, Any]:
        """What the services take."""
        data = self.cleaned_data
        if self.key is not None and "expires_on" not in self.changed_data:
            expires_at = self.key.expires_at
        else:
            expires_at = end_of(data["expires_on"], self.zone) if data["expires_on"] else None
        return {
            "name": data["name"],
            "scopes": data["scopes"],
            "expires_at": expires_at,
            "allowed_networks": data["allowed_networks"].replace(",", "\n").split("\n"),
            "allowed_origins": data["allowed_origins"].replace(",", "\n").split("\n"),
        }


# The services name their fields by what they keep; the form asks for a day.
FIELDS = {"expires_at": "expires_on"}


class RotateForm(forms.Form):
    overlap = forms.ChoiceField(
        label=_l("The old key works for"),
        choices=[
            (Overlap.DAY, _l("24 hours")),
            (Overlap.HOUR, _l("1 hour")),
            (Overlap.WEEK, _l("7 days")),
            (Overlap.NONE, _l("no time: it stops now")),
        ],
        initial=Overlap.DAY,
    )


class RevokeForm(forms.Form):
    confirm = forms.CharField(widget=forms.TextInput(attrs={"autocomplete": "off"}))

    def __init__(self, *args: Any, key: ApiKey, **kwargs: Any) -> None:
        self.key = key
        super().__init__(*args, **kwargs)
        self.fields["confirm"].label = _("Type %(what)s to confirm") % {"what": key.name}
        self.fields["confirm"].widget.attrs["data-must-equal"] = key.name

    def clean_confirm(self) -> str:
        typed: str = self.cleaned_data["confirm"]
        if typed.strip() != self.key.name:
            raise forms.ValidationError(_("This is not the key's name, which is %(name)s.") % {"name": self.key.name})
        return typed
