"""A team's settings: its name and its colour."""

from __future__ import annotations

from django import forms
from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect

from chatapp.errors import Forbidden, Refusal
from chatapp.tenants import team
from chatapp.tenants.access import Access
from chatapp.tenants.models import Accent
from chatapp.tenants.pages import page, refuse, tenant_page
from chatapp.tenants.permissions import Permission


class SettingsForm(forms.Form):
    name = forms.CharField(
        label="Name",
        max_length=team.LONGEST_NAME,
        help_text="People see it in the sidebar, in their list of teams, and as the name of the assistant.",
    )
    accent = forms.ChoiceField(label="Colour", choices=Accent.choices)


@tenant_page(Permission.MANAGE_SETTINGS, methods=("GET", "HEAD", "POST"))
def settings(request: HttpRequest, access: Access) -> HttpResponse:
    tenant = access.tenant
    form = SettingsForm(request.POST or None, initial={"name": tenant.name, "accent": tenant.accent})
    if request.method == "POST" and form.is_valid():
        try:
            team.change_team(access=access, name=form.cleaned_data["name"], accent=form.cleaned_data["accent"])
        except Forbidden:
            raise
        except Refusal as refusal:
            refuse(form, refusal)
        else:
            messages.success(request, "The settings are saved.")
            return redirect("tenant-settings", slug=tenant.slug)
    context = {"form": form, "accents": Accent.choices}
    return page(request, access, "tenant/settings.html", context, status=400 if form.errors else 200)
