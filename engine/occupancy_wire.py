"""The block table on the wire: whole frames, and frames of what has changed since the one before.

A worker writes frames to `octavo:occupancy:{worker}`, each an entry with two fields: `head`, JSON (a Head), and
`cells`, zlib-compressed little-endian uint32 columns. A socket carries the same as one binary message (`packed`), so
that no process between the worker and the page has to read it. The frames of a worker are numbered; a frame applies to
a table in the state of `base`, a whole one (`base` 0) to any.

The columns of `cells` hold what is said of a block, four words each, one column behind the other:

    a       bits 0-1 state: 0 free, 1 cached, 2 used, 3 on the host; bit 2 pinned; bit 3 fenced: in use by the engine
            itself and no sequence, until a copy or a step that is under way is done with it; bits 4-5 kind: 0 unknown,
            1 the platform's preamble, 2 a team's prompt, 3 a conversation's or a key's own; bits 8-31 references
    b       bits 0-15 the tenant's place in `tenants` + 1, 0 for none; bits 16-31 tokens that it holds
    parent  the block that it builds on + 1 (what can be found by the prefix cache has one), 0 for none
    used    seconds of the Unix epoch at which its references last changed, 0 for never

A whole frame has them for every block of the pool and then for every slot of the host pool; a change has a column of
block numbers first, in ascending order. Snapshot + changes == the full state: `Table` is what a reader keeps.

Loads neither torch nor Redis.
"""

from __future__ import annotations

import sys
import zlib
from array import array
from collections.abc import Iterable

import msgspec

FREE, CACHED, USED, HOST = range(4)
STATE, PINNED, FENCED = 3, 4, 8
KIND_SHIFT, REFS_SHIFT, FILLED_SHIFT = 4, 8, 16
UNKNOWN, PLATFORM, TEAM, OWN = range(4)
WORDS = 4
LEVEL = 1
MOST_TENANTS = 2**16 - 2


class Row(msgspec.Struct, omit_defaults=True):
    """A running sequence. In a change: what of it has changed; its table is `table[:at] + blocks`. Of one that is known
    from the frame before only `number`, `tokens`, `at` and `blocks` are said: the rest is as it was.

    `number` is the sequence's own while it runs, never given to another of the same worker. `id`: the generation's.
    `tokens`: computed ones; `cached`: prompt tokens that were found. `regions`: where the platform's and the team's
    part end, in tokens. A block number of -1: it lay behind the model's window and is gone.
    """

    number: int
    id: str = ""
    tenant: int = -1
    choice: int = 0
    prompt: int = 0
    cached: int = 0
    tokens: int = 0
    regions: tuple[int, int] = (0, 0)
    at: int = 0
    blocks: list[int] = []


class Figures(msgspec.Struct, omit_defaults=True):
    """Counts at the moment of a frame; `counters` are totals since the worker's start, `of` has them by tenant id.

    `wasted_slots`: of running sequences behind their last token. `saved_blocks`: what running sequences would need more
    without sharing. `of`: tenant id -> [used, cached, pinned, running, waiting] blocks and sequences; `service`: its
    deficit counter.
    """

    used: int = 0
    cached: int = 0
    free: int = 0
    pinned: int = 0
    host: int = 0
    running: int = 0
    waiting: int = 0
    wasted_slots: int = 0
    saved_blocks: int = 0
    of: dict[str, tuple[int, int, int, int, int]] = {}
    service: dict[str, float] = {}
    counters: dict[str, float] = {}


class Head(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What a frame says in words. `number` counts a worker's frames from 1; `base`: the one before, 0 for a whole one.

    `tenants`: all of a whole frame, the new ones (behind those before) of a change. `rows`: sequences that are new or
    have changed; `gone`: numbers of those that run no longer.
    """

    worker: str
    number: int
    base: int = 0
    at_ms: int
    block_size: int
    blocks: int
    host_blocks: int = 0
    tenants: list[str] = []
    rows: list[Row] = []
    gone: list[int] = []
    figures: Figures


class Gap(Exception):
    """A change was given to a table that lacks the frame before it."""


_heads = msgspec.json.Decoder(Head)
_encoder = msgspec.json.Encoder()


def encode_head(head: Head) -> bytes:
    return _encoder.encode(head)


def decode_head(data: bytes) -> Head:
    return _heads.decode(data)


def packed(head: bytes, cells: bytes) -> bytes:
    """One message for a socket: the length of `head` as a little-endian uint32, `head`, `cells`."""
    return len(head).to_bytes(4, "little") + head + cells


def unpacked(message: bytes) -> tuple[bytes, bytes]:
    size = int.from_bytes(message[:4], "little")
    return message[4 : 4 + size], message[4 + size :]


def compress(columns: Iterable[array[int]]) -> bytes:
    """Columns of uint32 as `cells`."""
    return zlib.compress(b"".join(map(_bytes, columns)), LEVEL)


def decompress(cells: bytes) -> array[int]:
    words = array("I")
    words.frombytes(zlib.decompress(cells))
    if sys.byteorder == "big":
        words.byteswap()
    return words


def _bytes(column: array[int]) -> bytes:
    if sys.byteorder == "big":
        column = array("I", column)
        column.byteswap()
    return column.tobytes()


def next_rows(rows: dict[int, Row], head: Head) -> dict[int, Row]:
    """The sequences that run, by number, behind a frame; `rows`: those before it. Their `at` is 0."""
    rows = dict(rows) if head.base else {}
    for number in head.gone:
        rows.pop(number, None)
    for row in head.rows:
        before = rows.get(row.number)
        if before is not None:
            blocks = [*before.blocks[: row.at], *row.blocks]
            row = msgspec.structs.replace(before, tokens=row.tokens, blocks=blocks)
        rows[row.number] = row
    return rows


class Table:
    """The block table as a reader knows it: four columns of words, the running sequences, and the last head."""

    def __init__(self) -> None:
        self.head: Head | None = None
        self.tenants: list[str] = []
        self.columns: list[array[int]] = [array("I") for _ in range(WORDS)]
        self.rows: dict[int, Row] = {}

    def apply(self, head: Head, cells: bytes) -> None:
        """Take in the next frame. Raises Gap where frames between are missing: wait for a whole one then."""
        words = decompress(cells)
        if head.base == 0:
            self.tenants = []
            total = head.blocks + head.host_blocks
            self.columns = [words[start : start + total] for start in range(0, WORDS * total, total)]
        elif self.head is None or self.head.number != head.base:
            raise Gap
        else:
            count = len(words) // (WORDS + 1)
            for place in range(count):
                block = words[place]
                for number, column in enumerate(self.columns, 1):
                    column[block] = words[number * count + place]
        self.tenants += head.tenants
        self.rows = next_rows(self.rows, head)
        self.head = head
