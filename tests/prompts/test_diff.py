"""A diff tells the whole of both texts, and marks what differs and nothing else."""

from __future__ import annotations

import time

from hypothesis import given, settings
from hypothesis import strategies as st

from chatapp.prompts.diff import MOST_ROWS, Diff, Side, diff

TEXTS = st.lists(st.sampled_from(["", "a", "b", "a b c", "a  b", "e\u0301", "\u00e9", "x\u2028y"]), max_size=30).map(
    "\n".join
)


def line(side: Side) -> str:
    return "".join(span.text for span in side.spans)


def sides(found: Diff) -> tuple[list[Side], list[Side]]:
    return [r.old for r in found.rows if r.old], [r.new for r in found.rows if r.new]


@settings(max_examples=200, deadline=None)
@given(TEXTS, TEXTS)
def test_each_side_is_the_text_itself_with_its_line_numbers(old: str, new: str) -> None:
    found = diff(old, new, around=None)
    for side, text in zip(sides(found), (old, new), strict=True):
        assert "\n".join(map(line, side)) == text
        assert [one.number for one in side] == list(range(1, len(side) + 1))
    assert found.is_empty == (old == new)
    for row in found.rows:
        if row.kind == "same":
            assert row.old is not None
            assert row.new is not None
            assert line(row.old) == line(row.new)
    shown = [(left.number, line(left)) for _, left, _, _ in found.unified if left]
    assert shown == [(side.number, line(side)) for side in sides(found)[0]], "unified keeps the order"


def test_the_changed_words_of_a_line_are_marked() -> None:
    (row,) = diff("Answer in two short lines.", "Answer in three short lines.").rows
    assert row.kind == "changed"
    assert row.old is not None
    assert row.new is not None
    assert [span.text for span in row.old.spans if span.changed] == ["two"]
    assert [span.text for span in row.new.spans if span.changed] == ["three"]


def test_what_looks_the_same_and_is_not_is_shown() -> None:
    assert diff("caf\u00e9", "cafe\u0301").removed == 1
    assert diff("a b", "a\u00a0b").added == 1


def test_equal_lines_far_from_a_change_are_folded() -> None:
    old = "\n".join(map(str, range(100)))
    found = diff(old, old.replace("50", "fifty"))
    assert [row.kind for row in found.rows] == ["folded", *["same"] * 3, "changed", *["same"] * 3, "folded"]
    assert [row.count for row in found.rows if row.kind == "folded"] == [47, 46]


def test_in_the_unified_form_what_went_stands_before_what_came() -> None:
    kinds = [kind for kind, *_ in diff("a\nb\nc", "x\ny\nz\nq\nc").unified]
    assert kinds == ["removed", "removed", "added", "added", "added", "added", "same"]


def test_the_longest_texts_take_no_more_than_a_moment() -> None:
    texts = [
        ("word " * 20_000, "word other " * 9_000),
        ("x\n" * 50_000, "x\ny\n" * 25_000),
        ("".join(f"{n}\n" for n in range(20_000)), "".join(f"{n * 2}\n" for n in range(16_000))),
        ("x\n" * 900, "x\ny\n" * 450),
        (("a b " * 24 + "\n") * 1000, ("b a c " * 16 + "\n") * 1000),
    ]
    for old, new in texts:
        began = time.process_time()
        found = diff(old, new)
        assert not found.is_empty
        assert len(found.unified) <= 2 * len(found.rows) <= 2 * (MOST_ROWS + 1)
        assert time.process_time() - began < 5
