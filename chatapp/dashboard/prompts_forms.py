"""The forms of the pages about prompts. What they hold is checked by chatapp.prompts.services."""

from __future__ import annotations

from django import forms
from django.utils.translation import gettext_lazy as _l

from chatapp.prompts.models import LONGEST_DESCRIPTION, LONGEST_NAME, LONGEST_NOTE, LONGEST_SLUG
from chatapp.prompts.text import LONGEST_TEXT


class AssistantForm(forms.Form):
    name = forms.CharField(
        label=_l("Name"), max_length=LONGEST_NAME, help_text=_l("What people see, for example Support desk.")
    )
    description = forms.CharField(
        label=_l("Description"),
        max_length=LONGEST_DESCRIPTION,
        required=False,
        help_text=_l("One line for those who choose between assistants."),
    )


class SettingsForm(AssistantForm):
    slug = forms.CharField(
        label=_l("Name for programs"),
        max_length=LONGEST_SLUG,
        help_text=_l(
            "Programs ask for the model assistant:<this name>. Changing it breaks those that use the old one."
        ),
    )


class DraftForm(forms.Form):
    """`revision`: of the draft as the page showed it. Texts are taken as they are: no stripping, no length of ours."""

    text = forms.CharField(
        label=_l("Instructions"),
        required=False,
        strip=False,
        widget=forms.Textarea(attrs={"rows": 16, "dir": "auto", "spellcheck": "true", "maxlength": LONGEST_TEXT}),
    )
    note = forms.CharField(label=_l("Why?"), required=False, max_length=LONGEST_NOTE)
    revision = forms.IntegerField(widget=forms.HiddenInput, min_value=0, max_value=2**31 - 1)


class NoteForm(forms.Form):
    note = forms.CharField(label=_l("Why?"), required=False, max_length=LONGEST_NOTE)
