"""A worker's side of the block table, for tests: whole frames and changes of a made-up pool, written to its streams."""

from __future__ import annotations

import time
from array import array
from collections.abc import Sequence
from typing import Any

import msgspec
import redis

from engine import occupancy_wire as wire
from engine import protocol
from engine.occupancy_wire import Figures, Head, Row
from engine.protocol import WorkerDetails


def cell(
    state: int = wire.USED, *, tenant: int = -1, refs: int = 0, filled: int = 16, kind: int = wire.OWN,
    pinned: bool = False, parent: int = -1, used: int = 0,
) -> tuple[int, int, int, int]:  # fmt: skip
    """A block's words; `tenant`: its place among the tenants, `parent`: a block's number."""
    a = state | pinned * wire.PINNED | kind << wire.KIND_SHIFT | refs << wire.REFS_SHIFT
    return a, (tenant + 1) | filled << wire.FILLED_SHIFT, parent + 1, used


FREE = cell(wire.FREE, filled=0, kind=wire.UNKNOWN)


class Publisher:
    """Frames of one worker, numbered, each applying to the one before. `gap` leaves a number out.

    `apart_ms`: how far the server's clock is ahead of the worker's, for frames that are given a time.
    """

    def __init__(
        self, server: redis.Redis, worker: str = "w1", model: str = "m", blocks: int = 4, apart_ms: int = 0
    ) -> None:
        self.server = server
        self.worker = worker
        self.model = model
        self.apart_ms = apart_ms
        self.blocks = blocks
        self.number = 0
        self.block_size = 16

    def beat(self, **fields: Any) -> None:
        details = WorkerDetails(
            id=self.worker, model=self.model, context=99, block_size=16, num_blocks=self.blocks, pid=1, **fields
        )
        self.server.fcall(*protocol.heartbeat(self.worker, details))

    def whole(self, cells: Sequence[tuple[int, int, int, int]], **head: Any) -> str:
        self.blocks = len(cells) - head.get("host_blocks", 0)
        return self._write(0, [array("I", column) for column in zip(*cells, strict=True)], head)

    def change(self, cells: dict[int, tuple[int, int, int, int]], **head: Any) -> str:
        places = sorted(cells)
        columns = [array("I", places)] + [array("I", (cells[place][n] for place in places)) for n in range(wire.WORDS)]
        return self._write(self.number, columns, head)

    def gap(self) -> None:
        self.number += 1

    def point(self, at_ms: int, **figures: Any) -> None:
        point = {"at_ms": at_ms, "number": self.number, "figures": Figures(**figures)}
        self.server.xadd(protocol.line_key(self.worker), {"line": msgspec.json.encode(point)})

    def _write(self, base: int, columns: list[array[int]], head: dict[str, Any]) -> str:
        self.number += 1
        given = head.get("at_ms")
        head = {"at_ms": int(time.time() * 1000), "figures": Figures(), **head}
        said = Head(
            worker=self.worker, number=self.number, base=base, block_size=self.block_size, blocks=self.blocks, **head
        )
        entry: Any = self.server.xadd(
            protocol.occupancy_key(self.worker),
            {"head": wire.encode_head(said), "cells": wire.compress(columns)},
            id=f"{given + self.apart_ms}-*" if given is not None else "*",
        )
        return str(entry.decode())


def words(table: wire.Table) -> list[tuple[int, ...]]:
    return list(zip(*table.columns, strict=True))


__all__ = ["FREE", "Figures", "Publisher", "Row", "cell", "words"]
