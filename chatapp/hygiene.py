"""What every HTTP answer has, and what no view ever sees: odd methods and bodies that are too large.

Promises: each answer forbids the browser what no page of ours needs, and to be used by other sites; what is made for
one reader is not kept by caches; below /api/ and /v1/ an error is JSON in the API's shape, whoever made it. The bodies
are counted where they arrive (`limited`), since a chunked one does not say its length.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, MutableMapping
from http import HTTPStatus
from typing import Any

from asgiref.sync import iscoroutinefunction, markcoroutinefunction, sync_to_async
from django.conf import settings
from django.core.exceptions import RequestDataTooBig
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

from chatapp.ids import request_id
from chatapp.uploads import most_of, takes_files

METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
API = ("/api/", "/v1/")
# No page of ours looks at the world; copying is the one thing that they do beside showing themselves.
PERMISSIONS = ", ".join(
    [
        *(
            f"{feature}=()"
            for feature in (
                "accelerometer", "autoplay", "browsing-topics", "camera", "display-capture",
                "encrypted-media", "geolocation", "gyroscope", "hid", "idle-detection", "local-fonts", "magnetometer",
                "microphone", "midi", "payment", "picture-in-picture", "screen-wake-lock", "serial", "usb",
                "xr-spatial-tracking",
            )
        ),
        *(f"{feature}=(self)" for feature in (
            "clipboard-write", "fullscreen", "publickey-credentials-create", "publickey-credentials-get",
        )),
    ]
)  # fmt: skip
CODES = {
    400: "invalid_request", 401: "unauthenticated", 403: "not_allowed", 404: "not_found", 405: "method_not_allowed",
    413: "too_large",
}  # fmt: skip

Handler = Callable[[HttpRequest], HttpResponse] | Callable[[HttpRequest], Awaitable[HttpResponse]]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


class HygieneMiddleware:
    """The outermost one but for the content policy, so that what other middleware answers is held to it too."""

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
        fault = trouble(request)
        response = self.get_response(request) if fault is None else refused(request, fault)
        return finished(request, response)  # type: ignore[arg-type]

    async def _async(self, request: HttpRequest) -> HttpResponse:
        fault = trouble(request)
        if fault is None:
            response = await self.get_response(request)  # type: ignore[misc]
        else:
            # A page, whose title asks the database for the site's name.
            response = await sync_to_async(refused)(request, fault)
        return finished(request, response)


def trouble(request: HttpRequest) -> HTTPStatus | None:
    """Why no view should see this request."""
    if request.method not in METHODS:
        return HTTPStatus.METHOD_NOT_ALLOWED
    length = request.META.get("CONTENT_LENGTH") or "0"
    if not (length.isascii() and length.isdigit()):
        return HTTPStatus.BAD_REQUEST
    # Compared as a text first: Python refuses to read a number of thousands of digits.
    if len(length.lstrip("0")) > 12 or int(length) > most_of(request.path):
        return HTTPStatus.REQUEST_ENTITY_TOO_LARGE
    return None


def refused(request: HttpRequest, fault: HTTPStatus) -> HttpResponse:
    if fault == HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
        return too_large(request)
    if fault == HTTPStatus.BAD_REQUEST:
        return problem(request, fault, "The Content-Length is no number.")
    response = problem(request, fault, "There is no such method here.")
    response["Allow"] = ", ".join(sorted(METHODS))
    return response


def finished(request: HttpRequest, response: HttpResponse) -> HttpResponse:
    if request.path.startswith(API) and response.status_code >= 400:
        response = shaped(request, response)
    # What our logs have it under. Static files are nobody's request, and nobody logs what was refused above.
    said = getattr(request, "request_id", None)
    if said is None and request.path.startswith(API):
        said = request_id(request.headers.get("x-request-id", ""))
    if said is not None:
        response.headers.setdefault("x-request-id", said)
    if request.method == "POST" and request.path.startswith("/accounts/") and response.status_code == HTTPStatus.OK:
        _say_refused(request, response)
    # It rules what a document may do. Scripts and styles obey their page's, and there are eighty of them.
    kind = response.headers.get("Content-Type", "")
    if not (request.path.startswith(settings.STATIC_URL) and kind.startswith(("text/javascript", "text/css"))):
        response.headers.setdefault("Permissions-Policy", PERMISSIONS)
    response.headers.setdefault("Cross-Origin-Opener-Policy", "same-origin")
    response.headers.setdefault("Cross-Origin-Resource-Policy", "same-origin")
    response.headers.setdefault("X-Content-Type-Options", "nosniff")
    response.headers.setdefault("Referrer-Policy", str(settings.SECURE_REFERRER_POLICY))
    response.headers.setdefault("X-Frame-Options", str(settings.X_FRAME_OPTIONS))
    # Static files come with their own; all else is of this moment and for this reader.
    response.headers.setdefault("Cache-Control", "private, no-store")
    return response


def _say_refused(request: HttpRequest, response: HttpResponse) -> None:
    """allauth shows a form again with 200. What is refused has a 4xx here, as everywhere."""
    if not response.headers.get("Content-Type", "").startswith("text/html"):
        return
    wait: int | None = getattr(request, "retry_after_s", None)
    response.status_code = HTTPStatus.BAD_REQUEST if wait is None else HTTPStatus.TOO_MANY_REQUESTS
    if wait is not None:
        response.headers["Retry-After"] = str(wait)


def shaped(request: HttpRequest, response: HttpResponse) -> HttpResponse:
    """The error of a library or of Django itself, as the API says errors; its status and headers stay."""
    if response.headers.get("Content-Type", "").startswith(("application/json", "text/event-stream")):
        return response
    status = HTTPStatus(response.status_code)
    made = problem(request, status, f"{status.phrase}.")
    for name, value in response.headers.items():
        if name.lower() not in ("content-type", "content-length"):
            made[name] = value
    made.cookies = response.cookies
    # Django logs what it answers by itself, once.
    made._has_been_logged = getattr(response, "_has_been_logged", False)  # type: ignore[attr-defined]
    return made


def problem(request: HttpRequest, status: int, message: str) -> HttpResponse:
    """An error in the form of the address: JSON for the APIs, a page for people."""
    code = CODES.get(status, "internal" if status >= 500 else "invalid_request")
    if request.path.startswith("/v1/"):
        kinds = {
            401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error",
        }  # fmt: skip
        kind = kinds.get(status, "invalid_request_error" if status < 500 else "server_error")
        error: dict[str, Any] = {"message": message, "type": kind, "param": None, "code": code}
    elif request.path.startswith("/api/"):
        error = {"code": code, "message": message, "param": None}
    else:
        context = {"status": int(status), "message": message}
        return render(request, "413.html" if status == 413 else "400.html", context, status=int(status))
    return HttpResponse(json.dumps({"error": error}), status=int(status), content_type="application/json")


def too_large(request: HttpRequest) -> HttpResponse:
    most = most_of(request.path)
    if request.path.startswith("/v1/") and not takes_files(request.path):
        most = settings.OCTAVO_MAX_BODY
    return problem(request, HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"The body may have {most:,} bytes at most.")


def bad_request(request: HttpRequest, exception: Exception) -> HttpResponse:
    """Django's handler400. A body that turned out too large while it was read is a 413 here as elsewhere."""
    if isinstance(exception, RequestDataTooBig):
        return too_large(request)
    return problem(request, HTTPStatus.BAD_REQUEST, "The server could not read what was sent.")


def limited(application: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
    """An ASGI application whose requests end with 413 as soon as more has come than their address takes.

    Only what does not say its length gets this far: the middleware answers the others.
    """

    async def wrapped(scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await application(scope, receive, send)
            return
        seen = 0
        over = answered = False
        most = max(most_of(scope.get("path", "")), settings.OCTAVO_MAX_BODY)
        sized = any(name == b"content-length" for name, _ in scope.get("headers", ()))

        async def counted() -> Message:
            nonlocal seen, over
            message = await receive()
            if message["type"] == "http.request" and not sized:
                seen += len(message.get("body", b""))
                if seen > most:
                    over = True
                    return {"type": "http.disconnect"}
            return message

        async def watched(message: Message) -> None:
            nonlocal answered
            answered = answered or message["type"] == "http.response.start"
            await send(message)

        await application(scope, counted, watched)
        if over and not answered:
            said = {"code": "too_large", "message": f"The body may have {most:,} bytes at most.", "param": None}
            if scope.get("path", "").startswith("/v1/"):
                said["type"] = "invalid_request_error"
            body = json.dumps({"error": said}).encode()
            headers = [
                (b"x-request-id", request_id("").encode()),
                (b"content-type", b"application/json"),
                (b"content-length", str(len(body)).encode()),
                (b"x-content-type-options", b"nosniff"),
                (b"cache-control", b"no-store"),
                (b"content-security-policy", b"default-src 'none'"),
            ]
            await send({"type": "http.response.start", "status": 413, "headers": headers})
            await send({"type": "http.response.body", "body": body})

    return wrapped
