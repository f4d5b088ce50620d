"""A file as an answer, in pieces: neither web process nor client waits for the whole, and no cache keeps it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

from django.core.handlers.asgi import ASGIRequest
from django.http import HttpRequest, StreamingHttpResponse

CHUNK = 1 << 18


def download(request: HttpRequest, path: Path, name: str, size: int) -> StreamingHttpResponse:
    """`name`: what the browser calls it. Raises OSError when the file is not there."""
    return download_open(request, path.open("rb"), name, size, "application/zip")


def download_open(request: HttpRequest, file: Any, name: str, size: int, kind: str) -> StreamingHttpResponse:
    """The same of a file that is open for reading; it is closed at the end. `name` is ASCII, of our making."""

    def pieces() -> Iterator[bytes]:
        with file:
            while piece := file.read(CHUNK):
                yield piece

    async def without_waiting() -> AsyncIterator[bytes]:
        # Under ASGI Django would read all of a plain iterator before it sends any of it.
        try:
            while piece := await asyncio.to_thread(file.read, CHUNK):
                yield piece
        finally:
            file.close()

    body = without_waiting() if isinstance(request, ASGIRequest) else pieces()
    response = StreamingHttpResponse(body, content_type=kind)
    response["Content-Length"] = str(size)
    response["Content-Disposition"] = f'attachment; filename="{name}"'
    response["Cache-Control"] = "no-store, private"
    return response
