"""The topics that one socket hears of: what changes about its own person or key, and about nobody else.

What is told piles up nowhere: a frame about something replaces the one about the same that still waits to be sent.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from chatapp.api import frames
from chatapp.api.memory_topic import MemoryTopic
from chatapp.api.outbox import Outbox, Overflow
from chatapp.streaming.topics import channel, listener
from chatapp.tenants.access import Access
from chatapp.tenants.permissions import Permission


class Subscriptions:
    """`give_up` ends a socket that does not read what it has asked to be told."""

    def __init__(self, access: Access, outbox: Outbox, give_up: Callable[[], None]) -> None:
        self._access = access
        self._outbox = outbox
        self._give_up = give_up
        self._wanted: dict[str, str | None] = {}  # topic -> the event_id that `subscribed` still has to answer
        self._live = False
        self._end: Callable[[], None] | None = None
        self._memory: MemoryTopic | None = None

    def close(self) -> None:
        self._hear_no_changes()
        self._hear_no_memory()

    def _hear_no_changes(self) -> None:
        if self._end is not None:
            self._end()
            self._end = None

    def _hear_no_memory(self) -> None:
        if self._memory is not None:
            self._memory.close()
            self._memory = None

    async def subscribe(self, frame: frames.Subscribe) -> None:
        """Raises Forbidden where the asker has no chats, NotFound where the conversation is none of the asker's."""
        self._access.require(Permission.CHAT)
        if frame.topic == "memory":
            return await self._look(frame)
        self._wanted[frame.topic] = frame.event_id
        if self._end is None:
            name = channel(self._access.tenant.pk, self._access.principal)
            self._live = False
            self._end = listener().listen(name, self._hear)
        elif self._live:
            self._begin(frame.topic)

    async def unsubscribe(self, frame: frames.Unsubscribe) -> None:
        self._wanted.pop(frame.topic, None)
        if frame.topic == "memory":
            self._hear_no_memory()
        if not self._wanted:
            self._hear_no_changes()
        self._outbox.put(frames.Unsubscribed(topic=frame.topic, event_id=frame.event_id))

    async def _look(self, frame: frames.Subscribe) -> None:
        self._hear_no_memory()
        looking = self._memory = MemoryTopic(self._access, self._outbox, self._give_up, frame)
        look = await looking.allowed()
        if self._memory is looking:  # nothing newer was asked for meanwhile
            self._outbox.put(frames.Subscribed(topic=frame.topic, event_id=frame.event_id))
            looking.begin(look)

    def _begin(self, topic: str) -> None:
        event_id, self._wanted[topic] = self._wanted[topic], None
        if event_id is not None:
            self._outbox.put(frames.Subscribed(topic=topic, event_id=event_id))
        else:
            self._outbox.put_latest(f"topic {topic}", frames.Subscribed(topic=topic))

    def _hear(self, what: dict[str, Any] | None) -> None:
        try:
            if what is None:
                self._live = True
                for topic in list(self._wanted):
                    self._begin(topic)
            elif what["topic"] in self._wanted:
                self._tell(what)
        except Overflow:
            self._give_up()

    def _tell(self, what: dict[str, Any]) -> None:
        if what["topic"] == "usage":
            told = {name: value for name, value in what.items() if name != "topic"}
            self._outbox.put(msgspec.convert({"type": "usage.updated", **told}, frames.UsageUpdated))
        elif "deleted" in what:
            self._outbox.put_latest(what["deleted"], frames.ConversationDeleted(conversation_id=what["deleted"]))
        else:
            item = msgspec.convert(what["conversation"], frames.ConversationItem)
            self._outbox.put_latest(item.id, frames.ConversationUpdated(conversation=item))
