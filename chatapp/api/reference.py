"""The product's documentation for those who build on it: what there is, and the websocket API in full. Public.

The reference is rendered from the document that programs read (chatapp.api.asyncapi), so that neither can be wrong
alone.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import render
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.views.decorators.http import require_safe

from chatapp.api import asyncapi, frames, guides
from chatapp.api.desk import MOST_RESPONSES
from chatapp.api.frames import MAX_FRAME_BYTES
from chatapp.api.lanes import MOST_WAITING
from chatapp.api.tickets import TTL_S

REMEMBER = "public, max-age=300"
# What stands in our texts as names: in backquotes, with an underscore, or the type of a frame.
_NAMES = re.compile(r"`([^`]+)`|\b([a-z]+(?:\.[a-z_]+)*_[a-z_.]*[a-z]|(?:response|session|octavo)\.[a-z_.]*[a-z])\b")


@dataclass(frozen=True)
class Field:
    """One field of a frame, as a reader wants it told. `inner`: the fields of the object, or of those in the list."""

    name: str
    kind: str
    required: bool
    about: SafeString
    inner: tuple[Field, ...] = ()


@dataclass(frozen=True)
class Frame:
    name: str
    anchor: str
    about: SafeString
    fields: tuple[Field, ...]
    examples: tuple[tuple[str, str], ...]


@require_safe
def asyncapi_document(request: HttpRequest) -> JsonResponse:
    """Made for the address that it is asked at; any page may read it, as tools of other sites do."""
    response = JsonResponse(asyncapi.document(host=request.get_host(), secure=request.is_secure()))
    response["Access-Control-Allow-Origin"] = "*"
    response["Cross-Origin-Resource-Policy"] = "cross-origin"
    response["Cache-Control"] = REMEMBER
    return response


@require_safe
def index(request: HttpRequest) -> HttpResponse:
    return render(request, "docs/index.html", {**_base(request), "here": "index"})


@require_safe
def websocket(request: HttpRequest) -> HttpResponse:
    schemas = asyncapi.schemas()
    context = {
        "here": "websocket",
        "order": [(title, _anchor(title), marked(text)) for title, text in asyncapi.ORDER],
        "client": [_frame(struct, schemas) for struct in asyncapi.CLIENT_FRAMES],
        "server": [_frame(struct, schemas) for struct in asyncapi.SERVER_FRAMES],
        "closes": [
            (code, name, marked(text), again) for code, (name, text, again) in sorted(asyncapi.CLOSE_CODES.items())
        ],
        "errors": [(code, marked(text)) for code, text in asyncapi.ERROR_CODES.items()],
        "about": [marked(paragraph) for paragraph in asyncapi.ABOUT.split("\n\n")],
        "frame_kib": MAX_FRAME_BYTES // 1024,
        "responses": MOST_RESPONSES,
        "waiting": MOST_WAITING,
        "ticket_s": TTL_S,
        "id_characters": frames.MAX_EVENT_ID,
    }
    return render(request, "docs/websocket.html", {**_base(request), **context})


def _base(request: HttpRequest) -> dict[str, Any]:
    scheme = "https" if request.is_secure() else "http"
    host = request.get_host()
    addresses = {"http_url": f"{scheme}://{host}", "socket_url": f"{scheme.replace('http', 'ws')}://{host}/ws/v1"}
    return {**addresses, "guides": guides.links()}


def marked(text: str) -> SafeString:
    """Our own text as HTML, with its names set as code."""
    pieces: list[tuple[str, SafeString]] = []
    at = 0
    for found in _NAMES.finditer(text):
        pieces.append((text[at : found.start()], format_html("<code>{}</code>", found[1] or found[2])))
        at = found.end()
    pieces.append((text[at:], SafeString("")))
    return format_html_join("", "{}{}", pieces)


def _anchor(name: str) -> str:
    return "".join(character if character.isalnum() else "-" for character in name.lower())


def _frame(struct: Any, schemas: dict[str, Any]) -> Frame:
    name = asyncapi.tag(struct)
    shown = tuple(
        (title, json.dumps(payload, indent=2, ensure_ascii=False)) for title, payload in asyncapi.examples_of(name)
    )
    fields = _fields(schemas[struct.__name__], schemas)
    return Frame(name, _anchor(name), marked(asyncapi.summary(struct)), fields, shown)


def _fields(schema: dict[str, Any], schemas: dict[str, Any]) -> tuple[Field, ...]:
    required = set(schema.get("required", ()))
    return tuple(
        _field(name, value, name in required, schemas)
        for name, value in schema.get("properties", {}).items()
        if name != "type"
    )


def _field(name: str, schema: dict[str, Any], required: bool, schemas: dict[str, Any]) -> Field:
    about = schema.get("description", "")
    inner: tuple[Field, ...] = ()
    for part in _parts(schema):
        about = about or part.get("description", "")
        named = part.get("items", part).get("$ref", "").rpartition("/")[2]
        if named:
            about = about or schemas[named].get("description", "")
            inner = _fields(schemas[named], schemas)
    return Field(name, _kind(schema), required, marked(about), inner)


def _parts(schema: dict[str, Any]) -> list[dict[str, Any]]:
    """What a value may be, null apart: that is said by being optional."""
    kinds = schema.get("anyOf") or schema.get("allOf") or [schema]
    return [kind for kind in kinds if kind.get("type") != "null"]


def _kind(schema: dict[str, Any]) -> str:
    found = []
    for part in _parts(schema):
        if "enum" in part:
            found.append(" or ".join(json.dumps(value) for value in part["enum"]))
        elif "$ref" in part:
            found.append("object")
        elif part.get("type") == "array":
            found.append(f"list of {_kind(part.get('items', {}))}s")
        else:
            found.append(part.get("type", "any"))
    return " or ".join(dict.fromkeys(found)) + _bounds(schema)


def _bounds(schema: dict[str, Any]) -> str:
    for part in _parts(schema):
        if "maxLength" in part:
            return f", at most {part['maxLength']} characters"
        if "minimum" in part:
            return f", at least {part['minimum']}"
    return ""
