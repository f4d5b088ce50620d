"""Where a request came from, for the audit log, for what is logged and for traces: kept in the context, so that
services need not hand it around. It goes along with what is asked of others: in the engine's Request, in Celery's
headers.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace

from django.conf import settings


@dataclass(frozen=True)
class Source:
    address: str | None = None
    request_id: str = ""
    # What a browser says its page is from; None where no Origin was sent. A key may be bound to some.
    origin: str | None = None
    # The span of whoever asked, by W3C Trace Context; of a caller's own it has passed engine.tracing.traceparent.
    traceparent: str = ""


NOWHERE = Source()
_source: ContextVar[Source] = ContextVar("source", default=NOWHERE)


def source() -> Source:
    return _source.get()


def set_source(address: str | None, request_id: str, origin: str | None = None, traceparent: str = "") -> None:
    _source.set(Source(address, request_id, origin, traceparent))


@contextmanager
def on_behalf_of(request_id: str, traceparent: str = "") -> Iterator[None]:
    """What is done meanwhile is done for that request, which may have ended long ago and in another process."""
    token = _source.set(replace(_source.get(), request_id=request_id, traceparent=traceparent))
    try:
        yield
    finally:
        _source.reset(token)


def client_address(peer: str | None, forwarded_for: str) -> str | None:
    """The client's own address: the one that our outermost trusted proxy saw, else the peer's.

    What stands further left in X-Forwarded-For the client may have written itself.
    """
    proxies: int = getattr(settings, "ALLAUTH_TRUSTED_PROXY_COUNT", 0)
    hops = [hop.strip() for hop in forwarded_for.split(",") if hop.strip()]
    found = hops[-proxies] if proxies and len(hops) >= proxies else peer
    try:
        return str(ipaddress.ip_address((found or "").strip("[]")))
    except ValueError:
        return None
