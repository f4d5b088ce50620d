"""A team's settings: its name, its colour, and who gives its chats their titles."""

from __future__ import annotations

from django import forms
from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy as _l

from chatapp.errors import Forbidden, Refusal
from chatapp.tenants import team
from chatapp.tenants.access import Access
from chatapp.tenants.models import Accent
from chatapp.tenants.pages import page, refuse, tenant_page
from chatapp.tenants.permissions import Permission


class SettingsForm(forms.Form):
    name = forms.CharField(
        label=_l("Name"),
        max_length=team.LONGEST_NAME,
        help_text=_l("People see it in the sidebar, in their list of teams, and as the name of the assistant."),
    )
    accent = forms.ChoiceField(label=_l("Colour"), choices=Accent.choices)
    model_titles = forms.BooleanField(
        label=_l("The model writes the titles of new chats"),
        required=False,
        help_text=_l(
            "After the first answer, when nobody waits. It uses a few tokens of the budget for each chat. "
            "Without, a chat is called by its first words."
        ),
    )


@tenant_page(Permission.MANAGE_SETTINGS, methods=("GET", "HEAD", "POST"))
def settings(request: HttpRequest, access: Access) -> HttpResponse:
    tenant = access.tenant
    initial = {field: getattr(tenant, field) for field in SettingsForm.base_fields}
    form = SettingsForm(request.POST or None, initial=initial)
    if request.method == "POST" and form.is_valid():
        try:
            team.change_team(access=access, **form.cleaned_data)
        except Forbidden:
            raise
        except Refusal as refusal:
            refuse(form, refusal)
        else:
            messages.success(request, _("The settings are saved."))
            return redirect("tenant-settings", slug=tenant.slug)
    context = {"form": form, "accents": Accent.choices}
    return page(request, access, "tenant/settings.html", context, status=400 if form.errors else 200)
