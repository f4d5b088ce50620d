"""Counts websockets, and looks every second how far what they wait for lags behind.

`counted` wraps the ASGI application: it sees sockets open and end, and none of what is sent. Whoever has an outbox
registers it with `outboxes`; one look a second says how long the slowest of them has been stuck, so that a frame costs
nothing. The same beat comes late where the event loop does, which is what every token of this process waits for. It
also frees what sockets and answers leave behind that refers to itself.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Protocol
from weakref import WeakKeyDictionary, WeakSet

from chatapp.metrics import figures

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]

LOOK_EVERY_S = 1.0
# Sockets and requests that have ended leave objects behind that refer to each other. Python would look for those once
# a million are there (chatapp.asgi), a hundred megabytes later. A look takes up to a millisecond for each open socket,
# so with more of them there is one less often.
COLLECT_EVERY_S = 60.0
SOCKETS_BETWEEN = 100
BEHIND_S = 1.0
KNOWN_CODES = frozenset({1000, 1001, 1002, 1003, 1005, 1006, 1007, 1008, 1009, 1010, 1011, 1012, 1013})
OURS = range(4400, 4500)
SOCKETS = {"ws/ui": "ui", "ws/v1": "api", "ws/ops/occupancy": "operators"}
"""Addresses of one place each; a team's own are told apart by what stands behind its name."""


class Stuck(Protocol):
    def lag(self, now: float) -> float:
        """For how long it has not got rid of the frame that is next, in seconds of time.monotonic."""

    @property
    def chars(self) -> int:
        """What waits in it."""


outboxes: WeakSet[Any] = WeakSet()
_watching: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Task[None]] = WeakKeyDictionary()


def counted(application: Application) -> Application:
    for name in (*SOCKETS.values(), "memory"):  # else there would be none of it until the first one
        figures.sockets_open.labels(name)
        figures.sockets_opened.labels(name)

    async def wrapped(scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        loop = asyncio.get_running_loop()
        if loop not in _watching:
            _watching[loop] = loop.create_task(watch())
        if scope["type"] != "websocket":
            await application(scope, receive, send)
            return
        socket = name_of(scope.get("path", ""))
        code = 1006

        async def noted() -> Message:
            nonlocal code
            message = await receive()
            if message["type"] == "websocket.disconnect":
                code = message.get("code") or 1005
            return message

        figures.sockets_opened.labels(socket).inc()
        figures.sockets_open.labels(socket).inc()
        try:
            await application(scope, noted, send)
        finally:
            figures.sockets_open.labels(socket).dec()
            known = code in KNOWN_CODES or code in OURS
            figures.sockets_closed.labels(socket, code if known else "other").inc()

    return wrapped


def name_of(path: str) -> str:
    parts = path.strip("/").split("/")
    if parts[:2] == ["ws", "t"] and len(parts) == 4:
        return "memory" if parts[3] == "memory" else "other"
    return SOCKETS.get("/".join(parts), "other")


async def watch() -> None:
    """Look at the outboxes and at the loop for as long as it runs."""
    loop = asyncio.get_running_loop()
    collected = loop.time()
    while True:
        due = loop.time() + LOOK_EVERY_S
        await asyncio.sleep(LOOK_EVERY_S)
        figures.loop_lag.observe(max(0.0, loop.time() - due))
        look()
        if loop.time() - collected >= COLLECT_EVERY_S * max(1.0, len(outboxes) / SOCKETS_BETWEEN):
            gc.collect()
            collected = loop.time()


def look() -> None:
    now = time.monotonic()
    boxes = list(outboxes)
    lags = [box.lag(now) for box in boxes]
    figures.outbox_lag.set(max(lags, default=0.0))
    figures.sockets_behind.set(sum(lag >= BEHIND_S for lag in lags))
    figures.outbox_chars.set(sum(box.chars for box in boxes))
