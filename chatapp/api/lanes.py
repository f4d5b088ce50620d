"""The lanes of one socket: responses of a lane come one after the other, those of different lanes at the same time.

A response takes its place in its lane when its frame arrives (`enter`), comes up when all before it have left
(`Place.come`), and leaves at its end (`Place.leave`), however it ends. A response without a lane has a place of its
own. Knows nothing of responses but when they come and go.
"""

from __future__ import annotations

import asyncio

from chatapp.errors import Refusal

# Questions that wait in all lanes of a socket together; each is a frame of up to 64 KiB that the server has to keep.
MOST_WAITING = 32


class TooManyWaiting(Refusal):
    status = 429
    code = "too_many_waiting"
    retryable = True


class Dropped(Refusal):
    """The lane was stopped while this waited in it."""

    status = 409
    code = "cancelled"


class Place:
    """One response's place in a lane."""

    def __init__(self, lanes: Lanes, stream_id: str | None, before: list[Place]) -> None:
        self.stream_id = stream_id
        self.response_id: str | None = None  # once it has one
        self._lanes = lanes
        self._before = before
        self._left = asyncio.Event()
        self._dropped = asyncio.Event()

    @property
    def waits(self) -> bool:
        return any(not place._left.is_set() for place in self._before)

    async def come(self) -> None:
        """Returns when this is next in its lane. Raises Dropped."""
        while self.waits and not self._dropped.is_set():
            last = next(place for place in reversed(self._before) if not place._left.is_set())
            either = [asyncio.ensure_future(last._left.wait()), asyncio.ensure_future(self._dropped.wait())]
            try:
                await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for waiting in either:
                    waiting.cancel()
        self._before = []
        if self._dropped.is_set():
            raise Dropped("This was still waiting in its lane, and the lane was stopped.")

    def drop(self) -> None:
        """The lane was stopped: what waits is not asked any more, and what is just being asked is stopped after it."""
        self._dropped.set()

    @property
    def dropped(self) -> bool:
        return self._dropped.is_set()

    def leave(self) -> None:
        """Safe to repeat."""
        if not self._left.is_set():
            self._left.set()
            self._lanes._gone(self)


class Lanes:
    def __init__(self) -> None:
        self._lanes: dict[str, list[Place]] = {}

    def enter(self, stream_id: str | None, *, at_once: bool = False) -> Place:
        """A place behind all that are in the lane now; `at_once`: it need not wait for them, but later ones will for
        it. Raises TooManyWaiting."""
        if stream_id is None:
            return Place(self, None, [])
        lane = self._lanes.get(stream_id, [])
        if lane and not at_once and self.waiting >= MOST_WAITING:
            raise TooManyWaiting(
                f"{MOST_WAITING} questions wait in the lanes of this socket already; wait for answers.", retry_after_s=1
            )
        place = Place(self, stream_id, [] if at_once else list(lane))
        self._lanes.setdefault(stream_id, []).append(place)
        return place

    @property
    def waiting(self) -> int:
        return sum(place.waits for lane in self._lanes.values() for place in lane)

    def of(self, stream_id: str) -> list[Place]:
        return list(self._lanes.get(stream_id, ()))

    def _gone(self, place: Place) -> None:
        if place.stream_id is not None:
            lane = self._lanes[place.stream_id]
            lane.remove(place)
            if not lane:
                del self._lanes[place.stream_id]
