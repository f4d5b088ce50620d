"""Usage as pages: the team's for those who may read it, and everybody's own. Figures come from roll-ups only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import gettext_noop as _n

from chatapp.dashboard.charts import chart, day_label
from chatapp.dashboard.period_choice import asked, choice, refused, url
from chatapp.downloads import download
from chatapp.errors import BadInput, Refusal
from chatapp.tenants.access import Access
from chatapp.tenants.pages import page, tenant_page
from chatapp.tenants.permissions import Permission
from chatapp.usage import export, periods, selectors
from chatapp.usage.periods import Period
from chatapp.usage.selectors import Figures, GroupBy, slots_of

PAGE = 50
GROUPS = {
    GroupBy.DAY: _n("Days"),
    GroupBy.MEMBER: _n("Members"),
    GroupBy.KEY: _n("API keys"),
    GroupBy.ASSISTANT: _n("Assistants"),
    GroupBy.MODEL: _n("Models"),
}
NAMELESS = {
    GroupBy.ASSISTANT: _n("Without an assistant"),
    GroupBy.MEMBER: _n("Deleted person"),
    GroupBy.KEY: _n("Deleted key"),
}
# What a group's name leads to: the same page, narrowed to it.
NARROWS = {
    GroupBy.MEMBER: "principal",
    GroupBy.KEY: "principal",
    GroupBy.ASSISTANT: "assistant",
    GroupBy.MODEL: "model",
}
KEPT = ("period", "from", "to", "zone", "principal", "assistant", "model", "kind", "group")
NARROWING = ("principal", "assistant", "model", "kind")


@tenant_page(Permission.READ_USAGE)
def usage(request: HttpRequest, access: Access) -> HttpResponse:
    return _usage(request, access)


@tenant_page(Permission.READ_USAGE, methods=("GET",))
def download_usage(request: HttpRequest, access: Access) -> HttpResponseBase:
    try:
        period, filters = _asked(request)
        what, form = export.what_of(request.GET.get("what")), export.format_of(request.GET.get("format"))
    except BadInput as refusal:
        return _usage(request, access, refusal)
    parts = export.export(access=access, period=period, filters=filters, what=what, form=form, bom=True)
    return download(request, parts, export.file_name(access, period, what, form))


@tenant_page(None)
def own(request: HttpRequest, access: Access) -> HttpResponse:
    """What the reader has used in this team: any role may know that of itself."""
    context: dict[str, Any] = {"address": request.path}
    try:
        period, _filters = _asked(request)
    except BadInput as refusal:
        return page(request, access, "tenant/own_usage.html", refused(request, refusal, context, KEPT), status=400)
    context |= _figures(request, access, period, {"principal": access.principal})
    return page(request, access, "tenant/own_usage.html", context)


def _usage(request: HttpRequest, access: Access, refusal: Refusal | None = None) -> HttpResponse:
    context: dict[str, Any] = {"address": request.path.removesuffix("/export"), "section": "tenant-usage"}
    try:
        if refusal is not None:
            raise refusal
        period, filters = _asked(request)
        by = selectors.group_of(request.GET.get("group"))
        if by not in GROUPS:
            raise BadInput(_("There is no such table."), param="group")
        number = _page_number(request)
    except BadInput as bad:
        return page(request, access, "tenant/usage.html", refused(request, bad, context, KEPT), status=400)
    context |= _figures(request, access, period, filters)
    rows = context["days"] if by is GroupBy.DAY else selectors.grouped(access.tenant.pk, period, by, filters)
    if by is GroupBy.DAY:
        rows = rows[::-1]
    pages = max(1, -(-len(rows) // PAGE))
    number = min(number, pages)
    shown = rows[(number - 1) * PAGE : number * PAGE]
    most = max((row.tokens for row in rows), default=0)
    context |= {
        "by": by,
        "by_title": GROUPS[by],
        "rows": [_row(request, by, row, most) for row in shown],
        "used": any(row.requests for row in rows),
        "groups": [
            {"title": title, "url": _url(request, group=each.value, page=None), "here": each is by}
            for each, title in GROUPS.items()
        ],
        "page_number": number,
        "pages": pages,
        "newer": _url(request, page=str(number - 1)) if number > 1 else "",
        "older": _url(request, page=str(number + 1)) if number < pages else "",
        "narrowed": selectors.name_of(access.tenant.pk, filters) or "Without an assistant" if filters else "",
        "widened": _url(request, page=None, **dict.fromkeys(NARROWING)),
        "kept": [(name, value) for name in KEPT if name != "group" and (value := request.GET.get(name))],
    }
    return page(request, access, "tenant/usage.html", context)


def _asked(request: HttpRequest) -> tuple[Period, dict[str, str]]:
    return asked(request), selectors.filters_of(request.GET)


def _url(request: HttpRequest, **changes: str | None) -> str:
    return url(request, (*KEPT, "page"), **changes)


def _page_number(request: HttpRequest) -> int:
    text = request.GET.get("page") or "1"
    if not (text.isascii() and text.isdigit() and len(text) < 8 and int(text) > 0):
        raise BadInput(_("There is no such page."), param="page")
    return int(text)


def _figures(request: HttpRequest, access: Access, period: Period, filters: Mapping[str, str]) -> dict[str, Any]:
    """The choice of a period, its sums and today's, and the chart of its days, or of its hours if it is one day."""
    tenant = access.tenant.pk
    days = selectors.grouped(tenant, period, GroupBy.DAY, filters)
    by = slots_of(period)
    slots = days if by is GroupBy.DAY else selectors.grouped(tenant, period, by, filters)
    today = periods.period_of({"period": "today"}, now=timezone.now(), zone=period.zone)
    return {
        **choice(request, period.name, KEPT),
        "period": period,
        "total": selectors.total(tenant, period, filters),
        "today": None if period.name == "today" else selectors.total(tenant, today, filters),
        "days": days,
        "chart": chart(slots, period),
        "charts": ("tokens", "requests", "first_token"),
        "zone": period.zone.key,
        "first_day": day_label(str(period.first)),
        "last_day": day_label(str(period.last)),
        "starts_at": period.hours[0].astimezone(period.zone).strftime("%H:%M") if period.ragged else "",
    }


def _row(request: HttpRequest, by: GroupBy, figures: Figures, most: int) -> dict[str, Any]:
    link = ""
    if by in NARROWS:
        link = _url(request, page=None, group="day", **{NARROWS[by]: figures.id or "none"})
    name = day_label(figures.id) if by is GroupBy.DAY else figures.name or _(NAMELESS.get(by, _n("Unnamed")))
    return {"name": name, "link": link, "figures": figures, "bar": f"{100 * figures.tokens / most if most else 0:.2f}"}
