"""The registry of actions knows all that the code records, in words; what it does not know is readable still."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from chatapp.audit.actions import ACTIONS, matching, title, topics

ROOT = Path(__file__).resolve().parents[2]
# record itself, and the functions that pass one of their arguments on to it.
RECORDERS = ("record", "_record", "_note", "_password", "_factor", "_end", "_note_member")


def recorded() -> Iterator[tuple[str, str]]:
    """(file, action) of every call that records, whatever chooses between several."""
    for path in (ROOT / "chatapp").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call) or not node.args:
                continue
            name = ast.unparse(node.func).split(".")[-1]
            if name not in RECORDERS:
                continue
            for part in (part for argument in node.args for part in ast.walk(argument)):
                if isinstance(part, ast.Constant) and isinstance(part.value, str) and "." in part.value:
                    yield path.name, part.value


def test_every_action_that_is_recorded_has_words() -> None:
    found = set(recorded())
    assert {"key.created", "break_glass.read", "audit.exported"} <= {action for _, action in found}
    assert {(file, action) for file, action in found if action not in ACTIONS} == set(), "say it in audit/actions.py"


def test_actions_are_named_by_topic_and_what_happened_and_their_words_are_distinct() -> None:
    assert all(re.fullmatch(r"[a-z_]+\.[a-z_]+", action) and len(action) <= 60 for action in ACTIONS)
    assert len(set(ACTIONS.values())) == len(ACTIONS)
    assert [topic for topic, _ in topics()] == sorted({action.split(".")[0] for action in ACTIONS})


def test_an_unknown_action_is_readable() -> None:
    assert title("oven.pre_heated") == "Oven: pre heated"
    assert title("strange") == "Strange"
    assert title("") == ""


def test_actions_are_found_by_their_words() -> None:
    assert "key.rotated" in matching("ROTATED an")
    assert matching("no such words") == []
