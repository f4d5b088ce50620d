"""What changed between two texts: line by line, with the changed words of a line marked. Knows no prompts.

Long runs of equal lines are folded to a few around each change. What would take too long to compare word by word is
marked as a whole.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import SequenceMatcher

AROUND = 3
"""Equal lines that are shown before and behind a change."""
MOST_WORK = 1_000_000
"""Products of lengths above this are not compared in detail: a second of a web process is the limit."""

WORDS = re.compile(r"\w+|\s+|[^\w\s]")


@dataclass(frozen=True)
class Span:
    text: str
    changed: bool = False


@dataclass(frozen=True)
class Side:
    """A line of one of the texts; `number` counts from 1."""

    number: int
    spans: tuple[Span, ...]


@dataclass(frozen=True)
class Row:
    """same: both sides; changed: both, with spans marked; removed: `old` only; added: `new` only; folded: `count` equal
    lines that are not shown."""

    kind: str
    old: Side | None = None
    new: Side | None = None
    count: int = 0


@dataclass(frozen=True)
class Diff:
    rows: tuple[Row, ...]
    added: int
    removed: int

    @property
    def is_empty(self) -> bool:
        return not (self.added or self.removed)

    @property
    def unified(self) -> list[tuple[str, Side | None, Side | None, int]]:
        """(kind, old, new, count) a line: of a changed one first all that went, then all that came."""
        lines: list[tuple[str, Side | None, Side | None, int]] = []
        came: list[Side] = []
        for row in self.rows:
            if row.kind == "changed":
                assert row.new is not None
                lines.append(("removed", row.old, None, 0))
                came.append(row.new)
                continue
            if row.kind == "added" and came:
                assert row.new is not None
                came.append(row.new)
                continue
            if row.kind == "removed" and came:
                lines.append(("removed", row.old, None, 0))
                continue
            lines += [("added", None, side, 0) for side in came]
            came = []
            lines.append((row.kind, row.old, row.new, row.count))
        return lines + [("added", None, side, 0) for side in came]


def diff(old: str, new: str, *, around: int | None = AROUND) -> Diff:
    """`around` None: nothing is folded."""
    before, after = old.split("\n"), new.split("\n")
    rows: list[Row] = []
    added = removed = 0
    for tag, i1, i2, j1, j2 in _opcodes(before, after):
        if tag == "equal":
            rows += _folded(before, i1, i2, j1, first=i1 == 0, last=i2 == len(before), around=around)
            continue
        removed, added = removed + i2 - i1, added + j2 - j1
        both = min(i2 - i1, j2 - j1)
        for n in range(both):
            left, right = _marked(before[i1 + n], after[j1 + n])
            rows.append(Row("changed", Side(i1 + n + 1, left), Side(j1 + n + 1, right)))
        rows += [Row("removed", old=Side(i + 1, (Span(before[i]),))) for i in range(i1 + both, i2)]
        rows += [Row("added", new=Side(j + 1, (Span(after[j]),))) for j in range(j1 + both, j2)]
    return Diff(tuple(rows), added, removed)


def _opcodes(before: list[str], after: list[str]) -> Iterator[tuple[str, int, int, int, int]]:
    """As difflib's; of texts with too many lines all between the first and the last change is one replacement."""
    if len(before) * len(after) <= MOST_WORK:
        yield from SequenceMatcher(None, before, after, autojunk=False).get_opcodes()
        return
    start = next(
        (n for n, (x, y) in enumerate(zip(before, after, strict=False)) if x != y), min(len(before), len(after))
    )
    most = min(len(before), len(after)) - start
    pairs = zip(reversed(before), reversed(after), strict=False)
    end = min(most, next((n for n, (x, y) in enumerate(pairs) if x != y), most))
    i, j = len(before) - end, len(after) - end
    for tag, i1, i2, j1, j2 in (
        ("equal", 0, start, 0, start),
        ("replace", start, i, start, j),
        ("equal", i, len(before), j, len(after)),
    ):
        if i1 < i2 or j1 < j2:
            yield tag, i1, i2, j1, j2


def _folded(
    lines: list[str], i1: int, i2: int, j1: int, *, first: bool, last: bool, around: int | None
) -> Iterator[Row]:
    head = 0 if first else around or 0
    tail = 0 if last else around or 0
    count = i2 - i1
    hidden = count - head - tail if around is not None else 0
    for n in range(count):
        if hidden > 1 and head <= n < count - tail:
            if n == head:
                yield Row("folded", count=hidden)
            continue
        spans = (Span(lines[i1 + n]),)
        yield Row("same", Side(i1 + n + 1, spans), Side(j1 + n + 1, spans))


def _marked(old: str, new: str) -> tuple[tuple[Span, ...], tuple[Span, ...]]:
    before, after = WORDS.findall(old), WORDS.findall(new)
    if len(before) * len(after) > MOST_WORK:
        return (Span(old, True),), (Span(new, True),)
    left: list[Span] = []
    right: list[Span] = []
    for tag, i1, i2, j1, j2 in SequenceMatcher(None, before, after, autojunk=False).get_opcodes():
        if i1 < i2:
            left.append(Span("".join(before[i1:i2]), tag != "equal"))
        if j1 < j2:
            right.append(Span("".join(after[j1:j2]), tag != "equal"))
    return tuple(left), tuple(right)
