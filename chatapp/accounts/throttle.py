"""How long somebody who has tried too often has to wait, and the page that says so.

allauth counts the tries, in the cache that all web processes share, and only says that it is enough. The counts tell
when the oldest of them no longer counts: that is when the next try is let in.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable

from allauth.core.internal import ratelimit
from django.core.cache import cache
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils.translation import ngettext

APP = "allauth.account"
# What is counted at which page (the names of allauth's URLs).
ACTIONS: dict[str, tuple[tuple[str, str], ...]] = {
    "account_login": ((APP, "login"),),
    "account_signup": ((APP, "signup"),),
    "account_reset_password": ((APP, "reset_password"),),
    "account_reset_password_from_key": ((APP, "reset_password_from_key"),),
    "account_change_password": ((APP, "change_password"),),
    "account_set_password": ((APP, "change_password"),),
    "account_email": ((APP, "manage_email"),),
    "account_reauthenticate": ((APP, "reauthenticate"),),
    "mfa_reauthenticate": ((APP, "reauthenticate"),),
    "mfa_reauthenticate_webauthn": ((APP, "reauthenticate"),),
    "mfa_login_webauthn": (("allauth.mfa", "webauthn_login"),),
}


def wait_s(
    request: HttpRequest, action: str, *, keys: Iterable[str] = (), app: str = APP, config: dict[str, str] | None = None
) -> int:
    """Seconds until the action is let in again, 0 where it would be now. `keys`: what rates per key were counted by."""
    now = time.time()
    longest = 0.0
    for rate in ratelimit.get_rates(app=app, action=action, config=config):
        if rate.per == "user" and not request.user.is_authenticated:
            continue
        for key in tuple(keys) if rate.per == "key" else (None,):
            where = ratelimit.get_cache_key(request, app=app, action=action, rate=rate, key=key)
            # Newest first, as allauth keeps them.
            counted = [at for at in cache.get(where, []) if at > now - rate.duration]
            if len(counted) >= rate.amount:
                longest = max(longest, counted[rate.amount - 1] + rate.duration - now)
    return math.ceil(longest)


def in_words(seconds: int) -> str:
    if seconds <= 90:
        return ngettext("in a second", "in %(n)s seconds", seconds) % {"n": seconds}
    minutes = math.ceil(seconds / 60)
    return ngettext("in a minute", "in %(n)s minutes", minutes) % {"n": minutes}


def too_many(request: HttpRequest, exception: Exception | None = None, *, wait: int = 0) -> HttpResponse:
    """429, with Retry-After and the same in words. Django and allauth find it as handler429 of the URLs."""
    if not wait and request.resolver_match is not None:
        keys = [request.POST.get("email", "").lower()]
        counted = ACTIONS.get(request.resolver_match.url_name or "", ())
        wait = max((wait_s(request, action, keys=keys, app=app) for app, action in counted), default=0)
    wait = wait or 60
    response = render(request, "429.html", {"when": in_words(wait)}, status=429)
    response["Retry-After"] = str(wait)
    return response
