"""The choice of a period, as the pages with figures have it: what an address asks for, and the tabs that ask otherwise.

Days are those of the reader's zone: a cookie names it (chatapp.zones), and `zone` in the address comes before it, so
that an address that is passed on shows the same days. Without both it is UTC.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from urllib.parse import urlencode
from zoneinfo import ZoneInfo

from django.http import HttpRequest
from django.utils import timezone
from django.utils.translation import gettext as _

from chatapp.errors import BadInput, Refusal
from chatapp.usage import periods
from chatapp.usage.periods import Period
from chatapp.zones import COOKIE, reader_zone

KEPT = ("period", "from", "to", "zone")


def zone_of(request: HttpRequest) -> ZoneInfo:
    return periods.zone_of(request.GET.get("zone")) or reader_zone(request)


def asked(request: HttpRequest) -> Period:
    """Raises BadInput with the field at fault."""
    if request.GET.get("zone") and periods.zone_of(request.GET["zone"]) is None:
        raise BadInput(_("This time zone is unknown; use one like Europe/Berlin."), param="zone")
    return periods.period_of(request.GET, now=timezone.now(), zone=zone_of(request))


def url(request: HttpRequest, kept: Sequence[str] = KEPT, **changes: str | None) -> str:
    """This page with other choices, and with those it was asked for; None takes one away."""
    given = {name: request.GET[name] for name in kept if request.GET.get(name)}
    wanted = {name: value for name, value in {**given, **changes}.items() if value}
    return f"?{urlencode(wanted)}"


def choice(request: HttpRequest, chosen: str, kept: Sequence[str] = KEPT) -> dict[str, Any]:
    """For parts/usage_period.html: tabs of periods, and what the reader's own browser said of its zone.

    `kept` are the names that lead to the same table of another period."""
    gone = {"from": None, "to": None, "page": None}
    beside = [name for name in kept if name not in ("period", "from", "to")]
    return {
        "tabs": [
            {"title": _(title), "url": url(request, kept, period=name, **gone), "here": name == chosen}
            for name, title in periods.NAMES.items()
            if name != "custom"
        ],
        "custom": chosen == "custom",
        "typed": {"first": request.GET.get("from", ""), "last": request.GET.get("to", "")},
        "kept_beside": [(name, value) for name in beside if (value := request.GET.get(name))],
        "zone_given": "zone" in request.GET,
        "zone_cookie": request.COOKIES.get(COOKIE, ""),
    }


def refused(
    request: HttpRequest, refusal: Refusal, context: dict[str, Any], kept: Sequence[str] = KEPT
) -> dict[str, Any]:
    """The page with what was typed and the reason, and no figures: none would be those that were asked for."""
    return {**context, **choice(request, "custom", kept), "refusal": refusal, "zone": zone_of(request).key}
