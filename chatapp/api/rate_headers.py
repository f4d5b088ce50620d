"""How much is left, as OpenAI's headers say it, and as a frame of the websocket."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import structlog
from django.http.response import HttpResponseBase

from chatapp.api import frames
from chatapp.api.answering import in_thread
from chatapp.limits.rates import Standing
from chatapp.limits.selectors import standings
from chatapp.tenants.access import Access

log = structlog.get_logger(__name__)


async def tell(response: HttpResponseBase, access: Access, known: Iterable[Standing] | None) -> None:
    """Set x-ratelimit-{limit,remaining,reset}-{requests,tokens}; a rate without a limit has none of them."""
    if known is None:
        try:
            known = await in_thread(standings, access)
        except asyncio.CancelledError:
            raise
        except Exception as error:
            # An answer without these headers is better than none.
            log.warning("limits.not_told", error=type(error).__name__)
            return
    for standing in known:
        response[f"x-ratelimit-limit-{standing.what}"] = str(standing.limit)
        response[f"x-ratelimit-remaining-{standing.what}"] = str(standing.remaining)
        response[f"x-ratelimit-reset-{standing.what}"] = duration(standing.reset_s)


def duration(seconds: float) -> str:
    """As in OpenAI's headers: 120ms, 6s, 1m30s."""
    if seconds < 1:
        return f"{round(seconds * 1000)}ms"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}m{rest}s" if minutes else f"{rest}s"


def frame(known: Iterable[Standing]) -> frames.RateLimitsUpdated | None:
    """None where nothing is limited by the minute."""
    rates = [
        frames.RateLimit(name=s.what, limit=s.limit, remaining=s.remaining, reset_seconds=round(s.reset_s, 3))
        for s in known
    ]
    return frames.RateLimitsUpdated(rate_limits=rates) if rates else None
