"""A small application that test_pace serves with daphne: it does what each text message says."""

from __future__ import annotations

import asyncio
from typing import Any

from chatapp.api.pace import paced


async def _chatter(send: Any) -> None:
    while True:
        await send({"type": "websocket.send", "text": "more"})
        await asyncio.sleep(0)


async def _application(scope: Any, receive: Any, send: Any) -> None:
    """`close <code>` closes; `chatter` sends without end, until the client has gone; `say <size> <size> …` sends texts
    of these sizes; `usual` says how many messages have gone through autobahn."""
    await receive()
    await send({"type": "websocket.accept"})
    chatter: asyncio.Task[None] | None = None
    while (message := await receive())["type"] == "websocket.receive":
        what, _, code = message["text"].partition(" ")
        if what == "close":
            await send({"type": "websocket.close", "code": int(code)})
        elif what == "say":
            for number, size in enumerate(code.split()):
                await send({"type": "websocket.send", "text": f"{number} ".ljust(int(size), "é")})
        elif what == "usual":
            sent = scope["daphne"].trafficStats.outgoingWebSocketMessages
            await send({"type": "websocket.send", "text": str(sent)})
        else:
            chatter = asyncio.create_task(_chatter(send))
    if chatter is not None:
        if chatter.done():
            chatter.result()
        chatter.cancel()


async def application(scope: Any, receive: Any, send: Any) -> None:
    scope["daphne"] = send.args[0]  # its protocol, as daphne hands it over
    await paced(_application)(scope, receive, send)
