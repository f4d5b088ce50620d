"""A conversation as a file has it, on its way to a tree of ours. Bounded, and refused in words where it is none.

The readers of the formats make a list of Nodes; `grow` brings them into order. What is not shown in a chat (system
messages, results of tools, thoughts) has role None: what follows it is hung on to what came before it.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from django.utils.translation import gettext as _

from chatapp.chat.models import MessageRole, MessageStatus
from chatapp.chat.text import settled
from chatapp.chat.trees import Said, Tree
from chatapp.cursors import parse_moment

MOST_MESSAGES = 10_000
LONGEST_TEXT = 200_000
ROLES = frozenset(MessageRole.values)
# Seconds above this are milliseconds: it is the year 5138.
MOST_SECONDS = 1e11


class Unreadable(Exception):
    """This conversation cannot be had; the message says why."""


@dataclass(frozen=True)
class Node:
    """`told`: model, usage, finish_reason, files by name, where the file knows them."""

    key: str
    parent: str | None
    role: str | None
    text: str = ""
    at: datetime | None = None
    status: str = MessageStatus.DONE
    told: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Found:
    """`left_out`: what of it the tree does not hold, each with how often; `id` is the one it had where it came from."""

    id: str
    tree: Tree
    told: dict[str, dict[str, Any]]
    left_out: Counter[str]
    # The slug of who answered in it.
    assistant: str = ""

    @property
    def digest(self) -> str:
        return digest(self.tree.messages)


def digest(said: Iterable[Said]) -> str:
    """Of what was said, when, and after what; ids do not count, nor does the order in a file."""
    rows = list(said)
    at = {one.key: one.at.astimezone(UTC).isoformat() if one.at else "" for one in rows}
    lines = sorted("\0".join((one.role, at[one.key], at.get(one.parent or "", ""), one.text)).encode() for one in rows)
    return hashlib.sha256(b"\1".join(lines)).hexdigest()


def grow(nodes: Sequence[Node], left_out: Counter[str], *, joined: bool = False) -> list[Node]:
    """Those that are shown, parents before children. `joined`: an answer in several pieces becomes one.

    Raises Unreadable for messages that follow one another in a circle, or one that is not there.
    """
    if len(nodes) > MOST_MESSAGES:
        raise Unreadable(
            _("It has %(n)d messages; %(most)d can be imported.") % {"n": len(nodes), "most": MOST_MESSAGES}
        )
    by_key = {node.key: node for node in nodes}
    if len(by_key) < len(nodes):
        raise Unreadable(_("Two of its messages have the same id."))
    children: dict[str | None, list[Node]] = {}
    for node in nodes:
        if node.parent is not None and node.parent not in by_key:
            raise Unreadable(_("One of its messages follows a message that is not in it."))
        children.setdefault(node.parent, []).append(node)
    kept: dict[str, Node] = {}
    # What a message stands for where its children look for what they follow: itself, or what it was left out after.
    place: dict[str | None, str | None] = {None: None}
    order = list(children.get(None, []))
    for node in order:  # grows as it goes
        parent = place[node.parent]
        shown = node.role in ROLES and bool(node.text.strip() or node.told.get("files"))
        before = kept.get(parent) if parent is not None else None
        if not shown:
            place[node.key] = parent
        elif joined and before is not None and before.role == node.role and len(children[node.parent]) == 1:
            text = before.text if len(before.text) > LONGEST_TEXT else f"{before.text}\n\n{settled(node.text)}".strip()
            kept[before.key] = replace(before, text=text, told=before.told | node.told)
            place[node.key] = before.key
        else:
            kept[node.key] = replace(node, parent=parent, text=settled(node.text))
            place[node.key] = node.key
        order.extend(children.get(node.key, []))
    if len(order) < len(nodes):
        raise Unreadable(_("Its messages follow one another in a circle."))
    if not kept:
        raise Unreadable(_("Nothing was said in it."))
    return [_fitting(node, left_out) for node in kept.values()]


def _fitting(node: Node, left_out: Counter[str]) -> Node:
    if len(node.text) <= LONGEST_TEXT:
        return node
    left_out["cut"] += 1
    return replace(node, text=node.text[: LONGEST_TEXT - 1] + "…")


def found(source_id: str, tree: Tree, nodes: Sequence[Node], left_out: Counter[str]) -> Found:
    said = [Said(node.key, node.parent, str(node.role), node.text, node.at, node.status) for node in nodes]
    told = {node.key: node.told for node in nodes if node.told}
    left_out["files"] += sum(len(known.get("files", ())) for known in told.values())
    return Found(source_id, replace(tree, messages=said), told, +left_out)


def moment(value: Any) -> datetime | None:
    """Seconds or milliseconds since 1970, or ISO 8601 with a zone; None for anything else."""
    if isinstance(value, str):
        found = parse_moment(value)
        return found if found is not None and found.year >= 1970 else None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value <= 0:
        return None
    seconds = value / 1000 if value > MOST_SECONDS else value
    try:
        return datetime.fromtimestamp(seconds, UTC)
    except (OverflowError, ValueError, OSError):
        return None


def text_of(value: Any, longest: int = 300) -> str:
    return settled(value[:longest]) if isinstance(value, str) else ""


def names_of(value: Any) -> list[str]:
    """The names of files in a list of whatever a program says of files."""
    rows = value if isinstance(value, list) else []
    names = [text_of(one.get("name") or one.get("filename")) if isinstance(one, dict) else text_of(one) for one in rows]
    return [name or "file" for name in names[:100]]
