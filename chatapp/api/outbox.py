"""What one socket still has to send: a bounded queue in which the deltas of one response merge.

A delta for which there is no room is refused: its follower says `lagged`, waits for room, and goes on from the log, so
a client that does not read costs no more than what is here. Control frames do not wait but are counted, and a client
that makes us answer faster than it reads overflows. The order of frames within one response is kept; between responses
it is not promised (a merged delta keeps the place of its first part).

The queue knows nothing of Channels: it is given `send`, and calls it from `run`, one call a frame.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from chatapp.api.frames import ArgumentsDelta, Delta, FunctionCall, ItemAdded, ServerFrame, TextDelta, render
from engine.protocol import Part, TokenLogprob, ToolCallPart

# Text that waits before no more is taken, and control frames that wait before the socket is given up.
ROOM_CHARS = 256 * 1024
ROOM_FRAMES = 1024
# What is left of it before followers go on: they read the log anew, which should pay.
AGAIN_CHARS = ROOM_CHARS // 2
# One frame holds no more than this, with up to 6 bytes a character: many clients take 1 MiB and no more.
MERGED_CHARS = 64 * 1024
# What a token's log probability weighs, in characters, each of its alternatives included; and the head of a call.
LOGPROB_CHARS = 64


class Overflow(Exception):
    """The client does not read what it asks for."""


def _weight(part: Part) -> int:
    weight = len(part.text)
    for call in part.tool_calls:
        weight += len(call.arguments) + len(call.name) + LOGPROB_CHARS
    for entry in (*part.logprobs, *part.prompt_logprobs):
        weight += LOGPROB_CHARS * (1 + len(entry.top))
    return weight


@dataclass
class _Call:
    begins: ToolCallPart | None = None
    arguments: list[str] = field(default_factory=list)


@dataclass
class _Choice:
    """What a merged delta adds to one choice."""

    texts: list[str] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprob] = field(default_factory=list)
    calls: dict[int, _Call] = field(default_factory=dict)
    finish_reason: str | None = None

    def add(self, part: Part) -> None:
        if part.text:
            self.texts.append(part.text)
        self.logprobs += part.logprobs
        self.prompt_logprobs += part.prompt_logprobs
        for told in part.tool_calls:
            call = self.calls.setdefault(told.call, _Call())
            if told.id:
                call.begins = told
            if told.arguments:
                call.arguments.append(told.arguments)
        self.finish_reason = part.finish_reason or self.finish_reason


class _Merged:
    """The deltas of one response that have not been sent: the range they cover, and what they add to each choice."""

    __slots__ = ("choices", "first_seq", "response_id", "seq", "stream_id", "weight")

    def __init__(self, response_id: str, first_seq: int, stream_id: str | None) -> None:
        self.response_id = response_id
        self.stream_id = stream_id
        self.first_seq = first_seq
        self.seq = first_seq
        self.weight = 0
        self.choices: dict[int, _Choice] = {}

    def add(self, seq: int, parts: Sequence[Part], weight: int) -> None:
        self.seq = seq
        self.weight += weight
        for part in parts:
            choice = self.choices.get(part.index)
            if choice is None:
                choice = self.choices[part.index] = _Choice()
            choice.add(part)

    def frames(self) -> list[Delta]:
        """All of them cover the same events; the last one says so, as it is without `more`."""
        found: list[Delta] = []
        for index, choice in self.choices.items():
            found += self._of(index, choice)
        if not found:
            found.append(self._text(0, _Choice(), None))
        for place in range(len(found) - 1):
            found[place] = msgspec.structs.replace(found[place], more=True)
        return found

    def _of(self, index: int, choice: _Choice) -> list[Delta]:
        """A choice's text stands before its calls, and its end behind them."""
        found: list[Delta] = []
        ends = choice.finish_reason
        at_once = None if choice.calls else ends
        if choice.texts or choice.logprobs or choice.prompt_logprobs or at_once:
            found.append(self._text(index, choice, at_once))
        about = self._about(index)
        for number, call in sorted(choice.calls.items()):
            if call.begins is not None:
                item = FunctionCall(call_id=call.begins.id, name=call.begins.name)
                found.append(ItemAdded(**about, call=number, item=item))
            if call.arguments:
                found.append(ArgumentsDelta(**about, call=number, delta="".join(call.arguments)))
        if choice.calls and ends:
            found.append(self._text(index, _Choice(), ends))
        return found

    def _text(self, index: int, choice: _Choice, finish_reason: str | None) -> TextDelta:
        return TextDelta(
            response_id=self.response_id,
            index=index,
            first_seq=self.first_seq,
            seq=self.seq,
            stream_id=self.stream_id,
            delta="".join(choice.texts),
            finish_reason=finish_reason,
            logprobs=choice.logprobs or None,
            prompt_logprobs=choice.prompt_logprobs or None,
        )

    def _about(self, index: int) -> dict[str, Any]:
        return {
            "response_id": self.response_id,
            "index": index,
            "first_seq": self.first_seq,
            "seq": self.seq,
            "stream_id": self.stream_id,
        }


class _Latest(ServerFrame, frozen=True, kw_only=True):
    """Stands in the queue for the newest frame about `key`."""

    key: str


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
        self._latest: dict[str, ServerFrame] = {}
        self._chars = 0
        self._since = 0.0  # when the frame that is next became the next
        self._wake = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()
        self._closing = False

    def put(self, frame: ServerFrame, *, response_id: str | None = None) -> None:
        """Queue a control frame; with `response_id`, later deltas of that response stay behind it. Raises Overflow."""
        if self._closing:
            return
        if response_id is not None:
            self._merging.pop(response_id, None)
        if len(self._items) >= ROOM_FRAMES:
            raise Overflow
        self._items.append(frame)
        self._wake.set()

    def put_latest(self, key: str, frame: ServerFrame) -> None:
        """Queue a frame that tells how `key` is now: one that still waits is replaced by it. Raises Overflow."""
        if self._closing:
            return
        known = self._latest.get(key)
        if known is None:
            self.put(_Latest(key=key))
        self._latest[key] = frame

    def put_delta(
        self, response_id: str, first_seq: int, seq: int, parts: Sequence[Part], stream_id: str | None = None
    ) -> bool:
        """Queue what the events `first_seq` to `seq` add; False where there is no room, and nothing is queued."""
        if self._closing:
            return True
        if not self._room.is_set():
            return False
        merged = self._merging.get(response_id)
        if merged is None or first_seq != merged.seq + 1 or merged.weight >= MERGED_CHARS:
            merged = self._merging[response_id] = _Merged(response_id, first_seq, stream_id)
            self._items.append(merged)
        weight = sum(map(_weight, parts))
        merged.add(seq, parts, weight)
        self._chars += weight
        if self._chars >= ROOM_CHARS:
            self._room.clear()
        self._wake.set()
        return True

    async def room(self) -> None:
        """Returns when there is room again, or nothing more will be sent."""
        await self._room.wait()

    def forget(self, response_id: str) -> None:
        """Drop the text of a response that has not been sent: it will be told again from another place."""
        self._merging.pop(response_id, None)
        kept: deque[ServerFrame | _Merged | _Close] = deque()
        for item in self._items:
            if isinstance(item, _Merged) and item.response_id == response_id:
                self._chars -= item.weight
            else:
                kept.append(item)
        self._items = kept
        self._make_room()

    def _make_room(self) -> None:
        if self._chars <= AGAIN_CHARS:
            self._room.set()

    def close(self, code: int) -> None:
        """End the socket after what is queued now; what comes later is dropped."""
        if not self._closing:
            self._items.append(_Close(code))
            self._closing = True
            self._room.set()
            self._wake.set()

    @property
    def chars(self) -> int:
        """Characters of answers that wait."""
        return self._chars

    def lag(self, now: float) -> float:
        """For how long the frame that is next has not been taken, by time.monotonic; 0 where there is none."""
        return now - self._since if self._since else 0.0

    @property
    def closing(self) -> bool:
        return self._closing

    async def run(self) -> None:
        """Send until closed or cancelled."""
        try:
            await self._run()
        finally:
            self._since = 0.0

    async def _run(self) -> None:
        while True:
            self._since = 0.0
            await self._wake.wait()
            self._wake.clear()
            while self._items:
                self._since = time.monotonic()
                item = self._items.popleft()
                if isinstance(item, _Merged):
                    if self._merging.get(item.response_id) is item:
                        del self._merging[item.response_id]
                    for frame in item.frames():
                        await self._send(render(frame))
                    self._chars -= item.weight
                    self._make_room()
                elif isinstance(item, _Close):
                    await self._close(item.code)
                    return
                elif isinstance(item, _Latest):
                    await self._send(render(self._latest.pop(item.key)))
                else:
                    await self._send(render(item))
