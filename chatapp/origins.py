"""Which pages may open the sockets that a browser's session opens: our own, by scheme, host and port.

A browser sends a session's cookie from any page of the same site, and sites have many ports and subdomains: so what
counts is the Origin. A refusal is said in a frame and with a close code, as all others are.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any
from urllib.parse import urlsplit

from django.conf import settings
from django.http.request import split_domain_port, validate_host

CLOSE_FORBIDDEN = 4403
PORTS = {"http": 80, "https": 443, "ws": 80, "wss": 443}

Application = Callable[..., Awaitable[None]]


def _values(scope: MutableMapping[str, Any], name: bytes) -> list[str]:
    return [value.decode("latin-1") for found, value in scope.get("headers", ()) if found == name]


def allowed(scope: MutableMapping[str, Any]) -> bool:
    """Whether the page that opens this socket is one of ours. Without an Origin it is none: browsers always send it."""
    origins, hosts = _values(scope, b"origin"), _values(scope, b"host")
    if len(origins) != 1 or len(hosts) != 1:
        return False
    origin, host = origins[0], hosts[0]
    if origin in getattr(settings, "CSRF_TRUSTED_ORIGINS", ()):
        return True
    try:
        page = urlsplit(origin)
        port = page.port or PORTS[page.scheme]
        named = urlsplit(f"//{host}").port
    except (ValueError, KeyError):
        return False
    if (
        page.scheme not in ("http", "https")
        or not page.hostname
        or not validate_host(split_domain_port(host)[0], settings.ALLOWED_HOSTS)
    ):
        return False
    same_port = port == named if named is not None else port in (80, 443)
    return same_port and page.hostname == urlsplit(f"//{host}").hostname


def from_our_pages(application: Application) -> Application:
    async def wrapped(scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
        if allowed(scope):
            await application(scope, receive, send)
            return
        await receive()
        await send({"type": "websocket.accept"})
        frame = {
            "type": "error",
            "code": "wrong_origin",
            "message": "This socket can only be opened by pages of this site.",
            "retryable": False,
        }
        await send({"type": "websocket.send", "text": json.dumps(frame)})
        await send({"type": "websocket.close", "code": CLOSE_FORBIDDEN})
        while (await receive())["type"] != "websocket.disconnect":
            """Whoever counts sockets (chatapp.metrics.sockets) sees by it how this one ended."""

    return wrapped
