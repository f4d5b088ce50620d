"""The forms of the data pages."""

from __future__ import annotations

from typing import Any

from django import forms
from django.utils.translation import gettext_lazy as _l

from chatapp.data.models import LEAST_USAGE_DAYS, LONGEST_DAYS


class RetentionForm(forms.Form):
    days = forms.IntegerField(
        label=_l("Delete chats after"),
        required=False,
        min_value=1,
        max_value=LONGEST_DAYS,
        help_text=_l("Days since the last message. Leave it empty to keep chats until somebody deletes them."),
    )
    keep_starred = forms.BooleanField(
        label=_l("Keep starred chats"),
        required=False,
        help_text=_l("A star by its member keeps a chat, however old it gets."),
    )
    usage_days = forms.IntegerField(
        label=_l("Keep usage figures for"),
        min_value=LEAST_USAGE_DAYS,
        max_value=LONGEST_DAYS,
        help_text=_l("Days. Figures hold tokens and times, no text; budgets and reports are made of them."),
    )

    def rule(self) -> dict[str, Any]:
        return {name: self.cleaned_data[name] for name in ("days", "keep_starred", "usage_days")}


class TypedForm(forms.Form):
    """What is destroyed is named first."""

    confirm = forms.CharField(max_length=254)

    def __init__(self, *args: Any, must_equal: str, label: str, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        field = self.fields["confirm"]
        field.label = label
        field.widget.attrs.update({"data-must-equal": must_equal, "autocomplete": "off", "spellcheck": "false"})


class LeaveForm(TypedForm):
    password = forms.CharField(
        label=_l("Password"), strip=False, widget=forms.PasswordInput(attrs={"autocomplete": "current-password"})
    )

    def __init__(self, *args: Any, has_password: bool, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if not has_password:
            del self.fields["password"]
