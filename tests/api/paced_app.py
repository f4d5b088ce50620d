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
    """`close <code>` closes; `chatter` sends without end, until the client has gone."""
    await receive()
    await send({"type": "websocket.accept"})
    chatter: asyncio.Task[None] | None = None
    while (message := await receive())["type"] == "websocket.receive":
        what, _, code = message["text"].partition(" ")
        if what == "close":
            await send({"type": "websocket.close", "code": int(code)})
        else:
            chatter = asyncio.create_task(_chatter(send))
    if chatter is not None:
        if chatter.done():
            chatter.result()
        chatter.cancel()


application = paced(_application)
