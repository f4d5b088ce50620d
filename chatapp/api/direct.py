"""A text frame straight to daphne's socket.

daphne and autobahn take a message through a dozen calls, and Twisted then asks the kernel twice whether it may write
before it does: that was half of what a token costs. Here the frame is built (RFC 6455, section 5.2: a server's frames
are not masked) and written at once; what the kernel does not take, and all that comes behind what already waits, goes
the usual way, so that order and back-pressure stay Twisted's.

Owns nothing. `writer` gives None for a socket that is not what it expects: then the usual way is the only one.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable
from typing import Any

FIN_TEXT = 0x81


def text_frame(payload: bytes) -> bytes:
    size = len(payload)
    if size < 126:
        return bytes((FIN_TEXT, size)) + payload
    if size < 1 << 16:
        return struct.pack("!BBH", FIN_TEXT, 126, size) + payload
    return struct.pack("!BBQ", FIN_TEXT, 127, size) + payload


def writer(protocol: Any) -> Callable[[str], bool] | None:
    """A function that sends a text, and says whether it did: where not, the message has to go the usual way."""
    transport = protocol.transport
    plain = isinstance(getattr(transport, "socket", None), socket.socket) and not getattr(transport, "TLS", True)
    if not plain or getattr(protocol, "_perMessageCompress", True) is not None:
        return None
    if not all(hasattr(transport, name) for name in ("writeSomeData", "dataBuffer", "_tempDataBuffer")):
        return None

    def write(text: str) -> bool:
        if protocol.state != protocol.STATE_OPEN or protocol.send_queue:
            return False
        data = text_frame(text.encode())
        if transport.dataBuffer or transport._tempDataBuffer or not transport.connected or transport.disconnecting:
            transport.write(data)
            return True
        sent = transport.writeSomeData(data)
        if not isinstance(sent, int) or sent < 0:
            sent = 0  # the connection is lost: Twisted finds out for itself when it comes to write this
        if sent < len(data):
            transport.write(data[sent:])
        return True

    return write
