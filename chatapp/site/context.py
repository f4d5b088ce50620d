"""For templates: {{ site_name }}, asked for only by pages that have a title."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest
from django.utils.functional import SimpleLazyObject

from chatapp.site import selectors


def site(request: HttpRequest) -> dict[str, Any]:
    return {"site_name": SimpleLazyObject(selectors.name)}
