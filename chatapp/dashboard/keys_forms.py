"""The forms of the pages about API keys."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

from django import forms

from chatapp.dashboard.zones import end_of
from chatapp.tenants.keys import LONGEST_NAME, Overlap
from chatapp.tenants.models import ApiKey, KeyScope

SCOPES = [
    (KeyScope.CHAT, "Chat: ask and read its own conversations"),
    (KeyScope.SYSTEM, "Send a system message of its own, beside the team's prompt"),
    (KeyScope.USAGE, "Read usage and limits"),
    (KeyScope.ADMIN, "Administer the team: people, prompts, keys, limits, settings; no chats"),
]


class KeyForm(forms.Form):
    name = forms.CharField(
        max_length=LONGEST_NAME,
        help_text="What uses it, so that you know it again: “Website, production”.",
        widget=forms.TextInput(attrs={"autocomplete": "off"}),
    )
    scopes = forms.MultipleChoiceField(
        label="It may", choices=SCOPES, widget=forms.CheckboxSelectMultiple, initial=[KeyScope.CHAT]
    )
    expires_on = forms.DateField(label="Expires", required=False, widget=forms.DateInput(attrs={"type": "date"}))
    allowed_networks = forms.CharField(
        label="Only from these networks",
        required=False,
        widget=forms.Textarea(attrs={"rows": 3, "spellcheck": "false", "placeholder": "203.0.113.7\n10.0.0.0/8"}),
        help_text="An address or CIDR a line, IPv4 or IPv6. Empty: from anywhere.",
    )
    allowed_origins = forms.CharField(
        label="Only from these web origins",
        required=False,
        widget=forms.Textarea(attrs={"rows": 3, "spellcheck": "false", "placeholder": "https://app.example.com"}),
        help_text="One a line. Then only pages of these sites can use it, and servers, which send no Origin, cannot.",
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
        self.fields[
            "expires_on"
        ].help_text = f"It works to the end of that day in {zone.key.replace('_', ' ')}. Empty: until it is revoked."

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
        label="The old key works for",
        choices=[
            (Overlap.DAY, "24 hours"),
            (Overlap.HOUR, "1 hour"),
            (Overlap.WEEK, "7 days"),
            (Overlap.NONE, "no time: it stops now"),
        ],
        initial=Overlap.DAY,
    )


class RevokeForm(forms.Form):
    confirm = forms.CharField(widget=forms.TextInput(attrs={"autocomplete": "off"}))

    def __init__(self, *args: Any, key: ApiKey, **kwargs: Any) -> None:
        self.key = key
        super().__init__(*args, **kwargs)
        self.fields["confirm"].label = f"Type {key.name} to confirm"
        self.fields["confirm"].widget.attrs["data-must-equal"] = key.name

    def clean_confirm(self) -> str:
        typed: str = self.cleaned_data["confirm"]
        if typed.strip() != self.key.name:
            raise forms.ValidationError(f"This is not the key's name, which is {self.key.name}.")
        return typed
