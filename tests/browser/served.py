"""Pages in a real Chromium that come from this process: Django's test client answers what the browser asks for.

So every page of the product can be opened with exactly the rows that a test has written, also those that a running
product shows only on bad days, without one being started. Nothing leaves the process: scripts and styles are read from
static/, websockets are open and silent.
"""

from __future__ import annotations

import mimetypes
from collections.abc import Iterator
from contextvars import copy_context
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from django.contrib.staticfiles import finders
from django.test import Client
from playwright.sync_api import BrowserContext, Route

# One that browsers hold for safe, as they do https: else there is neither a clipboard nor a random id.
ORIGIN = "http://localhost"
PASSED_ON = ("accept", "content-type", "x-csrftoken", "x-part", "idempotency-key")


@pytest.fixture(autouse=True, scope="module")
def beside_playwright() -> Iterator[None]:
    """Playwright's loop lives in this thread, though nothing of Django's runs in it: it must not refuse to work."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "1")
        yield


@cache
def _static(path: str) -> bytes | None:
    found = finders.find(path)
    return Path(str(found)).read_bytes() if found else None


class Served:
    """Answers all requests of a browser context as `client`, who may be changed at any time. `bodies`: pages that are
    no address's, by the path that they are opened at."""

    def __init__(self, context: BrowserContext) -> None:
        self.client = Client(raise_request_exception=False)
        self.bodies: dict[str, str] = {}
        # Handlers have a context of their own, and with it a database of their own, which lacks what the test wrote.
        self.within = copy_context()
        context.route("**/*", self._answer)
        context.route_web_socket("**/*", lambda socket: None)

    def _answer(self, route: Route) -> None:
        asked = urlsplit(route.request.url)
        if asked.path in self.bodies:
            return route.fulfill(status=200, body=self.bodies[asked.path], content_type="text/html; charset=utf-8")
        if asked.path.startswith("/static/"):
            content = _static(asked.path.removeprefix("/static/"))
            kind = mimetypes.guess_type(asked.path)[0] or "application/octet-stream"
            if asked.path.endswith(".mjs"):
                kind = "text/javascript"
            return route.fulfill(status=200 if content else 404, body=content or b"", content_type=kind)
        reply = self.within.run(self._ask, route, f"{asked.path}?{asked.query}" if asked.query else asked.path)
        headers = {name: value for name, value in reply.headers.items() if name.lower() != "content-length"}
        return route.fulfill(status=reply.status_code, headers=headers, body=reply.getvalue())

    def _ask(self, route: Route, path: str) -> Any:
        request = route.request
        headers = {name: value for name, value in request.headers.items() if name in PASSED_ON}
        return self.client.generic(
            request.method,
            path,
            request.post_data_buffer or b"",
            content_type=headers.pop("content-type", "application/octet-stream"),
            headers={**headers, "host": "localhost"},
        )
