"""Forms of the pages about webhooks."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from django import forms

from chatapp.webhooks.kinds import EVENTS
from chatapp.webhooks.models import LONGEST_DESCRIPTION, LONGEST_URL, WebhookEndpoint


class WebhookForm(forms.Form):
    url = forms.CharField(
        label="Address",
        max_length=LONGEST_URL,
        help_text="It gets a POST for each event, over TLS. It has to be reachable from the internet.",
        widget=forms.URLInput(
            attrs={"placeholder": "https://hooks.example.com/octavo", "autocomplete": "off", "spellcheck": "false"}
        ),
    )
    description = forms.CharField(
        max_length=LONGEST_DESCRIPTION,
        required=False,
        help_text="What listens there, so that your colleagues know.",
        widget=forms.TextInput(attrs={"autocomplete": "off"}),
    )
    events = forms.MultipleChoiceField(
        label="It is told of",
        choices=[(kind, f"{text} ({kind})") for kind, text in EVENTS.items()],
        widget=forms.CheckboxSelectMultiple,
    )

    def __init__(self, *args: Any, webhook: WebhookEndpoint | None = None, **kwargs: Any) -> None:
        if webhook is not None:
            kwargs["initial"] = {name: getattr(webhook, name) for name in ("url", "description", "events")}
        super().__init__(*args, **kwargs)


class DeleteForm(forms.Form):
    confirm = forms.CharField(widget=forms.TextInput(attrs={"autocomplete": "off", "spellcheck": "false"}))

    def __init__(self, *args: Any, webhook: WebhookEndpoint, **kwargs: Any) -> None:
        self.host = urlsplit(webhook.url).hostname or ""
        super().__init__(*args, **kwargs)
        self.fields["confirm"].label = f"Type {self.host} to confirm"
        self.fields["confirm"].widget.attrs["data-must-equal"] = self.host

    def clean_confirm(self) -> str:
        typed: str = self.cleaned_data["confirm"]
        if typed.strip() != self.host:
            raise forms.ValidationError(f"This is not the address's name, which is {self.host}.")
        return typed
