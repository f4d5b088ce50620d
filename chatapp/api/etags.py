"""ETags of the product's API (RFC 9110, section 13): nothing is sent twice for nothing, and nobody's change is lost.

Every answer to a GET carries one, and If-None-Match is answered with 304. A PUT, PATCH or DELETE with If-Match changes
something only while a GET of the same address would still give that tag, else 412; two such changes of a team wait for
each other, so of two that have read the same only one gets through. What says that it is worth it (`compressible`) goes
out compressed, under the tag of what it says: no cache between here and its reader keeps it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import wraps
from typing import Any

from django.db import transaction
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.urls import resolve
from django.utils.cache import get_conditional_response, patch_vary_headers
from django.utils.http import parse_etags
from django.views.decorators.gzip import gzip_page
from django.views.decorators.http import conditional_page

from chatapp.tenants.models import Tenant

Operation = Callable[..., HttpResponse]
CHANGES = ("PUT", "PATCH", "DELETE")
CHANGED = {
    "code": "changed",
    "message": "This has been changed since you have read it. Read it again.",
    "param": "If-Match",
}


def compressible(run: Operation) -> Operation:
    """For django-ninja's decorate_view: answers that are long, hold no secrets and repeat nothing that was asked with,
    so that their length tells an onlooker nothing."""

    @wraps(run)
    def wrapped(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        response = run(request, *args, **kwargs)
        response.compressible = True  # type: ignore[attr-defined]
        return response

    return wrapped


def _compressed(request: HttpRequest, response: HttpResponse) -> HttpResponse:
    tag = response.headers.get("ETag")
    response = gzip_page(lambda request: response)(request)
    if tag:
        response.headers["ETag"] = tag  # a weak one, as is made of it, could not be asked for with If-Match
    return response


def tagged(run: Operation) -> Operation:
    """For django-ninja's add_decorator, mode "view"."""

    @wraps(run)
    def wrapped(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        if request.method in CHANGES and "If-Match" in request.headers:
            return _unless_changed(run, request, *args, **kwargs)
        response: HttpResponse = conditional_page(run)(request, *args, **kwargs)
        if response.status_code not in (200, 304):
            del response.headers["ETag"]
        elif response.has_header("ETag"):
            patch_vary_headers(response, ["Authorization", "Cookie"])
            # A program keeps it, and asks again each time; a browser's disk keeps nobody's chats (chatapp.hygiene).
            access = getattr(request, "auth", None)
            if access is not None and access.key is not None:
                response.headers.setdefault("Cache-Control", "private, no-cache")
        if response.status_code == 200 and getattr(response, "compressible", False):
            response = _compressed(request, response)
        return response

    return wrapped


def _unless_changed(run: Operation, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
    with transaction.atomic():
        Tenant.objects.select_for_update().filter(slug=kwargs["slug"]).first()
        reading = copy.copy(request)
        reading.method = "GET"
        reading.META = {name: value for name, value in request.META.items() if not name.startswith("HTTP_IF_")}
        now = resolve(request.path_info).func(reading, *args, **kwargs)
        if now.status_code in (401, 403, 404):
            return now
        # A tag that is none must not turn into a change without conditions.
        unreadable = not parse_etags(request.headers["If-Match"])
        if unreadable or get_conditional_response(request, etag=now.headers.get("ETag")) is not None:
            return JsonResponse({"error": CHANGED}, status=412)
        return run(request, *args, **kwargs)
