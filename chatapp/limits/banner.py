"""A line on each page of a team's administration once most of the month's tokens are used."""

from __future__ import annotations

from django.utils import timezone

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
    until = f"{again.day} {again:%B} (UTC)"
    if percent >= 100:
        return Banner("bad", f"This month's {limit:,} tokens are used. Requests are refused until {until}.", VIEW)
    text = f"{percent} % of this month's tokens are used: {used:,} of {limit:,}. They are counted anew on {until}."
    return Banner("warn", text, VIEW)


VIEW = "tenant-limits"
