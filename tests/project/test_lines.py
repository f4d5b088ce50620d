"""JSON in one line stays in one line, whoever reads it, and is the same JSON (chatapp.lines)."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from chatapp.lines import one_line

TEXTS = st.text(st.one_of(st.characters(exclude_categories=["Cs"]), st.sampled_from('\x85\u2028\u2029\x1c\n\\"é')))
VALUES = st.recursive(TEXTS | st.integers(-(2**50), 2**50) | st.none(), lambda more: st.dictionaries(TEXTS, more))


@given(VALUES)
def test_any_value_is_one_line_and_comes_back(value: Any) -> None:
    line = one_line(value)
    assert len(line.decode().splitlines()) == 1
    assert json.loads(line) == value
