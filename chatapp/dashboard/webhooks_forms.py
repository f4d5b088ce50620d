"""Forms of the pages about webhooks."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from django import forms
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy as _l

from chatapp.webhooks.kinds import EVENTS
from chatapp.webhooks.models import LONGEST_DESCRIPTION, LONGEST_URL, WebhookEndpoint


def _events() -> list[tuple[str, str]]:
    return [(kind, f"{_(text)} ({kind})") for kind, text in EVENTS.items()]


class WebhookForm(forms.Form):
    url = forms.CharField(
        label=_l("Address"),
        max_length=LONGEST_URL,
        help_text=_l("It gets a POST for each event, over TLS. It has to be reachable from the internet."),
        widget=forms.URLInput(
            attrs={"placeholder": "https://hooks.example.com/octavo", "autocomplete": "off", "spellcheck": "false"}
        ),
    )
    description = forms.CharField(
        label=_l("Description"),
        max_length=LONGEST_DESCRIPTION,
        required=False,
        help_text=_l("What listens there, so that your colleagues know."),
        widget=forms.TextInput(attrs={"autocomplete": "off"}),
    )
    events = forms.MultipleChoiceField(
        label=_l("It is told of"),
        choices=_events,
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
        self.fields["confirm"].label = _("Type %(what)s to confirm") % {"what": self.host}
        self.fields["confirm"].widget.attrs["data-must-equal"] = self.host

    def clean_confirm(self) -> str:
        typed: str = self.cleaned_data["confirm"]
        if typed.strip() != self.host:
            raise forms.ValidationError(_("This is not the address's name, which is %(host)s.") % {"host": self.host})
        return typed
