"""The browser client at an address that stays: /client/octavo.js, for pages of any origin.

Our own pages load the same file under its hashed name. This one is asked for anew every hour, and answered with 304
until the product is updated. It holds nothing of anybody's, so any page may read it; what a page may do with it, its
ticket says.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from pathlib import Path

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.views.decorators.http import condition, require_safe

FILE: Path = settings.ROOT / "static" / "js" / "octavo.js"
REMEMBER_S = 3600


@lru_cache(maxsize=1)
def _read(changed: int) -> tuple[bytes, str]:
    text = FILE.read_bytes()
    return text, f'"{hashlib.sha256(text).hexdigest()[:32]}"'


def _content() -> tuple[bytes, str]:
    return _read(FILE.stat().st_mtime_ns)


def _etag(request: HttpRequest) -> str:
    return _content()[1]


@condition(etag_func=_etag)
def _answer(request: HttpRequest) -> HttpResponse:
    return HttpResponse(_content()[0], content_type="text/javascript; charset=utf-8")


@require_safe
def module(request: HttpRequest) -> HttpResponse:
    response = _answer(request)
    response["Access-Control-Allow-Origin"] = "*"
    response["Cross-Origin-Resource-Policy"] = "cross-origin"
    response["Cache-Control"] = f"public, max-age={REMEMBER_S}"
    return response
