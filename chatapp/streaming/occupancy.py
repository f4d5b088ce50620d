"""The block table of a worker out of its streams: as it changes, as it was at a moment, and its time line.

Readers of what engine.occupancy_wire describes. `follow` and `at` give frames that apply to a table one after the
other: the first one is a whole one, and where frames between are missing (the stream was trimmed under a slow reader,
or begun anew) a whole one comes next. They read heads, never cells: those go to pages as they are.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import TypeAlias

import msgspec
import redis.exceptions
import structlog

from chatapp.streaming import connection
from engine import occupancy_wire, protocol
from engine.occupancy_wire import Table

log = structlog.get_logger(__name__)

# A whole frame comes at least every 256: one read of so many finds one, wherever the stream is cut.
READ = 64
CATCH_UP = 256
AGAIN_S = 0.5
# How far a worker's clock and the server's, which numbers the entries, may be apart beyond what the newest entry shows.
CLOCKS_MS = 2000
Entries: TypeAlias = Sequence[tuple[bytes, Mapping[bytes, bytes]]]
LOST = (redis.exceptions.ConnectionError, redis.exceptions.TimeoutError, OSError)


class _Place(msgspec.Struct):
    """What a reader has to know of a head."""

    number: int
    at_ms: int
    base: int = 0


_places = msgspec.json.Decoder(_Place)


class Frame(msgspec.Struct, frozen=True):
    entry: bytes
    number: int
    base: int
    at_ms: int
    head: bytes
    cells: bytes

    @property
    def packed(self) -> bytes:
        return occupancy_wire.packed(self.head, self.cells)


def _frame(entry: bytes, fields: Mapping[bytes, bytes]) -> Frame | None:
    """None for what this code cannot read, as a worker of another version writes it."""
    try:
        head = fields[b"head"]
        place = _places.decode(head)
        return Frame(entry, place.number, place.base, place.at_ms, head, fields[b"cells"])
    except (KeyError, msgspec.DecodeError):
        return None


def _frames(entries: Entries) -> list[Frame]:
    return [frame for entry in entries if (frame := _frame(*entry)) is not None]


class _Back:
    """Goes back from entry to entry to the newest whole frame of `at_ms` or before, and keeps the changes behind it."""

    def __init__(self, end: bytes | str = "+", at_ms: float = float("inf")) -> None:
        self.end = end
        self.done = False
        self._at_ms = at_ms
        self._found: list[Frame] = []

    @property
    def frames(self) -> list[Frame]:
        """The oldest first; empty where there is no whole one."""
        return self._found[::-1] if self._found and self._found[-1].base == 0 else []

    def take(self, entries: Entries) -> None:
        for frame in _frames(entries):
            if not self._found and frame.at_ms > self._at_ms:
                continue
            if self._found and self._found[-1].base != frame.number:
                self._found.clear()  # what comes behind a hole applies to nothing that is there
            self._found.append(frame)
            if frame.base == 0:
                self.done = True
                return
        self.done = len(entries) < READ
        self.end = b"(" + entries[-1][0] if entries else self.end


async def _up_to(client: connection.Redis, key: str, end: bytes | str, at_ms: float) -> list[Frame]:
    back = _Back(end, at_ms)
    while not back.done:
        back.take(await client.xrevrange(key, back.end, "-", count=READ))
    return back.frames


def table(worker: str) -> Table:
    """The block table as it is now, without a head where the worker has said none. For who looks once.

    Raises redis.exceptions.RedisError.
    """
    client, back, found = connection.sync_redis(), _Back(), Table()
    while not back.done:
        back.take(client.xrevrange(protocol.occupancy_key(worker), back.end, "-", count=READ))
    for frame in back.frames:
        found.apply(occupancy_wire.decode_head(frame.head), frame.cells)
    return found


async def at(worker: str, at_ms: int) -> list[Frame]:
    """The frames that make the table as it was then; of a time before the oldest ones, the oldest whole one.

    Times are the worker's. Empty where nothing is known of the worker. Raises redis.exceptions.RedisError.
    """
    client, key = connection.async_redis(), protocol.occupancy_key(worker)
    last = _frames(await client.xrevrange(key, "+", "-", count=1))
    if not last:
        return []
    apart = int(last[0].entry.partition(b"-")[0]) - last[0].at_ms
    end = max(0, at_ms + apart + CLOCKS_MS)
    found = await _up_to(client, key, str(end), at_ms)
    return found or await _oldest(client, key)


async def _oldest(client: connection.Redis, key: str) -> list[Frame]:
    start: bytes | str = "-"
    while True:
        entries = await client.xrange(key, start, "+", count=READ)
        whole = next((frame for frame in _frames(entries) if frame.base == 0), None)
        if whole is not None or len(entries) < READ:
            return [whole] if whole is not None else []
        start = b"(" + entries[-1][0]


async def follow(worker: str) -> AsyncGenerator[Frame, None]:
    """The newest whole frame and all changes since at once, then each as it comes, for ever: close it.

    While Redis cannot be reached nothing comes; what was written meanwhile follows.
    """
    key = protocol.occupancy_key(worker)
    client = connection.async_blocking_redis()
    entry, number = b"0-0", 0  # where we are in the stream, and the frame that is applied; 0: a whole one is needed
    begun = False
    try:
        while True:
            connection.heed_cancellation()
            try:
                if not begun:
                    frames = await _up_to(client, key, "+", float("inf"))
                    end, begun = frames[-1].entry if frames else entry, True
                else:
                    frames, end = await _next(client, key, entry)
                    if frames and number and frames[0].base not in (0, number):
                        log.info("occupancy.gap", worker=worker)
                        number = 0
                        # Where the hole is behind the newest whole frame, the next one is waited for.
                        whole = await _up_to(client, key, "+", float("inf"))
                        if whole and _order(whole[-1].entry) >= _order(end):
                            frames, end = whole, whole[-1].entry
            except LOST as error:
                log.warning("occupancy.disconnected", error=type(error).__name__)
                await asyncio.sleep(AGAIN_S)
                continue
            for frame in frames:
                if frame.base in (0, number):
                    entry, number = frame.entry, frame.number
                    yield frame
                elif number:
                    break  # a hole: looked into from here
            else:
                entry = end
    finally:
        await client.aclose()


async def _next(client: connection.Redis, key: str, entry: bytes) -> tuple[list[Frame], bytes]:
    """What has come behind `entry`, waited for, and the last entry of it: from the last whole frame on, so that who is
    behind catches up."""
    found = await client.xread({key: entry}, count=CATCH_UP, block=int(connection.BLOCK_S * 1000))
    if not found:
        return [], entry
    entries = found[0][1]
    frames = _frames(entries)
    whole = max((place for place, frame in enumerate(frames) if frame.base == 0), default=0)
    return frames[whole:], entries[-1][0]


def _order(entry: bytes) -> tuple[int, int]:
    ms, _, number = entry.partition(b"-")
    return int(ms), int(number)


class Points(msgspec.Struct):
    """A stretch of a worker's time line, each point as JSON; `last`: the entry to go on behind."""

    points: list[msgspec.Raw]
    last: bytes


async def lines(behind: Mapping[str, bytes]) -> dict[str, Points]:
    """What the time lines of these workers have behind those entries (b"0-0": all). Workers without news are left out.

    Raises redis.exceptions.RedisError.
    """
    pipe = connection.async_redis().pipeline(transaction=False)
    for worker, last in behind.items():
        pipe.xrange(protocol.line_key(worker), b"(" + last, "+")
    found = {}
    for worker, entries in zip(behind, await pipe.execute() if behind else (), strict=True):
        if entries:
            said = [msgspec.Raw(fields[b"line"]) for _, fields in entries if b"line" in fields]
            found[worker] = Points(said, entries[-1][0])
    return found
