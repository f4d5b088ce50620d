"""Open WebUI's export: a list of chats, each with `chat.history.messages` by id, and `currentId`; old ones have a plain
list in `chat.messages` alone."""

from __future__ import annotations

from collections import Counter
from typing import Any

from django.utils.translation import gettext as _

from chatapp.chat.models import MessageRole, MessageStatus
from chatapp.chat.trees import Tree
from chatapp.moving.found import Found, Node, Unreadable, found, grow, moment, names_of, text_of

# What a model thought, folded into its answer.
THOUGHTS = ('<details type="reasoning"', "</details>")


def looks_like(raw: dict[str, Any]) -> bool:
    chat = raw.get("chat", raw)
    return isinstance(chat, dict) and (isinstance(chat.get("history"), dict) or _is_plain(chat.get("messages")))


def _is_plain(messages: Any) -> bool:
    return isinstance(messages, list) and all(isinstance(one, dict) and "content" in one for one in messages)


def read(raw: dict[str, Any]) -> Found:
    """Raises Unreadable."""
    chat = raw.get("chat", raw)
    left_out: Counter[str] = Counter()
    history = chat.get("history")
    by_id = history.get("messages") if isinstance(history, dict) else None
    if isinstance(by_id, dict) and by_id:
        nodes = [_node(str(key), value, left_out) for key, value in by_id.items()]
    elif isinstance(chat.get("messages"), list):
        nodes = []
        for number, value in enumerate(chat["messages"]):
            before = str(number - 1) if number else None
            nodes.append(_node(str(number), value, left_out, parent=before, is_line=True))
    else:
        nodes = []
    updated = moment(raw.get("updated_at")) or moment(chat.get("timestamp"))
    about = raw.get("meta") if isinstance(raw.get("meta"), dict) else {}
    assert isinstance(about, dict)
    tags = about.get("tags") or chat.get("tags")
    tree = Tree(
        title=text_of(raw.get("title")) or text_of(chat.get("title")),
        messages=(),
        created_at=moment(raw.get("created_at")) or moment(chat.get("timestamp")) or updated,
        updated_at=updated,
        starred_at=updated if raw.get("pinned") is True else None,
        archived_at=updated if raw.get("archived") is True else None,
        tags=[name for name in map(text_of, tags[:50]) if name] if isinstance(tags, list) else (),
    )
    return found(text_of(raw.get("id")), tree, grow(nodes, left_out), left_out)


def _node(key: str, value: Any, left_out: Counter[str], parent: str | None = None, is_line: bool = False) -> Node:
    if not isinstance(value, dict):
        raise Unreadable(_("One of its messages is none."))
    if not is_line:
        parent = str(value["parentId"]) if value.get("parentId") else None
    role = value.get("role")
    if role not in (MessageRole.USER, MessageRole.ASSISTANT):
        left_out["system"] += int(role == "system")
        return Node(key, parent, None)
    text = _text(value.get("content"), left_out)
    told: dict[str, Any] = {}
    if role == MessageRole.ASSISTANT:
        text, thoughts = _without_thoughts(text)
        left_out["thoughts"] += thoughts
        if model := text_of(value.get("model"), 120):
            told["model"] = model
    if names := names_of(value.get("files")):
        told["files"] = names
    unfinished = role == MessageRole.ASSISTANT and value.get("done") is False
    status = MessageStatus.STOPPED if unfinished else MessageStatus.DONE
    return Node(key, parent, role, text, moment(value.get("timestamp")), status=status, told=told)


def _without_thoughts(text: str) -> tuple[str, int]:
    kept, at, count = [], 0, 0
    while (begin := text.find(THOUGHTS[0], at)) >= 0 and (end := text.find(THOUGHTS[1], begin)) >= 0:
        kept.append(text[at:begin])
        at, count = end + len(THOUGHTS[1]), count + 1
    return ("".join([*kept, text[at:]]).lstrip() if count else text), count


def _text(content: Any, left_out: Counter[str]) -> str:
    """A text, or a list of parts as OpenAI's API has it."""
    if isinstance(content, str):
        return content
    texts = []
    for part in content if isinstance(content, list) else []:
        if isinstance(part, dict) and isinstance(part.get("text"), str):
            texts.append(part["text"])
        elif isinstance(part, dict):
            left_out["images" if "image" in str(part.get("type")) else "parts"] += 1
    return "\n\n".join(texts)
