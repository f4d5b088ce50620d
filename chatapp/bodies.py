"""Bodies of requests between daphne and Django: none is larger than its address takes, and none lies in memory whole.

daphne hands a request on once all of its body is there, and keeps it on disk until then, however much it is. So what
chatapp.hygiene answers with a 413 has been stored first: fine for a file that is somewhat too large, but anybody could
fill the disk. Beyond MOST_TIMES what is taken, the connection is cut instead; where files are taken, somewhat beyond
the largest one.

A body that came in chunks has a length by then, and the application is told it.

Then Twisted takes forms apart in memory, for nobody here, which it is kept from; and daphne puts all of a body into a
queue at once. A large one is kept out of it: the application is lent the file, and `lent` reads from it what the
application asks for.
On a server that is not daphne nothing changes.
"""

from __future__ import annotations

import asyncio
import io
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from daphne.http_protocol import WebRequest
from daphne.server import Server

from chatapp.api.pace import Pace
from chatapp.uploads import most_of, takes_files

MOST_TIMES = 4
ANSWER = b"HTTP/1.1 413 Request Entity Too Large\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
# Of larger ones the application is lent the file.
QUEUED = 1024 * 1024
CHUNK = 256 * 1024
LENT, REQUEST = "octavo.body", "octavo.request"

Message = MutableMapping[str, Any]
Header = tuple[bytes, bytes]
Application = Callable[..., Awaitable[None]]


def most_stored(path: str, most: int) -> int:
    """`most`: what the other addresses take."""
    return most_of(path) + MOST_TIMES * most if takes_files(path) else MOST_TIMES * most


def measured(headers: list[Header], size: int) -> list[Header]:
    """With the length of a body that came without saying it: Django finds no form in one of no length."""
    if not size or any(name == b"content-length" for name, _ in headers):
        return headers
    return [*(header for header in headers if header[0] != b"transfer-encoding"), (b"content-length", b"%d" % size)]


def bound(most: int) -> None:
    """Let no request of this process store more than MOST_TIMES `most` bytes, or a file where files are taken."""
    store, create = WebRequest.handleContentChunk, Server.create_application

    def handle(self: Any, data: bytes) -> None:
        if not hasattr(self, "most_stored"):
            # The request itself learns its address when all of it is there.
            path = getattr(self.channel, "_path", b"").partition(b"?")[0].decode("latin-1")
            self.most_stored = most_stored(path, most)
            # Twisted would take a form apart by itself, in memory; Django does it again.
            self._parsePOSTFormSubmission = False
        if self.content.tell() + len(data) <= self.most_stored:
            store(self, data)
        elif not getattr(self, "cut", False):
            self.cut = True
            self.channel.transport.write(ANSWER)
            self.channel.loseConnection()

    def create_application(self: Any, protocol: Any, scope: Message) -> Any:
        if scope["type"] == "http":
            size = protocol.content.seek(0, io.SEEK_END)
            protocol.content.seek(0)
            scope["headers"] = measured(scope["headers"], size)
            if size > QUEUED:
                scope[LENT], protocol.content = protocol.content, io.BytesIO()
            scope[REQUEST] = protocol
        return create(self, protocol, scope)

    WebRequest.handleContentChunk = handle
    Server.create_application = create_application


def lent(application: Application) -> Application:
    """An ASGI application that is given a large body a chunk at a time, as it asks for it, and whose downloads wait for
    whoever reads them."""

    async def wrapped(scope: Message, receive: Callable[[], Awaitable[Message]], send: Any) -> None:
        body, request = scope.pop(LENT, None), scope.pop(REQUEST, None)
        ended = body is None

        async def read() -> Message:
            nonlocal ended
            if ended:
                return await receive()
            chunk = await asyncio.to_thread(body.read, CHUNK)
            if not chunk:
                ended = True
                await receive()  # the empty body that stood in for this one
            return {"type": "http.request", "body": chunk, "more_body": not ended}

        try:
            await application(scope, read, send if request is None else _waiting(request, send))
        finally:
            if body is not None:
                body.close()

    return wrapped


def _waiting(request: Any, send: Any) -> Any:
    """daphne hands all that is sent to the transport at once: a file would lie in memory until its reader has it. Of a
    file to save, the next part waits until the transport has drained."""
    pace: Pace | None = None

    async def waiting(message: Message) -> None:
        nonlocal pace
        if message["type"] == "http.response.start":
            if any(name.lower() == b"content-disposition" for name, _ in message.get("headers", ())):
                pace = Pace()
        elif pace is not None and request.producer is pace and not message.get("more_body"):
            request.unregisterProducer()
        await send(message)
        if pace is not None and message.get("more_body"):
            if request.producer is None and not request._disconnected:
                request.registerProducer(pace, True)
            await pace.wait()

    return waiting
