"""A file that is made while it is sent: a response out of an iterator of parts, under ASGI and in tests."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

from asgiref.sync import sync_to_async
from django.core.handlers.asgi import ASGIRequest
from django.http import HttpRequest, StreamingHttpResponse

TYPES = {"csv": "text/csv; charset=utf-8", "json": "application/json"}


def download(request: HttpRequest, parts: Iterator[str], name: str) -> StreamingHttpResponse:
    """`name` is of our making: ASCII, and its ending says the type. Parts are made in the request's own thread."""
    content = _parts(parts) if isinstance(request, ASGIRequest) else parts
    response = StreamingHttpResponse(content, content_type=TYPES[name.rpartition(".")[2]])
    response["Content-Disposition"] = f'attachment; filename="{name}"'
    response["Cache-Control"] = "no-store"
    return response


async def _parts(parts: Iterator[str]) -> AsyncIterator[str]:
    step = sync_to_async(lambda: next(parts, None))
    while (part := await step()) is not None:
        if part:
            yield part
