"""How far a response has been told, and what is new in what comes. Pure.

Frames of a response cover ranges of its events, numbered from 1 without a gap. Several frames may tell the same range,
each about another choice or call; all but the last say that `more` follow. A connection that breaks is resumed behind
the last range that is whole (`rewind`), and of what is told again only that is new which goes beyond what is known:
compared, not trusted. Nothing is lost or comes twice, wherever connections break and however frames are merged.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Any


class Gap(Exception):
    """Something before this frame is missing: rewind, and resume."""


class Mismatch(Exception):
    """What is told again is not what was told before."""


class _Thread:
    """One text, or list, that grows: a choice's, a tool call's arguments. `mark`: its length where the last whole
    range ended; `awaited`: what is known beyond the place from which it is being told again."""

    __slots__ = ("awaited", "length", "mark", "parts")

    def __init__(self, empty: Any) -> None:
        self.parts: list[Any] = [empty]
        self.length = 0
        self.mark = 0
        self.awaited: Any = empty

    def whole(self) -> Any:
        empty = self.parts[0]
        joined = "".join(self.parts) if isinstance(empty, str) else [item for part in self.parts for item in part]
        self.parts = [empty, joined]
        return joined

    def tell_again(self, place: int) -> None:
        self.mark = place
        self.awaited = self.whole()[place:]

    def add(self, more: Any) -> Any:
        """What of it is new."""
        awaited = self.awaited
        if len(awaited):
            common = min(len(awaited), len(more))
            if awaited[:common] != more[:common]:
                raise Mismatch
            self.awaited = awaited[common:]
            more = more[common:]
        if len(more):
            self.parts.append(more)
            self.length += len(more)
        return more

    @property
    def place(self) -> int:
        return self.length - len(self.awaited)


class Cursor:
    """Where one response stands. `after`: behind what to resume; -1 while it has not begun."""

    def __init__(self, after: int = -1) -> None:
        self._begun = after >= 0
        # Told by somebody else before us: nothing of it can be compared.
        self._since = self._whole = self._last = max(after, 0)
        self._range: tuple[int, int] | None = None  # of which more is to come
        self._said: set[Hashable] = set()
        self._threads: dict[Hashable, _Thread] = {}

    def begin(self) -> bool:
        """The response has begun; True when that is new."""
        new, self._begun = not self._begun, True
        return new

    @property
    def last(self) -> int:
        """The last number that a frame has covered."""
        return self._last

    def rewind(self) -> int:
        """Everything behind the last whole range will be told again: the number behind which to ask for it."""
        self._last = self._whole
        self._said.clear()
        self._range = None
        for thread in self._threads.values():
            thread.tell_again(thread.mark)
        return self._whole if self._begun else -1

    def cover(
        self, first: int, last: int, kind: Hashable, told: Iterable[tuple[Hashable, Any]], *, more: bool = False
    ) -> list[Any] | None:
        """What is new in a frame that tells `told`, pairs of a key and a text or list; None when it is known already.

        `kind` tells the frames of one range apart. Raises Gap, Mismatch.
        """
        if first == self._last + 1 and last >= first and self._range is None:
            self._enter(first, last)
        elif (first, last) == self._range and kind not in self._said:
            pass  # another frame of the range that has begun
        elif last <= self._last:
            return None
        elif first == 1 and self._since == 0:  # all of it in one piece, as a server tells it whose log has expired
            for thread in self._threads.values():
                thread.tell_again(0)
            self._whole = 0
            self._enter(first, last)
        else:
            raise Gap
        self._begun = True
        self._said.add(kind)
        fresh = [self._threads.setdefault(name, _Thread(part[:0])).add(part) for name, part in told]
        if not more:
            self._whole, self._range = last, None
            for thread in self._threads.values():
                thread.mark = thread.place
        return fresh

    def _enter(self, first: int, last: int) -> None:
        self._range = (first, last)
        self._last = last
        self._said.clear()

    def end(self, seq: int) -> None:
        """An ending with this number has come. Raises Gap when something before it is missing."""
        if seq > self._last + 1 or self._range is not None:
            raise Gap
