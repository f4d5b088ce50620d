"""Middleware of our own: what no library has for us."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractContextManager

from asgiref.sync import iscoroutinefunction, markcoroutinefunction
from csp.constants import NONCE, SELF, UNSAFE_EVAL, UNSAFE_INLINE
from django.http import HttpRequest, HttpResponse
from whitenoise.middleware import WhiteNoiseMiddleware

from chatapp import scope
from chatapp.audit.source import client_address, set_source
from chatapp.ids import request_id
from chatapp.watched import Watched
from engine import tracing

Handler = Callable[[HttpRequest], HttpResponse] | Callable[[HttpRequest], Awaitable[HttpResponse]]


class StaticFilesMiddleware(WhiteNoiseMiddleware):
    """WhiteNoise for async requests too: it knows sync ones only, and would keep a thread for every streamed answer."""

    sync_capable = True
    async_capable = True

    def __init__(self, get_response: Handler) -> None:
        super().__init__(get_response)
        self.is_async = iscoroutinefunction(get_response)
        if self.is_async:
            markcoroutinefunction(self)

    def __call__(self, request: HttpRequest) -> HttpResponse | Awaitable[HttpResponse]:
        return self._async(request) if self.is_async else super().__call__(request)

    async def _async(self, request: HttpRequest) -> HttpResponse:
        file = self.files.get(request.path_info)
        if file is None:
            return await self.get_response(request)
        response = self.serve(file, request)
        response.streaming_content = _in_a_thread(iter(response.streaming_content))
        return response


async def _in_a_thread(chunks: Iterator[bytes]) -> AsyncIterator[bytes]:
    while chunk := await asyncio.to_thread(next, chunks, b""):
        yield chunk


class ScopeMiddleware:
    """A request begins with nobody's rows in sight; views enter the scope of their Access. Notes where it came from;
    its end is logged.

    Operators work on all tenants in their administration, which shows no chats.
    """

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
        with self._scope(request), Watched(request) as watched:
            return watched.answered(self.get_response(request))  # type: ignore[arg-type]

    async def _async(self, request: HttpRequest) -> HttpResponse:
        with self._scope(request), Watched(request) as watched:
            return watched.answered(await self.get_response(request))  # type: ignore[misc]

    @staticmethod
    def _scope(request: HttpRequest) -> AbstractContextManager[None]:
        request.request_id = request_id(request.headers.get("x-request-id", ""))  # type: ignore[attr-defined]
        forwarded = request.headers.get("X-Forwarded-For", "")
        set_source(
            client_address(request.META.get("REMOTE_ADDR"), forwarded),
            request.request_id,  # type: ignore[attr-defined]
            request.headers.get("Origin"),
            tracing.traceparent(request.headers.get("traceparent", "")) if request.path.startswith("/v1/") else "",
        )
        return scope.unscoped("admin") if request.path.startswith("/admin/") else scope.no_scope()


class AdminPolicyMiddleware:
    """Relaxes the content policy in the operators' admin, and nowhere else.

    Its theme evaluates expressions and writes styles into its pages; scripts in them need a nonce here too.

    Works for sync and async requests alike, so that it never forces a streamed answer through a thread.
    """

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
        return self._relax(request, self.get_response(request))  # type: ignore[arg-type]

    async def _async(self, request: HttpRequest) -> HttpResponse:
        return self._relax(request, await self.get_response(request))  # type: ignore[misc]

    @staticmethod
    def _relax(request: HttpRequest, response: HttpResponse) -> HttpResponse:
        if request.path.startswith("/admin/"):
            response._csp_replace = {  # type: ignore[attr-defined]
                "script-src": [SELF, NONCE, UNSAFE_EVAL],
                "style-src": [SELF, UNSAFE_INLINE],
            }
        return response
