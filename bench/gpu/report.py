"""Rows of figures, the targets that are judged by them, and both as a table. Knows nothing of how a figure came about.

A part writes each row as soon as it has it, one JSON object a line, so that what it found outlives its end.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from bench.table import aligned


@dataclass(frozen=True)
class Row:
    """value: a figure, None where there is none. ok: of a check, whether it passed. note: what there is to say.

    error: why there is no figure. measures: what the targets look at, by name.
    """

    part: str
    name: str
    value: float | None = None
    unit: str = ""
    ok: bool | None = None
    note: str = ""
    error: str = ""
    measures: dict[str, float] = field(default_factory=dict)


class Report:
    """Where a part puts its rows, and how much time it has left."""

    def __init__(self, part: str, path: Path, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._part, self._path, self._clock = part, path, clock
        self._end = clock() + seconds

    def left(self) -> float:
        """Seconds until the part should be done."""
        return self._end - self._clock()

    def row(
        self,
        name: str,
        value: float | None = None,
        unit: str = "",
        *,
        ok: bool | None = None,
        note: str = "",
        error: str = "",
        measures: dict[str, float] | None = None,
    ) -> None:
        found = Row(self._part, name, value, unit, ok, note, error, measures or {})
        with self._path.open("a") as file:
            file.write(json.dumps(asdict(found)) + "\n")
        print("  " + "  ".join(cell for cell in cells(found) if cell), flush=True)

    def attempt(self, name: str, measure: Callable[[], None], *, check: bool = False) -> None:
        """Run what gives rows itself. Its failure is a row, and so is that there was no time for it."""
        if self.left() <= 0:
            self.row(name, note="left out: no time")
            return
        try:
            measure()
        except Exception as error:  # whatever goes wrong, the other rows go on
            self.row(name, error=one_line(error), ok=False if check else None)


def one_line(error: BaseException, most: int = 300) -> str:
    said = " ".join(str(error).split())
    return f"{type(error).__name__}: {said}"[:most]


def read(path: Path) -> list[Row]:
    """The rows there; the last line of a part that was ended may be broken."""
    rows = []
    for line in path.read_text().splitlines() if path.exists() else []:
        try:
            rows.append(Row(**json.loads(line)))
        except ValueError:
            print(f"a broken row: {line[:80]}", file=sys.stderr)
    return rows


def cells(row: Row) -> list[str]:
    said = {True: "passed", False: "FAILED", None: ""}[row.ok]
    figure = "" if row.value is None else f"{row.value:,.{digits(row.value)}f} {row.unit}".rstrip()
    return [row.name, " ".join(filter(None, [said, figure])) or ("-" if not row.error else ""), row.note or row.error]


def digits(value: float) -> int:
    """So many that three count."""
    return 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2 if abs(value) >= 0.1 else 4


def table(rows: Iterable[Row]) -> str:
    lines = [["part", "what", "figure", "remark"]]
    for row in rows:
        name, figure, remark = cells(row)
        lines.append([row.part, name, figure, remark])
    widths = [max(len(line[i]) for line in lines) for i in range(3)]
    return "\n".join(
        f"{part:<{widths[0]}}  {name:<{widths[1]}}  {figure:>{widths[2]}}  {remark}".rstrip()
        for part, name, figure, remark in lines
    )


@dataclass(frozen=True)
class Target:
    """measure: of rows that give it, the worst counts. most: it is a limit from above, else from below."""

    name: str
    measure: str
    limit: float
    unit: str
    most: bool
    rows: int
    """How many rows must give it: with fewer nothing is met."""


TARGETS = [
    Target("decode attention, of copy bandwidth, from 4k and batch 16", "copy_share", 85, "%", most=False, rows=1),
    Target("grouped over ungrouped prefix, 64 sequences x 8k", "grouped_times", 8, "x", most=False, rows=1),
    Target("decode step of the 8B shape, of its bytes' floor", "floor_times", 1.25, "x", most=True, rows=2),
    Target("host time that the device waits for, of a step", "host_share", 5, "%", most=True, rows=2),
]


def worst(target: Target, rows: Sequence[Row]) -> float | None:
    """None where too few rows tell."""
    told = [row.measures[target.measure] for row in rows if target.measure in row.measures]
    if len(told) < target.rows:
        return None
    return max(told) if target.most else min(told)


def verdict(target: Target, rows: Sequence[Row]) -> str:
    """met, missed or not measured."""
    found = worst(target, rows)
    if found is None or found != found:
        return "not measured"
    return "met" if (found <= target.limit if target.most else found >= target.limit) else "missed"


def target_table(rows: Sequence[Row]) -> str:
    grid = [["target", "wanted", "worst", ""]]
    for target in TARGETS:
        found = worst(target, rows)
        sign = "<=" if target.most else ">="
        grid.append(
            [
                target.name,
                f"{sign} {target.limit:g} {target.unit}",
                "-" if found is None else f"{found:.2f} {target.unit}",
                verdict(target, rows),
            ]
        )
    return aligned(grid)


def as_json(rows: Sequence[Row], about: dict[str, str]) -> str:
    targets = [{**asdict(t), "worst": worst(t, rows), "verdict": verdict(t, rows)} for t in TARGETS]
    return json.dumps({"about": about, "rows": [asdict(row) for row in rows], "targets": targets}, indent=1)
