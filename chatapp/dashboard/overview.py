"""The first page of a team's administration: a few figures, and where they lead."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponseBase
from django.utils import timezone

from chatapp.chat.selectors import running
from chatapp.dashboard.charts import chart
from chatapp.tenants import nav
from chatapp.tenants.access import Access
from chatapp.tenants.pages import index, page, tenant_page
from chatapp.tenants.permissions import Permission
from chatapp.tenants.selectors import people_in
from chatapp.usage import periods, selectors
from chatapp.usage.selectors import GroupBy
from chatapp.zones import COOKIE, reader_zone


@tenant_page(None)
def overview(request: HttpRequest, access: Access) -> HttpResponseBase:
    """For roles without it the first page that they may open."""
    if not access.may(Permission.READ_DASHBOARD):
        return index(request, slug=access.tenant.slug)
    zone, now = reader_zone(request), timezone.now()
    month, today, recent = (
        periods.period_of({"period": name}, now=now, zone=zone) for name in ("month", "today", "30d")
    )
    days = selectors.grouped(access.tenant.pk, recent, GroupBy.DAY)
    context = {
        "people": people_in(access.tenant),
        "running": running(access),
        "today": selectors.total(access.tenant.pk, today),
        "month": selectors.total(access.tenant.pk, month),
        "chart": chart(days, recent),
        "charts": ("tokens",),
        "links": {link.view.replace("-", "_"): link.url for link in nav.links(access)},
        "zone": zone.key,
        "zone_given": False,
        "zone_cookie": request.COOKIES.get(COOKIE, ""),
    }
    return page(request, access, "tenant/overview.html", context)
