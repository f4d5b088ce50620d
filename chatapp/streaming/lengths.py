"""How long the sequences are that workers run right now, out of their frames of the block table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from chatapp.streaming import connection
from engine import occupancy_wire, protocol

AT_ONCE = 32
"""Frames that are asked for at a time, backwards, until a whole one comes."""


def running_lengths(workers: Iterable[str]) -> Counter[int]:
    """Computed tokens of each running sequence -> how many have so many. Empty: nothing runs, or nothing was said."""
    return Counter(length for worker in workers for length in _of(worker))


def _of(worker: str) -> list[int]:
    rows: dict[int, occupancy_wire.Row] = {}
    for head in reversed(_heads_since_a_whole_one(worker)):
        if head.base == 0:
            rows = {}
        for number in head.gone:
            rows.pop(number, None)
        rows.update((row.number, row) for row in head.rows)
    return [row.tokens for row in rows.values() if row.tokens > 0]


def _heads_since_a_whole_one(worker: str) -> list[occupancy_wire.Head]:
    """Newest first. Empty where the stream holds no whole frame."""
    client, key = connection.sync_redis(), protocol.occupancy_key(worker)
    heads: list[occupancy_wire.Head] = []
    before = "+"
    while entries := client.xrevrange(key, before, "-", count=AT_ONCE):
        for _, fields in entries:
            if b"head" not in fields:
                continue
            heads.append(occupancy_wire.decode_head(fields[b"head"]))
            if heads[-1].base == 0:
                return heads
        before = f"({entries[-1][0].decode()}"
    return []
