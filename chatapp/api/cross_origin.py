"""Lets web pages of other origins call /v1 with a key that lists them (CORS, the Fetch standard, section 3.2).

A preflight carries no key, so any page may ask; the answer itself names the page's origin only where the key does.
Cookies never count at these addresses, so a page gains nothing by a visitor's session.
"""

from __future__ import annotations

from collections.abc import Sequence

from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.utils.cache import patch_vary_headers

ASKS_FOR = "Access-Control-Request-Method"
DEFAULT_HEADERS = "authorization, content-type"
EXPOSED = ", ".join(
    [
        "x-request-id", "retry-after", "x-should-retry", "openai-processing-ms", "openai-version",
        *(f"x-ratelimit-{what}-{of}" for what in ("limit", "remaining", "reset") for of in ("requests", "tokens")),
    ]
)  # fmt: skip
REMEMBER_S = 600


def is_preflight(request: HttpRequest) -> bool:
    return request.method == "OPTIONS" and ASKS_FOR in request.headers and "Origin" in request.headers


def preflight(request: HttpRequest, methods: Sequence[str]) -> HttpResponse:
    response = HttpResponse(status=204)
    response["Access-Control-Allow-Origin"] = request.headers["Origin"]
    response["Access-Control-Allow-Methods"] = ", ".join(methods)
    # Clients add headers of their own, which mean nothing here; names only, and no more than a header's length.
    response["Access-Control-Allow-Headers"] = (
        request.headers.get("Access-Control-Request-Headers", "")[:1000] or DEFAULT_HEADERS
    )
    response["Access-Control-Max-Age"] = str(REMEMBER_S)
    patch_vary_headers(response, ["Origin", ASKS_FOR, "Access-Control-Request-Headers"])
    return response


def allow(request: HttpRequest, response: HttpResponseBase) -> None:
    """The page at this origin may read the answer, where the request's key lists it."""
    origin = request.headers.get("Origin")
    access = getattr(request, "access", None)
    if origin is None or access is None or origin.lower() not in access.key.allowed_origins:
        return
    response["Access-Control-Allow-Origin"] = origin
    response["Access-Control-Expose-Headers"] = EXPOSED
    patch_vary_headers(response, ["Origin"])
