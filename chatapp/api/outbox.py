"""What one socket still has to send: a bounded queue in which the deltas of one response merge.

Deltas wait for room, so a slow socket holds back its followers, which go on from the log; control frames do not wait
but are counted, and a client that makes us answer faster than it reads overflows. The order of frames within one
response is kept; between responses it is not promised (a merged delta keeps the place of its first part).

The queue knows nothing of Channels: it is given `send`, and calls it from `run`, one call a frame.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable

from chatapp.api.frames import ServerFrame, TextDelta, render

# Text that waits before followers are held back, and control frames that wait before the socket is given up.
ROOM_CHARS = 256 * 1024
ROOM_FRAMES = 1024


class Overflow(Exception):
    """The client does not read what it asks for."""


class _Merged:
    """The deltas of one response that have not been sent: the range they cover, and the text of each choice."""

    __slots__ = ("first_seq", "response_id", "seq", "texts")

    def __init__(self, response_id: str, first_seq: int) -> None:
        self.response_id = response_id
        self.first_seq = first_seq
        self.seq = first_seq
        self.texts: dict[int, list[str]] = {}

    def chars(self) -> int:
        return sum(len(text) for texts in self.texts.values() for text in texts)

    def frames(self) -> Iterable[TextDelta]:
        for index, texts in (self.texts or {0: []}).items():
            yield TextDelta(
                response_id=self.response_id,
                index=index,
                first_seq=self.first_seq,
                seq=self.seq,
                delta="".join(texts),
            )


class _Close:
    __slots__ = ("code",)

    def __init__(self, code: int) -> None:
        self.code = code


class Outbox:
    def __init__(self, send: Callable[[str], Awaitable[None]], close: Callable[[int], Awaitable[None]]) -> None:
        self._send = send
        self._close = close
        self._items: deque[ServerFrame | _Merged | _Close] = deque()
        self._merging: dict[str, _Merged] = {}
        self._chars = 0
        self._wake = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()
        self._closing = False

    def put(self, frame: ServerFrame, *, response_id: str | None = None) -> None:
        """Queue a control frame; with `response_id`, later deltas of that response stay behind it."""
        if self._closing:
            return
        if response_id is not None:
            self._merging.pop(response_id, None)
        if len(self._items) >= ROOM_FRAMES:
            raise Overflow
        self._items.append(frame)
        self._wake.set()

    async def put_delta(self, response_id: str, first_seq: int, seq: int, texts: Iterable[tuple[int, str]]) -> None:
        """Queue text of the events `first_seq` to `seq`, as (choice index, text); waits while there is no room."""
        await self._room.wait()
        if self._closing:
            return
        merged = self._merging.get(response_id)
        if merged is None or first_seq != merged.seq + 1:
            merged = self._merging[response_id] = _Merged(response_id, first_seq)
            self._items.append(merged)
        merged.seq = seq
        for index, text in texts:
            merged.texts.setdefault(index, []).append(text)
            self._chars += len(text)
        if self._chars >= ROOM_CHARS:
            self._room.clear()
        self._wake.set()

    def forget(self, response_id: str) -> None:
        """Drop the text of a response that has not been sent: it will be told again from another place."""
        self._merging.pop(response_id, None)
        kept: deque[ServerFrame | _Merged | _Close] = deque()
        for item in self._items:
            if isinstance(item, _Merged) and item.response_id == response_id:
                self._chars -= item.chars()
            else:
                kept.append(item)
        self._items = kept
        if self._chars < ROOM_CHARS:
            self._room.set()

    def close(self, code: int) -> None:
        """End the socket after what is queued now; what comes later is dropped."""
        if not self._closing:
            self._items.append(_Close(code))
            self._closing = True
            self._room.set()
            self._wake.set()

    @property
    def closing(self) -> bool:
        return self._closing

    async def run(self) -> None:
        """Send until closed or cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._items:
                item = self._items.popleft()
                if isinstance(item, _Merged):
                    if self._merging.get(item.response_id) is item:
                        del self._merging[item.response_id]
                    for frame in item.frames():
                        self._chars -= len(frame.delta)
                        await self._send(render(frame))
                    if self._chars < ROOM_CHARS:
                        self._room.set()
                elif isinstance(item, _Close):
                    await self._close(item.code)
                    return
                else:
                    await self._send(render(item))
