"""What a client wants to hear of beside its answers, and how that survives a lost connection. Knows no connection."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from octavo_client.call import new_id
from octavo_client.errors import OctavoError, RequestRefused
from octavo_client.frames import (
    ConversationDeleted,
    ConversationUpdated,
    ErrorFrame,
    Frame,
    Subscribed,
    UsageUpdated,
)

Change = Subscribed | ConversationUpdated | ConversationDeleted | UsageUpdated
TOPIC_OF: dict[type[Frame], str] = {
    ConversationUpdated: "conversations",
    ConversationDeleted: "conversations",
    UsageUpdated: "usage",
}


class Subscription:
    """One reader of one topic."""

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.event_id = new_id()
        self.events: deque[Change] = deque()
        self.error: OctavoError | None = None
        self.ended = False
        self.changed: Callable[[], None] = lambda: None

    def end(self, error: OctavoError | None = None) -> None:
        self.ended = True
        self.error = error
        self.changed()

    def next_event(self) -> Change | None:
        return self.events.popleft() if self.events else None


class Topics:
    """All of them. `send` sends a frame, where there is a connection."""

    def __init__(self, send: Callable[[dict[str, Any]], object]) -> None:
        self._send = send
        self._readers: list[Subscription] = []

    def add(self, reader: Subscription) -> None:
        self._readers.append(reader)
        self._ask(reader)

    def remove(self, reader: Subscription) -> None:
        if reader in self._readers:
            self._readers.remove(reader)
            if all(other.topic != reader.topic for other in self._readers):
                self._send({"type": "unsubscribe", "topic": reader.topic})
        reader.end()

    def connected(self) -> None:
        """A new connection knows nothing of what the former one was asked."""
        for reader in self._readers:
            self._ask(reader)

    def close(self, error: OctavoError) -> None:
        for reader in self._readers:
            reader.end(error.copy())
        self._readers.clear()

    def heard(self, frame: Frame) -> bool:
        """Whether it was for us."""
        if isinstance(frame, ErrorFrame):
            for reader in list(self._readers):
                if frame.event_id == reader.event_id:
                    self._readers.remove(reader)
                    reader.end(RequestRefused(frame.message, code=frame.code, param=frame.param))
                    return True
            return False
        topic = frame.topic if isinstance(frame, Subscribed) else TOPIC_OF.get(type(frame))
        if topic is None:
            return False
        for reader in self._readers:
            if reader.topic == topic:
                if isinstance(frame, Subscribed) and frame.event_id not in (None, reader.event_id):
                    continue  # the answer to another reader of the same
                reader.events.append(frame)  # type: ignore[arg-type]
                reader.changed()
        return True

    def _ask(self, reader: Subscription) -> None:
        self._send({"type": "subscribe", "topic": reader.topic, "event_id": reader.event_id})
