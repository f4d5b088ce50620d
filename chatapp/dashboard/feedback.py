"""What people say of the team's answers, as a page for its admins: figures by assistant and version, then each one."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode
from uuid import UUID
from zoneinfo import ZoneInfo

from django import forms
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.utils.translation import gettext_lazy as _

from chatapp.downloads import download
from chatapp.errors import Refusal
from chatapp.feedback import selectors
from chatapp.feedback.export import export
from chatapp.feedback.models import Rating, Reason
from chatapp.feedback.selectors import Filters, Page
from chatapp.prompts.models import SystemPrompt
from chatapp.tenants.access import Access
from chatapp.tenants.pages import page, refuse, tenant_page
from chatapp.tenants.permissions import Permission
from chatapp.zones import end_of, reader_zone, start_of

PAGE = 50


class FilterForm(forms.Form):
    rating = forms.ChoiceField(label=_("Rating"), required=False, choices=[("", _("Any")), *Rating.choices])
    assistant = forms.ChoiceField(label=_("Assistant"), required=False)
    since = forms.DateField(label=_("First day"), required=False, widget=forms.DateInput(attrs={"type": "date"}))
    until = forms.DateField(label=_("Last day"), required=False, widget=forms.DateInput(attrs={"type": "date"}))
    said = forms.BooleanField(label=_("Only with words or the chat"), required=False)

    def __init__(self, data: Any, assistants: list[tuple[str, Any]]) -> None:
        super().__init__(data)
        self.fields["assistant"].choices = [("", _("Any")), *assistants]  # type: ignore[attr-defined]

    def clean(self) -> dict[str, Any]:
        data = super().clean() or {}
        if data.get("since") and data.get("until") and data["since"] > data["until"]:
            self.add_error("until", _("The last day is before the first."))
        return data

    def filters(self, zone: ZoneInfo) -> Filters:
        data = self.cleaned_data
        return Filters(
            rating=data["rating"],
            assistant_id=UUID(data["assistant"]) if data["assistant"] else None,
            since=start_of(data["since"], zone) if data["since"] else None,
            until=end_of(data["until"], zone) if data["until"] else None,
            said=data["said"],
        )


@tenant_page(Permission.READ_FEEDBACK)
def feedback(request: HttpRequest, access: Access) -> HttpResponse:
    return _page(request, access, _form(request))


@tenant_page(Permission.READ_FEEDBACK, methods=("GET",))
def download_feedback(request: HttpRequest, access: Access) -> HttpResponseBase:
    form = _form(request)
    if not form.is_valid():
        return _page(request, access, form)
    name, parts = export(access, form.filters(reader_zone(request)))
    return download(request, parts, name)


def _form(request: HttpRequest) -> FilterForm:
    names = [(str(one.pk), one.name) for one in SystemPrompt.objects.only("name")]
    return FilterForm(request.GET, names)


def _page(request: HttpRequest, access: Access, form: FilterForm) -> HttpResponse:
    zone = reader_zone(request)
    found, groups, totals = Page([], None), [], {}
    if form.is_valid():
        filters = form.filters(zone)
        try:
            found = selectors.page(access, filters, request.GET.get("cursor", ""), PAGE)
            groups = selectors.groups(access, filters)
            totals = selectors.totals(access, filters)
        except Refusal as refusal:
            refuse(form, refusal)
    asked = {name: value for name, value in form.data.items() if name in form.fields and value}
    context = {
        "form": form,
        "rows": [{"row": row, "reasons": [_word(reason) for reason in row.reasons]} for row in found.items],
        "groups": groups,
        **totals,
        "next": found.next,
        "first": not request.GET.get("cursor"),
        "filtered": bool(asked),
        "query": urlencode(asked),
        "zone": zone.key.replace("_", " "),
        "section": "tenant-feedback",
    }
    return page(request, access, "tenant/feedback.html", context, status=400 if form.errors else 200)


def _word(reason: str) -> Any:
    return Reason(reason).label if reason in Reason.values else reason
