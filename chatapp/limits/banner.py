"""A line on each page of a team's administration once most of the month's tokens are used."""

from __future__ import annotations

from django.utils import timezone
from django.utils.formats import date_format
from django.utils.translation import gettext as _

from chatapp.languages import number
from chatapp.limits.selectors import month_of, next_month, warning
from chatapp.tenants.access import Access
from chatapp.tenants.pages import Banner
from chatapp.tenants.permissions import Permission


def banner(access: Access) -> Banner | None:
    if not access.may(Permission.READ_LIMITS):
        return None
    found = warning(access.tenant)
    if found is None:
        return None
    percent, used, limit = found
    again = next_month(month_of(timezone.now()))
    until = f"{date_format(again, 'MONTH_DAY_FORMAT')} (UTC)"
    if percent >= 100:
        return Banner(
            "bad",
            _("This month's %(limit)s tokens are used. Requests are refused until %(until)s.")
            % {"limit": number(limit), "until": until},
            VIEW,
        )
    text = _(
        "%(percent)s %% of this month's tokens are used: %(used)s of %(limit)s. They are counted anew on %(until)s."
    )
    figures = {"percent": percent, "used": number(used), "limit": number(limit), "until": until}
    return Banner("warn", text % figures, VIEW)


VIEW = "tenant-limits"
