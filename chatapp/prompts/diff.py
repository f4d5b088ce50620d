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
MOST_WORK = 50_000_000
"""Steps of comparison, about, that a diff may cost on lines, and again on words: a second or two of a web process.
What would take more is one replacement, or lines marked as a whole."""
MOST_ROWS = 4000
"""More than anybody reads; what comes behind is counted and not shown."""

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
    lines that are not shown; cut: the last one, `count` lines more than can be shown."""

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
    left_over = MOST_WORK
    for tag, i1, i2, j1, j2 in _opcodes(before, after):
        if tag == "equal":
            rows += _folded(before, i1, i2, j1, first=i1 == 0, last=i2 == len(before), around=around)
            continue
        removed, added = removed + i2 - i1, added + j2 - j1
        both = min(i2 - i1, j2 - j1)
        for n in range(both):
            words = WORDS.findall(before[i1 + n]), WORDS.findall(after[j1 + n])
            left_over -= _work(*words)
            left, right = _marked(*words, whole=left_over < 0)
            rows.append(Row("changed", Side(i1 + n + 1, left), Side(j1 + n + 1, right)))
        rows += [Row("removed", old=Side(i + 1, (Span(before[i]),))) for i in range(i1 + both, i2)]
        rows += [Row("added", new=Side(j + 1, (Span(after[j]),))) for j in range(j1 + both, j2)]
    if len(rows) > MOST_ROWS:
        rows[MOST_ROWS:] = [Row("cut", count=len(rows) - MOST_ROWS)]
    return Diff(tuple(rows), added, removed)


def _work(before: list[str], after: list[str]) -> int:
    """How long difflib may take at worst. It looks past what is frequent in sequences of 200 and more."""
    shorter = min(len(before), len(after))
    return len(before) * len(after) * shorter // (100 if len(after) >= 200 else 1)


def _opcodes(before: list[str], after: list[str]) -> Iterator[tuple[str, int, int, int, int]]:
    """As difflib's; equal beginnings and ends are taken off first, and what is between may be one replacement."""
    shorter = min(len(before), len(after))
    start = next((n for n, (x, y) in enumerate(zip(before, after, strict=False)) if x != y), shorter)
    pairs = zip(reversed(before), reversed(after), strict=False)
    end = min(shorter - start, next((n for n, (x, y) in enumerate(pairs) if x != y), shorter))
    i, j = len(before) - end, len(after) - end
    if start:
        yield "equal", 0, start, 0, start
    old, new = before[start:i], after[start:j]
    if _work(old, new) <= MOST_WORK:
        for tag, i1, i2, j1, j2 in SequenceMatcher(None, old, new).get_opcodes():
            yield tag, start + i1, start + i2, start + j1, start + j2
    elif old or new:
        yield "replace", start, i, start, j
    if end:
        yield "equal", i, len(before), j, len(after)


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


def _marked(before: list[str], after: list[str], *, whole: bool) -> tuple[tuple[Span, ...], tuple[Span, ...]]:
    """Two lines' words, with those that differ marked, or all of them."""
    if whole:
        return (Span("".join(before), True),), (Span("".join(after), True),)
    left: list[Span] = []
    right: list[Span] = []
    for tag, i1, i2, j1, j2 in SequenceMatcher(None, before, after).get_opcodes():
        if i1 < i2:
            left.append(Span("".join(before[i1:i2]), tag != "equal"))
        if j1 < j2:
            right.append(Span("".join(after[j1:j2]), tag != "equal"))
    return tuple(left), tuple(right)
