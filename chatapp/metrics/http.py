"""Counts HTTP requests by route: the address as it is declared, so that no id and no slug becomes a label."""

from __future__ import annotations

import re
import time
from collections.abc import Awaitable, Callable
from functools import cache

from asgiref.sync import iscoroutinefunction, markcoroutinefunction
from django.conf import settings
from django.http import HttpRequest, HttpResponse

from chatapp.metrics import figures

Handler = Callable[[HttpRequest], HttpResponse] | Callable[[HttpRequest], Awaitable[HttpResponse]]
CONVERTER = re.compile(r"<\w+:(\w+)>")
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


class MetricsMiddleware:
    """The outermost: what any other middleware answers is counted too. Sync and async."""

    sync_capable = True
    async_capable = True

    def __init__(self, get_response: Handler) -> None:
        self.get_response = get_response
        self.is_async = iscoroutinefunction(get_response)
        if self.is_async:
            markcoroutinefunction(self)

    def __call__(self, request: HttpRequest) -> HttpResponse | Awaitable[HttpResponse]:
        if self.is_async:
            return self._async(request)
        began = time.monotonic()
        return counted(request, self.get_response(request), began)  # type: ignore[arg-type]

    async def _async(self, request: HttpRequest) -> HttpResponse:
        began = time.monotonic()
        return counted(request, await self.get_response(request), began)  # type: ignore[misc]


def counted(request: HttpRequest, response: HttpResponse, began: float) -> HttpResponse:
    route = route_of(request)
    method = request.method if request.method in METHODS else "other"
    figures.http_requests.labels(method, route, response.status_code).inc()
    figures.http_seconds.labels(route).observe(time.monotonic() - began)
    return response


def route_of(request: HttpRequest) -> str:
    """`t/<slug>/…` of what has a view; `static/` of files, `none` of what is nowhere."""
    match = request.resolver_match
    if match is not None:
        return plain(match.route) or "/"
    return "static/" if request.path.startswith(settings.STATIC_URL) else "none"


@cache
def plain(route: str) -> str:
    """Without the converters' names: some of django-ninja's depend on what was imported before."""
    return CONVERTER.sub(r"<\1>", route)
