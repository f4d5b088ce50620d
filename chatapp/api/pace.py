"""What daphne leaves to do for a websocket: waiting in both directions, and closing as the protocol has it.

daphne hands what is sent to the transport and returns, and queues what is received as fast as it comes: both would pile
up without bound. Here the transport says when it has enough (64 KiB, Twisted's own measure) and `send` waits until it
has drained; and no more is read from a socket while MOST_UNREAD messages wait for the application. Who sends, bounds
what waits: see chatapp.api.outbox.

Its close takes application codes only, so a server that goes away (1001), fails (1011) or is full (1013) could not say
so: these are written as the frames they are. What is sent while a close is under way goes nowhere, and is no fault.
On a server that is not daphne nothing changes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import suppress
from functools import partial
from typing import Any

from autobahn.exception import Disconnected
from twisted.internet.interfaces import IPushProducer
from zope.interface import implementer  # type: ignore[import-untyped]

from chatapp.api.direct import writer

Message = MutableMapping[str, Any]
Send = Callable[[Message], Awaitable[None]]
Receive = Callable[[], Awaitable[Message]]
MOST_UNREAD = 64
SERVER_CODES = frozenset({1001, 1011, 1013})

Application = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]


@implementer(IPushProducer)
class Pace:
    """What the transport knows as the producer of what it writes."""

    def __init__(self) -> None:
        self._may_go_on = asyncio.Event()
        self._may_go_on.set()

    def start(self, transport: Any) -> None:
        # The HTTP channel that the socket was upgraded from is still there, and would be told for ever.
        transport.unregisterProducer()
        transport.registerProducer(self, True)

    async def wait(self) -> None:
        if not self._may_go_on.is_set():
            await self._may_go_on.wait()

    # IPushProducer: names are Twisted's.

    def pauseProducing(self) -> None:  # noqa: N802
        self._may_go_on.clear()

    def resumeProducing(self) -> None:  # noqa: N802
        self._may_go_on.set()

    def stopProducing(self) -> None:  # noqa: N802
        """The connection is gone: what is sent now goes nowhere, and need not wait."""
        self._may_go_on.set()


def paced(application: Application) -> Application:
    async def wrapped(scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        protocol = _protocol_behind(send) if scope["type"] == "websocket" else None
        if protocol is None:
            await application(scope, receive, send)
            return
        pace = Pace()
        write: Callable[[str], bool] | None = None

        async def send_and_wait(message: Message) -> None:
            nonlocal write
            text = message.get("text") if message["type"] == "websocket.send" else None
            if write is not None and text and write(text):
                await pace.wait()
                return
            if message.get("code") in SERVER_CODES and protocol.state != protocol.STATE_CONNECTING:
                protocol.sendCloseFrame(code=message["code"])
                return
            with suppress(Disconnected):
                await send(message)
            if message["type"] == "websocket.accept":
                pace.start(protocol.transport)
                write = writer(protocol)
            elif message["type"] == "websocket.send":
                await pace.wait()

        unread = getattr(receive, "__self__", None)
        paused = False

        async def receive_and_pause() -> Message:
            nonlocal paused
            waiting = unread.qsize() if isinstance(unread, asyncio.Queue) else 0
            if (waiting > MOST_UNREAD) != paused:
                paused = not paused
                if paused:
                    protocol.transport.pauseProducing()
                else:
                    protocol.transport.resumeProducing()
            return await receive()

        await application(scope, receive_and_pause, send_and_wait)

    return wrapped


def _protocol_behind(send: Send) -> Any:
    """daphne's protocol of this socket; a test against the running server notices when it hides elsewhere."""
    protocol = send.args[0] if isinstance(send, partial) and send.args else None
    return protocol if hasattr(getattr(protocol, "transport", None), "registerProducer") else None
