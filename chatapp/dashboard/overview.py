"""The first page of a team's administration: today and a period in figures, what runs now, and where it all leads."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import redirect, render
from django.utils import timezone
from django.utils.translation import gettext as _

from chatapp.chat import running
from chatapp.dashboard.charts import chart, day_label
from chatapp.dashboard.period_choice import KEPT, asked, choice, refused, url
from chatapp.dashboard.usage import NAMELESS
from chatapp.downloads import download
from chatapp.errors import BadInput, Refusal, Unavailable
from chatapp.insight import export, tables
from chatapp.insight.tables import TITLES, Table
from chatapp.tenants import nav
from chatapp.tenants.access import Access
from chatapp.tenants.pages import index, page, tenant_page
from chatapp.tenants.permissions import Permission
from chatapp.tenants.selectors import people_in
from chatapp.usage import periods, selectors
from chatapp.usage.export import format_of
from chatapp.usage.periods import Period
from chatapp.usage.selectors import Figures, GroupBy, slots_of

TOP = 5
CONVERSATIONS = 10
CHARTS = ("tokens", "requests", "errors", "first_token", "between_tokens")
# Who and what used most: the group, its title, and what the Usage page calls a row of it.
PARTS = (
    (GroupBy.ASSISTANT, Table.ASSISTANTS, "assistant"),
    (GroupBy.MEMBER, Table.MEMBERS, "principal"),
    (GroupBy.KEY, Table.KEYS, "principal"),
)


@tenant_page(None)
def overview(request: HttpRequest, access: Access) -> HttpResponseBase:
    """For roles without it the first page that they may open."""
    if not access.may(Permission.READ_DASHBOARD):
        return index(request, slug=access.tenant.slug)
    return _overview(request, access)


@tenant_page(Permission.READ_DASHBOARD)
def running_now(request: HttpRequest, access: Access) -> HttpResponse:
    """What runs now and no more, for the page that looks again every few seconds (static/js/overview.js). Whoever opens
    the address is led to the page itself."""
    if not _for_script(request):
        return redirect("tenant-overview", access.tenant.slug)
    return render(request, "tenant/running.html", _running(access))


@tenant_page(Permission.STOP_ANSWERS, methods=("POST",))
def stop(request: HttpRequest, access: Access, answer_id: uuid.UUID) -> HttpResponse:
    """What came of it is said on the page; its script, which stays there, gets that as text, as nothing else would ever
    be shown before the next page is."""
    status, level = 200, messages.SUCCESS
    try:
        state = running.stop(access=access, answer_id=answer_id)
    except Unavailable as refusal:
        status, level, text = 503, messages.ERROR, refusal.message
    else:
        text = _("The answer is being stopped. What it has said so far is kept.")
        if state not in running.STOPPED:
            level, text = messages.INFO, _("The answer had ended already.")
    if _for_script(request):
        return HttpResponse(text, status=status, content_type="text/plain; charset=utf-8")
    messages.add_message(request, level, text)
    return redirect("tenant-overview", access.tenant.slug)


@tenant_page(Permission.READ_DASHBOARD, methods=("GET",))
def download_table(request: HttpRequest, access: Access) -> HttpResponseBase:
    try:
        period, what = asked(request), tables.table_of(request.GET.get("what"))
        form = format_of(request.GET.get("format"))
    except BadInput as refusal:
        return _overview(request, access, refusal)
    parts = export.export(access=access, period=period, what=what, form=form, bom=True)
    return download(request, parts, export.file_name(access, period, what, form))


def _for_script(request: HttpRequest) -> bool:
    return request.headers.get("X-Part") == "running"


def _overview(request: HttpRequest, access: Access, refusal: Refusal | None = None) -> HttpResponse:
    context = {"address": request.path.removesuffix("overview/export"), **_glance(request, access)}
    try:
        if refusal is not None:
            raise refusal
        period = asked(request)
    except BadInput as bad:
        return page(request, access, "tenant/overview.html", refused(request, bad, context), status=400)
    return page(request, access, "tenant/overview.html", {**context, **_period(request, access, period)})


def _glance(request: HttpRequest, access: Access) -> dict[str, Any]:
    """What does not depend on the period."""
    return {
        "section": "tenant-overview",
        "people": people_in(access.tenant),
        "links": {link.view.replace("-", "_"): link.url for link in nav.links(access)},
        "further": [link for link in nav.links(access) if link.view != "tenant-overview"],
        **_running(access),
    }


def _running(access: Access) -> dict[str, Any]:
    return {
        "tenant": access.tenant,
        "running": running.count(access),
        "answers": running.running_now(access),
        "may_stop": access.may(Permission.STOP_ANSWERS),
    }


def _period(request: HttpRequest, access: Access, period: Period) -> dict[str, Any]:
    tenant, now = access.tenant.pk, timezone.now()
    month, today = (periods.period_of({"period": name}, now=now, zone=period.zone) for name in ("month", "today"))
    total = selectors.total(tenant, period)
    may = set(tables.readable(access))
    found: dict[str, Any] = {
        **choice(request, period.name),
        "period": period,
        "zone": period.zone.key,
        "first_day": day_label(str(period.first)),
        "last_day": day_label(str(period.last)),
        "starts_at": period.hours[0].astimezone(period.zone).strftime("%H:%M") if period.ragged else "",
        "today": selectors.total(tenant, today),
        "month": selectors.total(tenant, month),
        "total": total,
        "chart": chart(selectors.grouped(tenant, period, slots_of(period)), period),
        "charts": CHARTS,
        "tables": [(table.value, _(TITLES[table])) for table in Table if table in may],
        "kept": [(name, value) for name in ("from", "to", "zone") if (value := request.GET.get(name))],
    }
    if total.requests and Table.MEMBERS in may:
        found["parts"] = [_part(request, access, period, total, *part) for part in PARTS]
        found["costs"] = tables.read(access, Table.CONVERSATIONS, period, CONVERSATIONS)
    if total.failed or total.refused:
        found["errors"] = tables.read(access, Table.ERRORS, period, CONVERSATIONS)
    if Table.VERSIONS in may:
        found["versions"] = tables.read(access, Table.VERSIONS, period, CONVERSATIONS)
    if Table.LIMITS in may:
        found["uses"] = [use for use in tables.read(access, Table.LIMITS, period) if use.used is not None]
    return found


def _part(
    request: HttpRequest, access: Access, period: Period, total: Figures, by: GroupBy, table: Table, narrows: str
) -> dict[str, Any]:
    groups = selectors.grouped(access.tenant.pk, period, by, percentiles=False)

    def link(**changes: str | None) -> str:
        return url(request, KEPT, period=period.name, **changes)

    return {
        "title": _(TITLES[table]),
        "all": link(group=by.value),
        "more": max(0, len(groups) - TOP),
        "rows": [_row(group, total, link(**{narrows: group.id or "none"}), by) for group in groups[:TOP]],
    }


def _row(group: Figures, total: Figures, link: str, by: GroupBy) -> Mapping[str, Any]:
    return {
        "name": group.name or _(NAMELESS[by]),
        "link": link,
        "tokens": group.tokens,
        "requests": group.requests,
        "bar": f"{100 * group.tokens / total.tokens if total.tokens else 0:.2f}",
    }
