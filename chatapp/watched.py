"""One HTTP request as the log and a trace have it: which address, how it ended, how long it took.

The address is the pattern of its route: what stands in a path may be a secret (invitations, shared chats) or a text.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from http import HTTPStatus
from types import TracebackType

import structlog
from django.http import HttpRequest, HttpResponse

from chatapp.audit.source import source
from engine import tracing

log = structlog.get_logger("chatapp.requests")

# Asked every few seconds by whoever watches over us, and answered with 503 until all has started.
UNSAID = frozenset({"healthz", "readyz", "metrics", "metrics/targets"})


class Watched:
    """While it is being answered. A streamed answer counts as answered when it begins, and its span ends with it."""

    def __init__(self, request: HttpRequest) -> None:
        self._request = request
        self._began = time.monotonic()
        self._within = ExitStack()
        self._span = None
        if tracing.on() and request.path.startswith(("/v1/", "/api/")):
            came = source()
            self._span = tracing.opened(
                str(request.method), kind="server", parent=came.traceparent, octavo__request_id=came.request_id
            )

    def __enter__(self) -> Watched:
        if self._span is not None:
            self._within.enter_context(self._span.within())
        return self

    def answered(self, response: HttpResponse) -> HttpResponse:
        """Looks at the answer, and hands it on as it is."""
        match = self._request.resolver_match
        route = f"/{match.route}" if match is not None else ""
        status, method = response.status_code, str(self._request.method)
        if route.strip("/") not in UNSAID:
            say = log.warning if status >= HTTPStatus.INTERNAL_SERVER_ERROR else log.info
            took = round(time.monotonic() - self._began, 4)
            say("request.done", method=method, route=route, status=status, took_s=took)
        if self._span is not None:
            self._span.note(http__request__method=method, http__route=route, http__response__status_code=status)
            self._span.name(f"{method} {route}")
            if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
                self._span.fail(str(status))
            if response.streaming:
                # As Django closes a file that it sends.
                response._resource_closers.append(self._span.end)  # type: ignore[attr-defined]
                self._span = None
        return response

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._within.close()
        if self._span is not None:
            self._span.end()
