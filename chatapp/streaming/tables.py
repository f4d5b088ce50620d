"""The block tables of workers, kept while somebody looks: one reader a worker for all lookers of an event loop.

Who only hands frames on reads them with chatapp.streaming.occupancy; this is for those who have to know what is in
them. A table is thrown away when its last looker leaves.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable
from contextlib import aclosing
from weakref import WeakKeyDictionary

import msgspec
import structlog

from chatapp.streaming import occupancy
from engine.occupancy_wire import Gap, Table, decode_head

log = structlog.get_logger(__name__)

AGAIN_S = 1.0


class _Kept:
    def __init__(self) -> None:
        self.table = Table()
        self.lookers: set[Callable[[], None]] = set()
        self.task: asyncio.Task[None] | None = None


class Tables:
    """Use `tables()`."""

    def __init__(self) -> None:
        self._kept: dict[str, _Kept] = {}

    def look(self, worker: str, changed: Callable[[], None]) -> Callable[[], None]:
        """Keep this worker's table, and call `changed` as it changes; returns what ends it. It must not wait."""
        kept = self._kept.setdefault(worker, _Kept())
        kept.lookers.add(changed)
        if kept.task is None:
            kept.task = asyncio.create_task(self._run(worker, kept))

        def end() -> None:
            kept.lookers.discard(changed)
            if not kept.lookers and self._kept.get(worker) is kept:
                del self._kept[worker]
                if kept.task is not None:
                    kept.task.cancel()

        return end

    def __len__(self) -> int:
        return len(self._kept)

    def copy(self, worker: str) -> Table:
        """The table as it is now, for another thread to read; without a head where nothing has come yet."""
        table, copy = self._kept[worker].table, Table()
        copy.head, copy.tenants, copy.rows = table.head, list(table.tenants), dict(table.rows)
        copy.columns = [column[:] for column in table.columns]
        return copy

    async def _run(self, worker: str, kept: _Kept) -> None:
        while True:
            try:
                async with aclosing(occupancy.follow(worker)) as frames:
                    async for frame in frames:
                        self._take(worker, kept, frame)
            except Exception:
                log.exception("tables.failed", worker=worker)
            await asyncio.sleep(AGAIN_S)

    def _take(self, worker: str, kept: _Kept, frame: occupancy.Frame) -> None:
        try:
            kept.table.apply(decode_head(frame.head), frame.cells)
        except Gap:
            return
        except (msgspec.DecodeError, zlib.error, IndexError, ValueError) as error:
            # As what a worker of another version writes. Half a frame may be in it: the next whole one makes it right.
            log.warning("tables.unreadable", worker=worker, error=type(error).__name__)
            kept.table = Table()
            return
        for changed in list(kept.lookers):
            changed()


_tables: WeakKeyDictionary[asyncio.AbstractEventLoop, Tables] = WeakKeyDictionary()


def tables() -> Tables:
    """The running event loop's Tables."""
    return _tables.setdefault(asyncio.get_running_loop(), Tables())
