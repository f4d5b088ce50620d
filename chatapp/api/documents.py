"""The OpenAPI document of /v1: made of the same structs that parse the requests and write the answers.

Each module of addresses lists its own as OPERATIONS (chatapp.api.operations); here they are put together with what
holds for all of them: how a caller is known, what an error looks like, how a stream is read, which headers come back.
It says nothing of any team, so whoever asks may read it.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from importlib import import_module
from typing import Any

import msgspec
from django.http import HttpRequest, HttpResponse
from django.views.decorators.csrf import csrf_exempt

from chatapp.api import openai_types as wire
from chatapp.api.http import error
from chatapp.api.operations import Operation

MODULES = (
    "chatapp.api.openai_chat",
    "chatapp.api.openai_completions",
    "chatapp.api.openai_responses",
    "chatapp.api.openai_models",
    "chatapp.api.openai_files",
    "chatapp.api.openai_batches",
    "chatapp.api.tickets",
)
VERSION = "1.0.0"
REF = "#/components/schemas/{name}"

ABOUT = """\
The HTTP API for programs, in the shapes of OpenAI's: its clients work unchanged, with this address as their base URL
and a key of your team.

**Keys.** `Authorization: Bearer octv_…`. Your team's prompt stands before every conversation; whether a key may send
system messages of its own, or bare prompts without your team's, its scopes say.

**Errors** have one shape, `{"error": {"message", "type", "param", "code"}}`; `param` names the field at fault as a
path, such as `messages[2].content`. Fields that nobody knows are ignored. A 429 or 503 that may be tried again says
when in `Retry-After`; one that must not be says `x-should-retry: false`.

**Streams.** With `stream: true` the answer is `text/event-stream`: each event is one line `data: {…}`, the last one
`data: [DONE]`. Lines that begin with a colon keep the connection alive. What goes wrong before the first event has its
own status; later, an event with an `error` is the last one. A caller that goes away stops its answer. Streams of
`/v1/responses` have named and numbered events instead, each with its number as `id`, and no `[DONE]`: what is kept
lives on without its caller, and is resumed behind any number by `starting_after` or `Last-Event-ID`.

**Idempotency.** With `Idempotency-Key` a repeated request gets the answer that the first one began, while it runs and
for an hour behind its end (afterwards 410); another body with the same key is a 422. Where the first one ended without
an answer, as one that is not kept does when its caller goes away, it begins anew.

**Headers.** `x-request-id` is on every answer, your own where you sent one: those who run this site find by it what
became of a request. A `traceparent` (W3C Trace Context) makes it a part of your trace, where they keep traces.
`x-ratelimit-limit-*`, `x-ratelimit-remaining-*` and `x-ratelimit-reset-*` say what is left of this minute's requests
and tokens.
"""

ERRORS = {
    "400": "A field is missing, of the wrong type, out of range, or not served; `param` names it.",
    "401": "No key, or one that is unknown, revoked or expired.",
    "403": "The key may not do this, or not from here.",
    "404": "There is no such thing for this key: a model, an id, an address.",
    "409": "Stopped by somebody, or in the way of something else.",
    "410": "A repeated request whose answer is not kept any more.",
    "413": "The body is too large.",
    "422": "This Idempotency-Key came with another body before.",
    "429": "A rate, the month's tokens, or the queue: the message says which.",
    "500": "Our fault.",
    "503": "The engine or the queue is not there; `Retry-After` says when to try again.",
    "504": "The answer took too long.",
}
OF_ALL = ("401", "403", "404", "429", "500", "503")
WITH_BODY = ("400", "413")
OF_ANSWERS = ("409", "410", "422", "504")
TITLES = {"chat": "Chat", "completions": "Completions", "models": "Models"}


def operations() -> list[Operation]:
    return [operation for name in MODULES for operation in import_module(name).OPERATIONS]


@cache
def document() -> dict[str, Any]:
    found = operations()
    kinds = [kind for one in found for kind in (one.body, one.answer, one.event) if kind not in (None, bytes)]
    schemas, named = msgspec.json.schema_components([*kinds, wire.ErrorAnswer], ref_template=REF)
    of = dict(zip([id(kind) for kind in kinds], schemas, strict=False))
    paths: dict[str, Any] = {}
    for operation in found:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _described(operation, of)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Octavo API", "version": VERSION, "description": ABOUT},
        "servers": [{"url": "/"}],
        "security": [{"key": []}],
        "tags": [{"name": _tag(path)} for path in dict.fromkeys(paths) if _is_first(path, paths)],
        "paths": paths,
        "components": {
            "securitySchemes": {
                "key": {"type": "http", "scheme": "bearer", "description": "A key of your team: octv_…"}
            },
            "schemas": named,
            "responses": {
                f"Error{status}": {
                    "description": said,
                    "headers": _headers(status),
                    "content": {"application/json": {"schema": schemas[-1]}},
                }
                for status, said in ERRORS.items()
            },
            "headers": {
                "RequestId": {"schema": {"type": "string"}, "description": "The request's id: yours, or a new one."},
                "RetryAfter": {"schema": {"type": "integer"}, "description": "Seconds to wait."},
                "Rate": {"schema": {"type": "string"}, "description": "Of this minute's requests and tokens."},
            },
        },
    }


def _tag(path: str) -> str:
    part = path.removeprefix("/v1/").partition("/")[0]
    return TITLES.get(part, part.replace("_", " ").capitalize())


def _is_first(path: str, paths: Iterable[str]) -> bool:
    return path == next(other for other in paths if _tag(other) == _tag(path))


def _headers(status: str) -> dict[str, Any]:
    found = {"x-request-id": {"$ref": "#/components/headers/RequestId"}}
    if status in ("429", "503"):
        found["Retry-After"] = {"$ref": "#/components/headers/RetryAfter"}
    return found


def _described(operation: Operation, of: dict[int, Any]) -> dict[str, Any]:
    """One operation. `of`: the schemas of the structs that it names, by identity."""
    described: dict[str, Any] = {
        "operationId": _name_of(operation),
        "summary": operation.summary,
        "tags": [_tag(operation.path)],
        "parameters": _parameters(operation),
        "responses": {str(operation.status): _answer(operation, of)},
    }
    takes_body = operation.body is not None or bool(operation.form)
    if takes_body:
        described["requestBody"] = {"required": True, "content": _body(operation, of)}
    statuses = [*OF_ALL, *(WITH_BODY if takes_body or operation.query else ())]
    if operation.event is not None:
        statuses += OF_ANSWERS
    for status in sorted(statuses):
        described["responses"][status] = {"$ref": f"#/components/responses/Error{status}"}
    return described


def _name_of(operation: Operation) -> str:
    """post_chat_completions, get_models_by_model."""
    parts = operation.path.removeprefix("/v1/").replace("{", "by/").replace("}", "").split("/")
    return "_".join([operation.method.lower(), *parts]).replace("-", "_")


def _parameters(operation: Operation) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for part in operation.path.split("/"):
        if part.startswith("{"):
            found.append({"name": part[1:-1], "in": "path", "required": True, "schema": {"type": "string"}})
    for name, kind in operation.query.items():
        found.append({"name": name, "in": "query", "schema": msgspec.json.schema(kind)})
    if operation.event is not None and operation.method.upper() == "POST":
        schema = {"type": "string", "minLength": 1, "maxLength": 200}
        found.append({"name": "Idempotency-Key", "in": "header", "schema": schema})
    return found


def _body(operation: Operation, of: dict[int, Any]) -> dict[str, Any]:
    if operation.body is not None:
        return {"application/json": {"schema": of[id(operation.body)]}}
    fields = {
        name: {"type": "string", "format": "binary"} if kind is bytes else msgspec.json.schema(kind)
        for name, kind in operation.form.items()
    }
    return {"multipart/form-data": {"schema": {"type": "object", "properties": fields}}}


def _answer(operation: Operation, of: dict[int, Any]) -> dict[str, Any]:
    content: dict[str, Any] = {}
    if operation.answer is bytes:
        content["application/octet-stream"] = {}
    elif operation.answer is not None:
        content["application/json"] = {"schema": of[id(operation.answer)]}
    if operation.event is not None:
        # OpenAPI 3.1 has no word for the items of a stream: the schema is that of one event's data.
        content["text/event-stream"] = {"schema": of[id(operation.event)]}
    headers = {
        "x-request-id": {"$ref": "#/components/headers/RequestId"},
        **{
            f"x-ratelimit-{what}-{of_what}": {"$ref": "#/components/headers/Rate"}
            for what in ("limit", "remaining", "reset")
            for of_what in ("requests", "tokens")
        },
    }
    described: dict[str, Any] = {"description": operation.summary, "headers": headers}
    if content:
        described["content"] = content
    return described


@csrf_exempt
async def openapi(request: HttpRequest) -> HttpResponse:
    """For everybody, and for pages of any origin: it is what a client is made from."""
    if request.method not in ("GET", "HEAD"):
        response = error(405, f"This address takes GET, not {request.method}.")
        response["Allow"] = "GET, HEAD"
    else:
        response = HttpResponse(wire.encode(document()), content_type="application/json")
        response["Access-Control-Allow-Origin"] = "*"
    response["x-request-id"] = request.request_id  # type: ignore[attr-defined]
    return response
