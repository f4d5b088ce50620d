"""ChatGPT's data export: conversations.json is a list of conversations, each a `mapping` of nodes by their ids.

A node has a parent, children, and a message or none; a message has an author with a role, and a content whose
content_type says what its parts are. Shown in a chat is what users and the assistant have said to each other.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

from django.utils.translation import gettext as _

from chatapp.chat.models import MessageRole
from chatapp.chat.trees import Tree
from chatapp.moving.found import Found, Node, Unreadable, found, grow, moment, names_of, text_of

# References to what a search has found, which only its own page can resolve.
REFERENCES = re.compile("\ue200[^\ue200\ue201]*\ue201")
THOUGHTS = frozenset({"thoughts", "reasoning_recap"})
CONTEXT = frozenset({"user_editable_context", "model_editable_context"})


def looks_like(raw: dict[str, Any]) -> bool:
    return isinstance(raw.get("mapping"), dict)


def read(raw: dict[str, Any]) -> Found:
    """Raises Unreadable."""
    left_out: Counter[str] = Counter()
    nodes = [_node(str(key), value, left_out) for key, value in raw["mapping"].items()]
    tree = Tree(
        title=text_of(raw.get("title")),
        messages=(),
        created_at=moment(raw.get("create_time")),
        updated_at=moment(raw.get("update_time")) or moment(raw.get("create_time")),
        archived_at=moment(raw.get("update_time")) if raw.get("is_archived") is True else None,
        starred_at=moment(raw.get("update_time")) if raw.get("is_starred") is True else None,
    )
    return found(
        text_of(raw.get("conversation_id") or raw.get("id")), tree, grow(nodes, left_out, joined=True), left_out
    )


def _node(key: str, value: Any, left_out: Counter[str]) -> Node:
    if not isinstance(value, dict):
        raise Unreadable(_("One of its messages is none."))
    parent = value.get("parent")
    parent = str(parent) if parent else None
    message = value.get("message")
    if not isinstance(message, dict):
        return Node(key, parent, None)
    author = message.get("author") if isinstance(message.get("author"), dict) else {}
    content = message.get("content") if isinstance(message.get("content"), dict) else {}
    known = message.get("metadata") if isinstance(message.get("metadata"), dict) else {}
    assert isinstance(author, dict)
    assert isinstance(content, dict)
    assert isinstance(known, dict)
    role, kind = author.get("role"), text_of(content.get("content_type"))
    text = _text(content, left_out)
    hidden = known.get("is_visually_hidden_from_conversation") is True or kind in CONTEXT
    if role == MessageRole.ASSISTANT and message.get("recipient", "all") not in ("all", None):
        role = "tool"
    if role == "tool" and not hidden:
        left_out["tools"] += 1
    elif kind in THOUGHTS:
        left_out["thoughts"] += 1
        hidden = True
    if hidden or role not in (MessageRole.USER, MessageRole.ASSISTANT):
        return Node(key, parent, None)
    told: dict[str, Any] = {}
    if text_of(known.get("model_slug"), 120) and role == MessageRole.ASSISTANT:
        told["model"] = text_of(known["model_slug"], 120)
    if names := names_of(known.get("attachments")):
        told["files"] = names
    return Node(key, parent, role, text, moment(message.get("create_time")), told=told)


def _text(content: dict[str, Any], left_out: Counter[str]) -> str:
    if content.get("content_type") == "code" and isinstance(content.get("text"), str):
        return f"```\n{content['text']}\n```"
    texts = []
    parts = content.get("parts")
    for part in parts if isinstance(parts, list) else [content.get("text")]:
        if isinstance(part, str):
            texts.append(part)
        elif isinstance(part, dict) and isinstance(part.get("text"), str):
            texts.append(part["text"])  # what was said aloud
        elif isinstance(part, dict):
            left_out["images" if "image" in str(part.get("content_type")) else "parts"] += 1
    return REFERENCES.sub("", "\n\n".join(text for text in texts if text))
