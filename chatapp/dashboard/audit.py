"""The audit log as a page of a team's administration: filters, a pager, and the whole of it as a file."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode
from zoneinfo import ZoneInfo

from django import forms
from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy as _l

from chatapp.audit import break_glass
from chatapp.audit.actions import ACTIONS, topics
from chatapp.audit.details import lines
from chatapp.audit.export import export as export_log
from chatapp.audit.models import ActorKind, AuditEntry
from chatapp.audit.selectors import Filters, Page, entries
from chatapp.errors import Refusal
from chatapp.tenants.access import Access
from chatapp.tenants.pages import page, refuse, tenant_page
from chatapp.tenants.permissions import Permission
from chatapp.zones import end_of, reader_zone, start_of


def _actions() -> list[tuple[str, Any]]:
    named: list[tuple[str, Any]] = [("", _("Anything"))]
    named += [(f"{topic}.", _("All about %(topic)s") % {"topic": _(name)}) for topic, name in topics()]
    return [
        *named,
        (_("One action"), sorted(((name, _(words)) for name, words in ACTIONS.items()), key=lambda item: item[1])),
    ]


class FilterForm(forms.Form):
    q = forms.CharField(label=_l("Search"), max_length=200, required=False, widget=forms.SearchInput)
    actor = forms.CharField(label=_l("Who"), max_length=254, required=False)
    actor_kind = forms.ChoiceField(label=_l("Kind"), required=False, choices=[("", _l("Anyone")), *ActorKind.choices])
    action = forms.ChoiceField(label=_l("What"), required=False, choices=_actions)
    object = forms.CharField(label=_l("Object"), max_length=254, required=False)
    address = forms.CharField(label=_l("From address"), max_length=60, required=False)
    since = forms.DateField(label=_l("First day"), required=False, widget=forms.DateInput(attrs={"type": "date"}))
    until = forms.DateField(label=_l("Last day"), required=False, widget=forms.DateInput(attrs={"type": "date"}))

    def clean(self) -> dict[str, Any]:
        data = super().clean() or {}
        if data.get("since") and data.get("until") and data["since"] > data["until"]:
            self.add_error("until", _("The last day is before the first."))
        return data

    def filters(self, zone: ZoneInfo) -> Filters:
        data = self.cleaned_data
        return Filters(
            text=data["q"].strip(),
            actor=data["actor"].strip(),
            actor_kind=data["actor_kind"],
            action=data["action"],
            object=data["object"].strip(),
            address=data["address"].strip(),
            since=start_of(data["since"], zone) if data["since"] else None,
            until=end_of(data["until"], zone) if data["until"] else None,
        )


# Called `text` by the selectors; an address has it as q.
FIELDS = {"text": "q"}


@tenant_page(Permission.READ_AUDIT)
def log(request: HttpRequest, access: Access) -> HttpResponse:
    form = FilterForm(request.GET)
    zone = reader_zone(request)
    found, filters = _found(form, zone, request.GET.get("cursor", ""))
    asked = {name: value for name, value in form.data.items() if name in form.fields and value}
    context = {
        "rows": [_row(entry) for entry in found.items],
        "next": found.next,
        "first": not request.GET.get("cursor"),
        "form": form,
        "filtered": bool(filters),
        "more": bool(set(asked) - {"q", "action"}) or any(name not in ("q", "action") for name in form.errors),
        "query": urlencode(asked),
        "zone": zone.key.replace("_", " "),
        "reading": break_glass.open_now(),
    }
    return page(request, access, "tenant/audit.html", context, status=400 if form.errors else 200)


@tenant_page(Permission.READ_AUDIT, methods=("GET",))
def export(request: HttpRequest, access: Access) -> Any:
    form = FilterForm(request.GET)
    if form.is_valid():
        try:
            return export_log(
                actor=access.actor,
                tenant=access.tenant,
                slug=access.tenant.slug,
                filters=form.filters(reader_zone(request)),
                format=request.GET.get("format", "csv"),
            )
        except Refusal as refusal:
            refusal.param = FIELDS.get(refusal.param or "", refusal.param)
            refuse(form, refusal)
    context = {"rows": [], "form": form, "first": True, "filtered": True, "more": True, "zone": "UTC"}
    return page(request, access, "tenant/audit.html", {**context, "section": "tenant-audit"}, status=400)


def _found(form: FilterForm, zone: ZoneInfo, cursor: str) -> tuple[Page, Filters]:
    """What a form with mistakes in it asks for is nothing; the mistakes are told."""
    if form.is_valid():
        try:
            filters = form.filters(zone)
            return entries(filters, cursor=cursor), filters
        except Refusal as refusal:
            refusal.param = FIELDS.get(refusal.param or "", refusal.param)
            refuse(form, refusal)
    return Page([], None), Filters(text="?")


def _row(entry: AuditEntry) -> dict[str, Any]:
    return {"entry": entry, "details": lines(entry.details)}
