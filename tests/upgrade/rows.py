"""All rows of a SQLite file, and what of them is lost in another one."""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

# Each table: its columns, and its rows by what they hold.
Table = tuple[list[str], list[dict[str, Any]]]


def tables(path: Path) -> dict[str, Table]:
    found: dict[str, Table] = {}
    with closing(sqlite3.connect(path)) as database:
        database.row_factory = sqlite3.Row
        names = [row[0] for row in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        for name in sorted(names):
            if not name.startswith("sqlite_"):
                rows = [dict(row) for row in database.execute(f'SELECT * FROM "{name}"')]
                columns = [row[1] for row in database.execute(f'PRAGMA table_info("{name}")')]
                found[name] = (columns, rows)
    return found


def lost(before: dict[str, Table], after: dict[str, Table], meant: dict[str, str]) -> Iterator[str]:
    """What was there and is not any more, or not as it was. `meant`: "table" or "table.column": why that is right."""
    for table, (columns, rows) in before.items():
        if table in meant or not rows:
            continue
        if table not in after:
            yield f"the table {table} with {len(rows)} rows is gone"
            continue
        gone = [column for column in columns if column not in after[table][0] and f"{table}.{column}" not in meant]
        yield from (f"the column {table}.{column} is gone" for column in gone)
        kept = [c for c in columns if c in after[table][0] and f"{table}.{c}" not in meant]
        there = {_digest(row, kept) for row in after[table][1]}
        missing = [row for row in rows if _digest(row, kept) not in there]
        if missing:
            yield f"{len(missing)} rows of {table} are gone or changed, as {missing[0]}"


def _digest(row: dict[str, Any], columns: list[str]) -> bytes:
    return hashlib.sha256(repr([row[column] for column in columns]).encode()).digest()
