"""What the benchmarks found, as one table: Octavo, its peers, and how many times better Octavo is.

Owns the rows, their order, the ratios and both forms, text and Markdown. Knows nothing of how a figure came about: a
column without one has a dash, a column without any says why below the table.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

Grid = list[list[str]]
OURS = "Octavo"
LEGEND = (
    "Times better: Octavo's tokens over theirs, their time over Octavo's. 16 users: right after the start, 4 tenants x "
    "4 users x 3 turns over HTTP, 450 words of system prompt a tenant, 64 tokens an answer. One user: 3 turns after "
    "that, with words that are new."
)


@dataclass
class Column:
    """The figures of one engine by the rows' names. `notes` are lines below the table, reasons for gaps among them."""

    name: str
    figures: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Row:
    """`better`: "more" or "less" of it; None where no ratio says anything."""

    name: str
    better: str | None
    digits: int


ROWS = [
    Row("16 users: output tok/s", "more", 1),
    Row("16 users: TTFT p50, s", "less", 3),
    Row("16 users: TTFT p95, s", "less", 3),
    Row("16 users: ITL p50, ms", "less", 1),
    Row("16 users: ITL p95, ms", "less", 1),
    Row("16 users: prompt tokens", None, 0),
    Row("16 users: cached share of them", None, 3),
    Row("16 users: answers", None, 0),
    Row("16 users: errors", None, 0),
    Row("one user: output tok/s", "more", 1),
    Row("one user: TTFT p50, s", "less", 3),
    Row("one user: ITL p50, ms", "less", 1),
    Row("one user: ITL p95, ms", "less", 1),
]

WHOLE = (
    "tokens written",
    "tokens that came",
    "answers at fault",
    "tokens a second",
    "frames a second",
    "late steps",
    "web, MiB before",
)
LOAD_NAMES = {
    "output tok/s": "output, tok/s",
    "cached share of them": "cached share",
}


def from_load(who: str, figures: dict[str, float]) -> dict[str, float]:
    """The load client's report under the rows' names; `who`: "16 users" or "one user"."""
    wanted = {row.name: row.name.removeprefix(f"{who}: ") for row in ROWS if row.name.startswith(f"{who}: ")}
    return {name: figures[LOAD_NAMES.get(short, short)] for name, short in wanted.items()}


def ratio(row: Row, ours: float | None, theirs: float | None) -> float | None:
    """How many times better ours is, above 1 for better; None where it cannot be said."""
    if row.better is None or not ours or not theirs:  # nan is no figure either, see below
        return None
    found = ours / theirs if row.better == "more" else theirs / ours
    return found if found == found else None


def compare(columns: Sequence[Column]) -> Grid:
    """Head and rows: every column's figure, and after every peer the ratio; rows that nobody has are left out."""
    ours = next((column for column in columns if column.name == OURS and column.figures), None)
    grid = [[""]]
    for column in columns:
        grid[0] += [column.name, *(["times better"] if ours and column is not ours else [])]
    for row in ROWS:
        if not any(row.name in column.figures for column in columns):
            continue
        line = [row.name]
        for column in columns:
            figure = column.figures.get(row.name)
            line.append("-" if figure is None or figure != figure else f"{figure:,.{row.digits}f}")
            if ours and column is not ours:
                times = ratio(row, ours.figures.get(row.name), figure)
                line.append("" if times is None else f"x {times:.2f}")
        grid.append(line)
    return grid


def notes(columns: Sequence[Column]) -> list[str]:
    return [f"{column.name}: {note}" for column in columns for note in column.notes]


def by_dtype(title: str, columns: Sequence[str], rows: dict[str, list[float]]) -> Grid:
    """An in-process table: a figure a dtype, and the first over the last."""
    several = len(columns) > 1
    grid = [[title, *columns, *([f"{columns[0]} / {columns[-1]}"] if several else [])]]
    for name, values in rows.items():
        over = [values[0] / values[-1]] if several else []
        grid.append([name, *(f"{value:,.2f}" for value in [*values, *over])])
    return grid


def by_load(loads: dict[str, dict[str, float]]) -> Grid:
    """bench.transport's table: a column a load. Counts are whole, what is measured has two digits."""
    grid = [["tokens to clients", *loads]]
    for name in dict.fromkeys(name for figures in loads.values() for name in figures):
        values = [figures.get(name, float("nan")) for figures in loads.values()]
        digits = 0 if name in WHOLE else 2
        grid.append([name, *("-" if value != value else f"{value:,.{digits}f}" for value in values)])
    return grid


def aligned(grid: Grid) -> str:
    """For a terminal: names on the left, figures right-aligned."""
    widths = [max(map(len, column)) for column in zip(*grid, strict=True)]
    lines = []
    for name, *cells in grid:
        figures = (cell.rjust(width) for cell, width in zip(cells, widths[1:], strict=True))
        lines.append("  ".join([name.ljust(widths[0]), *figures]).rstrip())
    return "\n".join(lines)


def markdown(grid: Grid) -> str:
    lines = ["| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in grid]
    return "\n".join([lines[0], "|" + "---|" * len(grid[0]), *lines[1:]])
