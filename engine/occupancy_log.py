"""A worker's frames of its block table on their way into Redis: two streams, and how much of them is kept.

Owns which frames have not been written, and what the streams hold. Promises:

- a frame's entry has the id `at_ms-number`, so writing it again after a lost connection changes nothing;
- about the last 30 minutes of activity are kept, and 16 MB: of what is too much the oldest changes go first, so that
  the whole frames between them still say how it was about once a minute; the newest whole frame stays, with all behind;
- while Redis is away a bounded number of bytes waits; what had to be dropped is `lost` until a whole frame makes up;
- the time line has an entry every 2 s at most, and its last one is how it was in the end;
- once all is to begin anew, nothing that was added before is written any more, and the order to delete both streams
  goes out with every `write` until the server has acknowledged it, whatever becomes of the frames behind it;
- both streams go an hour after the worker's last heartbeat.

`pack` may be called in any thread; everything else belongs to the thread that writes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from engine import occupancy_wire, protocol
from engine.occupancy_wire import Figures

if TYPE_CHECKING:
    from engine.occupancy import Frame

MOST_BYTES = 16 * 2**20
MOST_MS = 30 * 60_000
MOST_WAITING_BYTES = 4 * 2**20
ENTRY_BYTES = 64  # of an entry besides its two fields, about
LINE_EVERY_MS = 2000
LINE_LENGTH = 900
EXPIRE_S = 3600
EXPIRE_EVERY_MS = 60_000

_encoder = msgspec.json.Encoder()


class Point(msgspec.Struct):
    """An entry of the time line. `number`: the frame's."""

    at_ms: int
    number: int
    figures: Figures


@dataclass(slots=True)
class Entry:
    """A frame ready to be written."""

    at_ms: int
    number: int
    whole: bool
    figures: Figures
    head: bytes
    cells: bytes

    @property
    def id(self) -> str:
        return f"{self.at_ms}-{self.number}"

    @property
    def size(self) -> int:
        return len(self.head) + len(self.cells) + ENTRY_BYTES


def pack(frame: Frame) -> Entry:
    """The work on a frame that takes long: a whole one of a large pool has megabytes."""
    head = frame.head
    return Entry(
        at_ms=head.at_ms,
        number=head.number,
        whole=head.base == 0,
        figures=head.figures,
        head=occupancy_wire.encode_head(head),
        cells=occupancy_wire.compress(frame.columns),
    )


@dataclass(slots=True)
class _Group:
    """A whole frame in the stream, and the changes behind it."""

    first: str
    at_ms: int
    whole_bytes: int
    change_bytes: int = 0
    changes: list[str] = field(default_factory=list)

    @property
    def size(self) -> int:
        return self.whole_bytes + self.change_bytes


class OccupancyLog:
    def __init__(self, worker: str) -> None:
        self.lost = False
        """Changes are of no use before the next whole frame. Read by the engine's thread."""
        self._key = protocol.occupancy_key(worker)
        self._line_key = protocol.line_key(worker)
        self._waiting: deque[Entry] = deque()
        self._waiting_bytes = 0
        self._groups: deque[_Group] = deque()
        self._bytes = 0
        self._point: Entry | None = None  # the newest state that the line has not, as far as we know
        self._line_at = 0
        self._expire_at = 0
        self._owes_deletion = False
        self._asked: list[Callable[[], None]] = []  # what the answers to the commands of the last `write` mean

    @property
    def owes_deletion(self) -> bool:
        """What was published before all began anew may still be there."""
        return self._owes_deletion

    def begin_anew(self) -> None:
        """Nothing that was added until now may be kept anywhere; a whole frame comes next."""
        self.lose()
        self._point = None
        self._owes_deletion = True

    def add(self, entry: Entry) -> None:
        if entry.whole:
            self.lost = False
        elif self.lost:
            return
        self._waiting.append(entry)
        self._waiting_bytes += entry.size
        self._point = entry
        if self._waiting_bytes > MOST_WAITING_BYTES and len(self._waiting) > 1:
            self.lose()

    def lose(self) -> None:
        """What waits cannot be written."""
        self._clear()
        self.lost = True

    def _clear(self) -> None:
        self._waiting.clear()
        self._waiting_bytes = 0

    def has_work(self, now_ms: int) -> bool:
        due = self._line_is_due(now_ms) or (bool(self._groups) and now_ms >= self._expire_at)
        return bool(self._waiting) or self._owes_deletion or due

    def _line_is_due(self, now_ms: int) -> bool:
        return self._point is not None and now_ms >= self._line_at + LINE_EVERY_MS

    def write(self, pipe: Any, now_ms: int) -> None:
        """Ask for all that is to be done, to hear of it by `written`."""
        self._asked = []
        if self._owes_deletion:
            pipe.delete(self._key, self._line_key)
            self._asked.append(self._deleted)
            self._expire_at = self._line_at = 0
        for entry in self._waiting:
            pipe.xadd(self._key, {"head": entry.head, "cells": entry.cells}, id=entry.id)
            self._asked.append(partial(self._note, entry))
        if self._line_is_due(now_ms) and (point := self._point) is not None:
            said = _encoder.encode(Point(point.at_ms, point.number, point.figures))
            pipe.xadd(self._line_key, {"line": said}, id=point.id, maxlen=LINE_LENGTH, approximate=False)
            self._asked.append(partial(self._note_point, point, now_ms))
        for command in self._trims(now_ms):
            pipe.execute_command(*command)
            self._asked.append(_nothing)
        if now_ms >= self._expire_at:
            pipe.expire(self._key, EXPIRE_S)
            pipe.expire(self._line_key, EXPIRE_S)
            self._asked += [_nothing, partial(self._note_expiry, now_ms)]

    @property
    def num_asked(self) -> int:
        return len(self._asked)

    def written(self, replies: list[Any]) -> None:
        """The server's answers, in order. What it refused for want of memory is lost."""
        for note, reply in zip(self._asked, replies, strict=True):
            if isinstance(reply, Exception) and not _is_there(reply):
                self.lose()
                return
            note()
        self._clear()

    def _deleted(self) -> None:
        self._owes_deletion = False
        self._groups.clear()
        self._bytes = 0

    def _note(self, entry: Entry) -> None:
        if entry.whole:
            self._groups.append(_Group(entry.id, entry.at_ms, entry.size))
        elif self._groups:
            group = self._groups[-1]
            group.changes.append(entry.id)
            group.change_bytes += entry.size
        self._bytes += entry.size

    def _note_point(self, point: Entry, now_ms: int) -> None:
        self._line_at = now_ms
        if self._point is point:
            self._point = None

    def _note_expiry(self, now_ms: int) -> None:
        self._expire_at = now_ms + EXPIRE_EVERY_MS

    # --- what is kept ---------------------------------------------------------------------------------------------

    def _trims(self, now_ms: int) -> list[tuple[Any, ...]]:
        commands: list[tuple[Any, ...]] = []
        groups = self._groups
        kept_from = ""
        while len(groups) > 1 and groups[1].at_ms <= now_ms - MOST_MS:
            kept_from = self._drop_first()
        if self._bytes > MOST_BYTES:
            for group in list(groups)[:-1]:
                if group.changes and self._bytes > MOST_BYTES:
                    commands.append(("XDEL", self._key, *group.changes))
                    self._bytes -= group.change_bytes
                    group.changes, group.change_bytes = [], 0
        while len(groups) > 1 and self._bytes > MOST_BYTES:
            kept_from = self._drop_first()
        if kept_from:
            commands.insert(0, ("XTRIM", self._key, "MINID", kept_from))
        return commands

    def _drop_first(self) -> str:
        self._bytes -= self._groups.popleft().size
        return self._groups[0].first


def _nothing() -> None:
    pass


def _is_there(error: Exception) -> bool:
    return "equal or smaller" in str(error)
