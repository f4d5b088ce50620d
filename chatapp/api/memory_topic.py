"""The topic memory of one socket: the blocks of one conversation as they change, while somebody looks.

Owns the look: it is renewed as long as the socket wants it, and whether it is still allowed is looked at again now and
then. Promises at most one frame in EVERY_S, the newest; one that waits to be sent is replaced, so that tokens never
wait behind it. An engine that says nothing for SILENT_S counts for gone, which is told once.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import msgspec
import structlog

from chatapp.api import frames
from chatapp.api.answering import in_thread
from chatapp.api.outbox import Outbox, Overflow
from chatapp.chat import memory as chats
from chatapp.errors import Refusal
from chatapp.streaming import memory
from chatapp.streaming.connection import AWAY
from chatapp.streaming.topics import listener
from chatapp.tenants.access import Access
from engine.protocol import Memory

log = structlog.get_logger(__name__)

EVERY_S = 0.25
SILENT_S = memory.SILENT_S
FIRST_S = 3.0
ALLOWED_EVERY_S = 12.0


class MemoryTopic:
    """`give_up` ends a socket that does not read. Begin it once, then `close` it."""

    def __init__(self, access: Access, outbox: Outbox, give_up: Callable[[], None], frame: frames.Subscribe) -> None:
        self._access = access
        self._outbox = outbox
        self._give_up = give_up
        self._about = {"conversation_id": frame.conversation_id, "assistant_id": frame.assistant_id}
        self._said: dict[str, tuple[Memory, float]] = {}
        self._news = asyncio.Event()
        self._missed = True  # something may have been said while we did not listen
        self._told: tuple[Memory | None] | None = None
        self._task: asyncio.Task[None] | None = None

    async def allowed(self) -> memory.Look:
        """Raises Refusal."""
        return await in_thread(chats.look, self._access, **self._about)

    def begin(self, look: memory.Look) -> None:
        self._task = asyncio.create_task(self._run(look))

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _run(self, look: memory.Look) -> None:
        try:
            await self._look_on(look)
            self._put(frames.Unsubscribed(topic="memory"))
        except Overflow:
            self._give_up()

    async def _look_on(self, look: memory.Look) -> None:
        """Until it is allowed no more, or cannot go on: silence would look like a memory that does not change."""
        try:
            while True:
                await self._watch(look, until=time.monotonic() + ALLOWED_EVERY_S)
                look = await self.allowed()
        except Refusal:
            pass
        except Overflow:
            raise
        except Exception:
            log.exception("memory.failed")

    async def _watch(self, look: memory.Look, until: float) -> None:
        """Look for a while, and tell what is seen."""
        end = listener().listen(look.channel, self._hear)
        began = time.monotonic()
        renew_at = 0.0
        try:
            while (now := time.monotonic()) < until:
                try:
                    if now >= renew_at:
                        await memory.renew(look)
                        renew_at = now + memory.RENEW_S
                    if self._missed:
                        self._missed = False
                        for one in await memory.latest(look):
                            self._said[one.worker] = one, now - memory.age_s(one)
                except AWAY:
                    renew_at = now + 1
                if self._tell(waited=now - began):
                    await asyncio.sleep(EVERY_S)
                first = began + FIRST_S if self._told is None else until
                wait_s = max(0.0, min(renew_at, until, first) - time.monotonic())
                try:
                    async with asyncio.timeout(wait_s):
                        await self._news.wait()
                except TimeoutError:
                    pass
                self._news.clear()
        finally:
            end()

    def _hear(self, what: dict[str, Any] | None) -> None:
        if what is None:
            self._missed = True
        else:
            said = msgspec.convert(what, Memory)
            self._said[said.worker] = said, time.monotonic()
        self._news.set()

    def _tell(self, waited: float) -> bool:
        """Whether there was anything new to tell."""
        now = time.monotonic()
        self._said = {worker: (one, at) for worker, (one, at) in self._said.items() if now - at < SILENT_S}
        found = memory.best(one for one, _ in self._said.values())
        if found is None and self._told is None and waited < FIRST_S:
            return False
        if self._told is not None and _same(found, self._told[0]):
            return False
        self._told = (found,)
        self._put(frames.MemoryUpdated(conversation_id=self._about["conversation_id"], memory=found))
        return True

    def _put(self, frame: frames.ServerFrame) -> None:
        self._outbox.put_latest("topic memory", frame)


def _same(one: Memory | None, other: Memory | None) -> bool:
    if one is None or other is None:
        return one is other
    return msgspec.structs.replace(one, at_ms=other.at_ms) == other
