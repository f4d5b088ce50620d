"""Usage as pages: the team's for those who may read it, and everybody's own. Figures come from roll-ups only.

Days are those of the reader's zone: a cookie names it (chatapp.zones), and `zone` in the address comes
before it, so that an address that is passed on shows the same days. Without both it is UTC.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date, datetime
from typing import Any
from urllib.parse import urlencode
from zoneinfo import ZoneInfo

from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.utils import timezone
from django.utils.formats import date_format
from django.utils.translation import gettext as _
from django.utils.translation import gettext_noop as _n

from chatapp.dashboard.charts import chart
from chatapp.downloads import download
from chatapp.errors import BadInput, Refusal
from chatapp.tenants.access import Access
from chatapp.tenants.pages import page, tenant_page
from chatapp.tenants.permissions import Permission
from chatapp.usage import export, periods, selectors
from chatapp.usage.periods import Period
from chatapp.usage.selectors import Figures, GroupBy
from chatapp.zones import COOKIE, reader_zone

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


def zone_of(request: HttpRequest) -> ZoneInfo:
    return periods.zone_of(request.GET.get("zone")) or reader_zone(request)


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
        return page(request, access, "tenant/own_usage.html", _refused(request, refusal, context), status=400)
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
        return page(request, access, "tenant/usage.html", _refused(request, bad, context), status=400)
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
    if request.GET.get("zone") and periods.zone_of(request.GET["zone"]) is None:
        raise BadInput(_("This time zone is unknown; use one like Europe/Berlin."), param="zone")
    period = periods.period_of(request.GET, now=timezone.now(), zone=zone_of(request))
    return period, selectors.filters_of(request.GET)


def _page_number(request: HttpRequest) -> int:
    text = request.GET.get("page") or "1"
    if not (text.isascii() and text.isdigit() and len(text) < 8 and int(text) > 0):
        raise BadInput(_("There is no such page."), param="page")
    return int(text)


def _figures(request: HttpRequest, access: Access, period: Period, filters: Mapping[str, str]) -> dict[str, Any]:
    """The choice of a period, its sums and today's, and the chart of its days, or of its hours if it is one day."""
    tenant = access.tenant.pk
    days = selectors.grouped(tenant, period, GroupBy.DAY, filters)
    one_day = len(period.days) == 1
    bars = selectors.grouped(tenant, period, GroupBy.HOUR, filters) if one_day else days
    today = periods.period_of({"period": "today"}, now=timezone.now(), zone=period.zone)
    return {
        **_choice(request, period.name),
        "period": period,
        "total": selectors.total(tenant, period, filters),
        "today": None if period.name == "today" else selectors.total(tenant, today, filters),
        "days": days,
        "chart": chart(bars, [hour_label(bar.id) if one_day else day_label(bar.id) for bar in bars]),
        "chart_of": "hour" if one_day else "day",
        "zone": period.zone.key,
        "first_day": day_label(str(period.first)),
        "last_day": day_label(str(period.last)),
        "starts_at": period.hours[0].astimezone(period.zone).strftime("%H:%M") if period.ragged else "",
    }


def _choice(request: HttpRequest, chosen: str) -> dict[str, Any]:
    """Tabs of periods, and what the reader's own browser said of its zone."""
    gone = {"from": None, "to": None, "page": None}
    return {
        "tabs": [
            {"title": _(title), "url": _url(request, period=name, **gone), "here": name == chosen}
            for name, title in periods.NAMES.items()
            if name != "custom"
        ],
        "custom": chosen == "custom",
        "typed": {"first": request.GET.get("from", ""), "last": request.GET.get("to", "")},
        "kept_beside": [(n, v) for n in (*NARROWING, "group", "zone") if (v := request.GET.get(n))],
        "zone_given": "zone" in request.GET,
        "zone_cookie": request.COOKIES.get(COOKIE, ""),
    }


def _refused(request: HttpRequest, refusal: Refusal, context: dict[str, Any]) -> dict[str, Any]:
    """The page with what was typed and the reason, and no figures: none would be those that were asked for."""
    return {**context, **_choice(request, "custom"), "refusal": refusal, "zone": zone_of(request).key}


def _row(request: HttpRequest, by: GroupBy, figures: Figures, most: int) -> dict[str, Any]:
    link = ""
    if by in NARROWS:
        link = _url(request, page=None, group="day", **{NARROWS[by]: figures.id or "none"})
    name = day_label(figures.id) if by is GroupBy.DAY else figures.name or _(NAMELESS.get(by, _n("Unnamed")))
    return {"name": name, "link": link, "figures": figures, "bar": f"{100 * figures.tokens / most if most else 0:.2f}"}


def _url(request: HttpRequest, **changes: str | None) -> str:
    """This page with other choices; None takes one away."""
    given = {name: request.GET[name] for name in (*KEPT, "page") if request.GET.get(name)}
    wanted = {name: value for name, value in {**given, **changes}.items() if value}
    return f"?{urlencode(wanted)}"


def day_label(text: str) -> str:
    day = date.fromisoformat(text)
    return f"{date_format(day, 'D')} {date_format(day, 'SHORT_DATE_FORMAT')}"


def hour_label(text: str) -> str:
    return f"{datetime.fromisoformat(text):%H:%M}"
