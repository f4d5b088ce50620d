"""Ends connections that send far more than any address takes, while they send it.

daphne hands a request on once all of its body is there, and keeps it on disk until then, however much it is. So what
chatapp.hygiene answers with a 413 has been stored first: fine for a file that is somewhat too large, but anybody could
fill the disk. Beyond MOST_TIMES what is taken, the connection is cut instead.
On a server that is not daphne nothing changes.
"""

from __future__ import annotations

from typing import Any

from daphne.http_protocol import WebRequest

MOST_TIMES = 4
ANSWER = b"HTTP/1.1 413 Request Entity Too Large\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"


def bound(most: int) -> None:
    """Let no request of this process store more than MOST_TIMES `most` bytes."""
    store = WebRequest.handleContentChunk

    def handle(self: Any, data: bytes) -> None:
        if self.content.tell() + len(data) <= MOST_TIMES * most:
            store(self, data)
        elif not getattr(self, "cut", False):
            self.cut = True
            self.channel.transport.write(ANSWER)
            self.channel.loseConnection()

    WebRequest.handleContentChunk = handle
