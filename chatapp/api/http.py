"""What the HTTP views of the OpenAI-compatible API share: who asks, and errors in OpenAI's shape."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from functools import wraps
from typing import Any

import structlog
from django.conf import settings
from django.core.exceptions import RequestDataTooBig
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.views.decorators.csrf import csrf_exempt

from chatapp import scope
from chatapp.api import openai_types as wire
from chatapp.api import rate_headers, turns
from chatapp.api.answering import in_thread
from chatapp.api.cross_origin import allow, is_preflight, preflight
from chatapp.api.keys import key_of_request
from chatapp.away import away
from chatapp.errors import Refusal, TooMany
from chatapp.limits.budget import RateLimited
from chatapp.tenants.access import Access, BadKey, access_for_key

log = structlog.get_logger(__name__)

# Of OpenAI's API, as its own servers say it: the only one there has been.
VERSION = "2020-10-01"

View = Callable[..., Awaitable[HttpResponseBase]]


def error_type(status: int, code: str | None = None) -> str:
    if code == "insufficient_quota":
        return code
    kinds = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}
    return kinds.get(status, "invalid_request_error" if status < 500 else "server_error")


def error_body(status: int, message: str, *, code: str | None = None, param: str | None = None) -> wire.ErrorAnswer:
    return wire.ErrorAnswer(
        error=wire.ErrorBody(message=message, type=error_type(status, code), param=param, code=code)
    )


def error(
    status: int, message: str, *, code: str | None = None, param: str | None = None, retry_after_s: int | None = None
) -> HttpResponse:
    response = answer(error_body(status, message, code=code, param=param), status)
    if retry_after_s is not None:
        response["Retry-After"] = str(retry_after_s)
    return response


def answer(body: Any, status: int = 200) -> HttpResponse:
    return HttpResponse(wire.encode(body), status=status, content_type="application/json")


class TooLarge(Exception):
    pass


def body_of(request: HttpRequest) -> bytes:
    """Raises TooLarge."""
    length = request.headers.get("Content-Length", "0")
    if length.isdigit() and int(length) > settings.OCTAVO_MAX_BODY:
        raise TooLarge
    try:
        body = request.body
    except RequestDataTooBig:
        raise TooLarge from None
    if len(body) > settings.OCTAVO_MAX_BODY:
        raise TooLarge
    return body


def json_of(request: HttpRequest) -> bytes:
    """The body of a request that says it is JSON, or says nothing. Raises TooLarge, RequestError."""
    kind = request.headers.get("Content-Type", "").partition(";")[0].strip().lower()
    if kind not in ("", "application/json"):
        raise wire.RequestError(
            f"The content type {kind[:100]!r} is not taken here; send JSON as application/json.",
            code="unsupported_content_type",
        )
    return body_of(request)


def with_key(*methods: str) -> Callable[[View], Any]:
    """A view of the API: only these methods, with the Access of the request's key as its second argument.

    Whatever the view raises becomes an answer in OpenAI's shape; every answer carries an x-request-id and how long it
    took up to its headers, and every one to a valid key how much is left of its rates.
    """

    def decorate(view: View) -> Any:
        @csrf_exempt
        @wraps(view)
        async def wrapped(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
            if is_preflight(request):
                return preflight(request, methods)
            began = time.perf_counter()
            response = await _answered(view, methods, request, *args, **kwargs)
            access: Access | None = getattr(request, "access", None)
            if access is not None:
                await rate_headers.tell(response, access, getattr(request, "standings", None))
            response["x-request-id"] = request.request_id  # type: ignore[attr-defined]
            response["openai-version"] = VERSION
            response["openai-processing-ms"] = str(round((time.perf_counter() - began) * 1000))
            response["Cache-Control"] = "no-store"
            allow(request, response)
            return response

        wrapped.methods = methods  # type: ignore[attr-defined]  # for the test that holds the document to them
        return wrapped

    return decorate


async def _answered(
    view: View, methods: tuple[str, ...], request: HttpRequest, *args: Any, **kwargs: Any
) -> HttpResponseBase:
    if request.method not in methods:
        response = error(405, f"This address takes {' or '.join(methods)}, not {request.method}.")
        response["Allow"] = ", ".join(methods)
        return response
    try:
        key = key_of_request(request)
        turns.asked_by(key)
        access = await in_thread(access_for_key, key)
        scope.enter(access.tenant)
        request.access = access  # type: ignore[attr-defined]
        return await view(request, access, *args, **kwargs)
    except BadKey as bad:
        response = error(bad.status, bad.message, code=bad.code)
        if bad.status == 401:
            response["WWW-Authenticate"] = "Bearer"
        return response
    except TooLarge:
        return error(413, f"The body may have {settings.OCTAVO_MAX_BODY:,} bytes at most.", code="too_large")
    except wire.RequestError as bad:
        return error(400, bad.message, code=bad.code, param=bad.param)
    except Refusal as bad:
        response = error(bad.status, bad.message, code=bad.code, param=bad.param, retry_after_s=bad.retry_after_s)
        if isinstance(bad, RateLimited) and bad.standings:
            request.standings = bad.standings  # type: ignore[attr-defined]
        if isinstance(bad, TooMany) and not bad.retryable:
            response["x-should-retry"] = "false"  # OpenAI's clients repeat every 429 otherwise
        return response
    except Exception as failure:
        if (gone := away(failure)) is not None:
            return error(gone.status, gone.message, code=gone.code, retry_after_s=gone.retry_after_s)
        log.exception("api.failed", path=request.path)
        return error(500, "Something went wrong on our side.", code="internal")
