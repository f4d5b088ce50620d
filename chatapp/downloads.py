"""Files to save: one that is made while it is sent, and one that is kept. A part at a time, under ASGI and in tests."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import AnyStr

from asgiref.sync import sync_to_async
from django.core.files import File
from django.core.handlers.asgi import ASGIRequest
from django.http import HttpRequest, StreamingHttpResponse
from django.utils.http import content_disposition_header

CHUNK = 256 * 1024
TYPES = {
    "csv": "text/csv; charset=utf-8",
    "json": "application/json",
    "md": "text/markdown; charset=utf-8",
    "zip": "application/zip",
}


def download(request: HttpRequest, parts: Iterator[AnyStr], name: str) -> StreamingHttpResponse:
    """`name` is a file's name and no path; its ending says the type. Parts are made in the request's own thread."""
    content = _parts(parts) if isinstance(request, ASGIRequest) else parts
    response = StreamingHttpResponse(content, content_type=TYPES[name.rpartition(".")[2]])
    response["Content-Disposition"] = str(content_disposition_header(as_attachment=True, filename=name))
    response["Cache-Control"] = "no-store"
    return response


def stored(request: HttpRequest, opened: File, *, size: int, name: str) -> StreamingHttpResponse:
    """The bytes of a file that somebody has put here: for saving under its name, and never shown as a page."""
    parts = _chunks(opened)
    content = _parts(parts) if isinstance(request, ASGIRequest) else parts
    response = StreamingHttpResponse(content, content_type="application/octet-stream")
    response["Content-Length"] = str(size)
    response["Content-Disposition"] = str(content_disposition_header(as_attachment=True, filename=name))
    response["X-Content-Type-Options"] = "nosniff"
    response["Cache-Control"] = "no-store"
    return response


def _chunks(opened: File) -> Iterator[bytes]:
    with opened:
        yield from opened.chunks(CHUNK)


async def _parts(parts: Iterator[AnyStr]) -> AsyncIterator[AnyStr]:
    step = sync_to_async(lambda: next(parts, None))
    while (part := await step()) is not None:
        if part:
            yield part
