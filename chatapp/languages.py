"""Which language a page is in: its reader's own, else what this browser chose or asks for.

A reader's choice stands with the account, so that other devices follow; a cookie keeps it for pages that are shown to
nobody in particular. What programs read (the APIs, the documentation, metrics) and the operators' administration are in
English: services say their refusals through gettext, and so in the language of whoever asked.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable
from functools import lru_cache
from typing import Any

from asgiref.sync import iscoroutinefunction, markcoroutinefunction
from django.conf import settings
from django.http import Http404, HttpRequest, HttpResponse
from django.urls import reverse
from django.utils import translation
from django.utils.cache import patch_vary_headers
from django.utils.formats import number_format
from django.utils.translation.trans_real import DjangoTranslation
from django.views.decorators.http import require_safe
from django.views.defaults import page_not_found
from django.views.i18n import JavaScriptCatalog

Handler = Callable[[HttpRequest], HttpResponse] | Callable[[HttpRequest], Awaitable[HttpResponse]]

SOURCE = "en"
NAMES = dict(settings.LANGUAGES)
# Read by programs, or by the operators; the words for scripts say in their address which language they are in.
ENGLISH = (
    "/admin/", "/api/", "/v1/", "/ws/", "/docs/", "/client/", "/static/", "/words/", "/metrics", "/healthz", "/readyz",
)  # fmt: skip
COOKIE_AGE_S = 365 * 24 * 3600


def known(code: str) -> str:
    """A code of settings.LANGUAGES, or ""."""
    return code if code in NAMES else ""


def of_browser(request: HttpRequest) -> str:
    """What was chosen in this browser, else the best of what it asks for."""
    return translation.get_language_from_request(request)


def of_reader(request: HttpRequest) -> str:
    """The choice of who is logged in, else the browser's. Reads the session's user: for sync code."""
    user = getattr(request, "user", None)
    own = known(user.language) if user is not None and user.is_authenticated else ""
    return own or of_browser(request)


def remember(response: HttpResponse, code: str) -> None:
    """Keep a choice in this browser; "": forget it."""
    if not code:
        response.delete_cookie(settings.LANGUAGE_COOKIE_NAME, samesite="Lax")
        return
    response.set_cookie(
        settings.LANGUAGE_COOKIE_NAME,
        code,
        max_age=COOKIE_AGE_S,
        httponly=True,
        secure=settings.LANGUAGE_COOKIE_SECURE,
        samesite="Lax",
    )


class LanguageMiddleware:
    """In the place of Django's LocaleMiddleware, after the one that knows the user; leaves nothing behind.

    Until a view is found the language is the browser's. Who asks is looked up only for pages, and beside the view,
    since the session is read from the database.
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
        with translation.override(first_guess(request)):
            return said(request, self.get_response(request))  # type: ignore[arg-type]

    async def _async(self, request: HttpRequest) -> HttpResponse:
        with translation.override(first_guess(request)):
            return said(request, await self.get_response(request))  # type: ignore[misc]

    def process_view(self, request: HttpRequest, view: Any, args: Any, kwargs: Any) -> None:
        if not is_english(request):
            translation.activate(of_reader(request))


def is_english(request: HttpRequest) -> bool:
    return request.path.startswith(ENGLISH)


def first_guess(request: HttpRequest) -> str:
    if request.path.startswith("/api/"):
        # Our own pages say whom they show a refusal to.
        return known(request.headers.get("X-Reader-Language", "")) or SOURCE
    return SOURCE if is_english(request) else of_browser(request)


def said(request: HttpRequest, response: HttpResponse) -> HttpResponse:
    if not is_english(request):
        patch_vary_headers(response, ("Accept-Language",))
        response.headers.setdefault("Content-Language", translation.get_language() or SOURCE)
    return response


# --- error pages ----------------------------------------------------------------------------------------------------


def not_found(request: HttpRequest, exception: Exception) -> HttpResponse:
    """Django's handler404. No view was found where an address does not exist, and so nobody asked who reads."""
    if is_english(request):
        return page_not_found(request, exception)
    with translation.override(of_reader(request)):
        return page_not_found(request, exception)


# --- words for scripts ----------------------------------------------------------------------------------------------


class _Words(JavaScriptCatalog):
    """Our own catalogue of scripts: not those of Django's admin, which no page of ours shows."""

    def __init__(self, language: str) -> None:
        super().__init__()
        folders = [str(path) for path in settings.LOCALE_PATHS]
        self.translation = DjangoTranslation(language, domain="djangojs", localedirs=folders)


@lru_cache(maxsize=len(NAMES))
def _script(language: str) -> tuple[str, str]:
    """The script that defines gettext and its like, and a hash of it."""
    with translation.override(language):
        view = _Words(language)
        text = view.render_to_response(view.get_context_data()).content.decode()
    return text, hashlib.sha256(text.encode()).hexdigest()[:16]


def words_url(language: str) -> str:
    return reverse("words", args=[language, _script(language)[1]])


@require_safe
def words(request: HttpRequest, language: str, digest: str) -> HttpResponse:
    """At an address that names its content, so that browsers keep it for ever; of another version, for nobody."""
    if not known(language):
        raise Http404
    text, current = _script(language)
    response = HttpResponse(text, content_type="text/javascript; charset=utf-8")
    # During an update two versions serve: the page of one must not keep the words of the other.
    response["Cache-Control"] = "public, max-age=31536000, immutable" if digest == current else "no-store"
    return response


# --- parts of sentences -----------------------------------------------------------------------------------------------


def number(value: float) -> str:
    """With its digits in groups, as the language has them: 12,000 or 12.000."""
    return number_format(value, use_l10n=True, force_grouping=True)


def inside(text: str) -> str:
    """A name of ours in the middle of a sentence: small at its beginning, but in German, whose nouns are not."""
    return text if (translation.get_language() or SOURCE).startswith("de") else text[:1].lower() + text[1:]
