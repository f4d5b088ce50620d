"""Our own export of conversations as JSON, version 1: how it is written, and how it is read again.

    {"format": "octavo.conversations", "version": 1, "exported_at": …, "team": its slug, "conversations": [
      {"id", "title", "created_at", "updated_at", "starred_at", "archived_at", "tags": [names], "assistant": its slug,
       "model", "params": {…}, "messages": [
         {"id", "parent_id", "role": "user" | "assistant", "status": "done" | "stopped" | "failed", "text",
          "created_at", "model", "finish_reason", "files": [names],
          "usage": {"prompt_tokens", "cached_tokens", "completion_tokens"}}]}]}

Times are ISO 8601 in UTC. `parent_id` null: nothing was said before it; siblings are edits and other answers. An
answer that is being given while it is exported is left out. Whoever reads a file looks at `format` and `version`.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from django.db.models import QuerySet
from django.utils import timezone
from django.utils.translation import gettext as _

from chatapp.chat.choices import kept
from chatapp.chat.models import Conversation, Generation, Message, MessageRole, MessageStatus
from chatapp.chat.params import sampling_params
from chatapp.chat.trees import Tree
from chatapp.errors import BadInput
from chatapp.files.selectors import with_files
from chatapp.moving.found import Found, Node, Unreadable, found, grow, moment, names_of, text_of

FORMAT = "octavo.conversations"
VERSION = 1
STATUSES = frozenset({MessageStatus.DONE, MessageStatus.STOPPED, MessageStatus.FAILED})
USAGE = ("prompt_tokens", "cached_tokens", "completion_tokens")


# --- writing ------------------------------------------------------------------------------------------------------


def with_all(conversations: QuerySet[Conversation]) -> QuerySet[Conversation]:
    return conversations.select_related("assistant", "tenant", "imported").prefetch_related("tags")


def said_in(conversation: Conversation) -> list[Message]:
    """All of its messages, oldest first, but for an answer that is being given."""
    found = conversation.messages.exclude(status=MessageStatus.RUNNING).select_related("generation")
    return list(found.prefetch_related(with_files()))


def told_of(conversation: Conversation, message: Message) -> dict[str, Any]:
    """Model, usage, finish_reason and files by name, of this product's own answers and of imported ones."""
    imported = getattr(conversation, "imported", None)
    told = dict(imported.told.get(str(message.pk), {})) if imported is not None else {}
    if names := [one.file.name for one in message.attachments.all()]:
        told["files"] = names
    generation: Generation | None = getattr(message, "generation", None)
    if generation is not None:
        told["model"] = generation.model
        told["finish_reason"] = generation.finish_reason or None
        told["usage"] = {name: getattr(generation, name) for name in USAGE}
    return told


def document(conversation: Conversation) -> dict[str, Any]:
    return {
        "id": str(conversation.pk),
        "title": conversation.title,
        "created_at": _time(conversation.created_at),
        "updated_at": _time(conversation.updated_at),
        "starred_at": _time(conversation.starred_at),
        "archived_at": _time(conversation.archived_at),
        "tags": [tag.name for tag in conversation.tags.all()],
        "assistant": conversation.assistant.slug if conversation.assistant else None,
        "model": conversation.model,
        "params": conversation.params,
        "messages": [_message(conversation, message) for message in said_in(conversation)],
    }


def _message(conversation: Conversation, message: Message) -> dict[str, Any]:
    told = told_of(conversation, message)
    return {
        "id": str(message.pk),
        "parent_id": str(message.parent_id) if message.parent_id else None,
        "role": message.role,
        "status": message.status,
        "text": message.text,
        "created_at": _time(message.created_at),
        "model": told.get("model"),
        "finish_reason": told.get("finish_reason"),
        "usage": told.get("usage"),
        "files": told.get("files", []),
    }


def written(team: str, documents: Iterator[dict[str, Any]]) -> Iterator[str]:
    """The file, a conversation at a time."""
    head = {"format": FORMAT, "version": VERSION, "exported_at": _time(timezone.now()), "team": team}
    yield json.dumps(head, ensure_ascii=False)[:-1] + ', "conversations": ['
    before = "\n"
    for one in documents:
        # Half a character is no UTF-8; a database of another make may have let one in.
        yield before + json.dumps(one, ensure_ascii=False).encode("utf-8", "replace").decode()
        before = ",\n"
    yield "\n]}\n"


def _time(moment: datetime | None) -> str | None:
    return moment.astimezone(UTC).isoformat() if moment is not None else None


# --- reading ------------------------------------------------------------------------------------------------------


def check(head: dict[str, Any]) -> bool:
    """Whether this is such a file. Raises Unreadable for one of a version that is not known here."""
    if head.get("format") != FORMAT:
        return False
    if head.get("version") != VERSION:
        raise Unreadable(_("The file was made by another version of Octavo, which writes it differently."))
    return True


def read(raw: dict[str, Any]) -> Found:
    """`assistant` is left to the caller, as is whether the model is the team's. Raises Unreadable."""
    rows = raw.get("messages")
    if not isinstance(rows, list):
        raise Unreadable(_("It has no list of messages."))
    left_out: Counter[str] = Counter()
    tags = raw.get("tags")
    tree = Tree(
        title=text_of(raw.get("title")),
        messages=(),
        created_at=moment(raw.get("created_at")),
        updated_at=moment(raw.get("updated_at")) or moment(raw.get("created_at")),
        starred_at=moment(raw.get("starred_at")),
        archived_at=moment(raw.get("archived_at")),
        tags=[name for name in map(text_of, tags[:50]) if name] if isinstance(tags, list) else (),
        model=text_of(raw.get("model"), 120),
        params=_params(raw.get("params")),
    )
    one = found(text_of(raw.get("id")), tree, grow([_node(row) for row in rows], left_out), left_out)
    return replace(one, assistant=text_of(raw.get("assistant"), 60))


def _node(row: Any) -> Node:
    if not isinstance(row, dict) or not isinstance(row.get("text"), str) or not isinstance(row.get("id"), str):
        raise Unreadable(_("One of its messages is none."))
    told: dict[str, Any] = {}
    for name, longest in (("model", 120), ("finish_reason", 20)):
        if value := text_of(row.get(name), longest):
            told[name] = value
    usage = row.get("usage")
    if isinstance(usage, dict):
        told["usage"] = {name: usage[name] if _is_count(usage.get(name)) else 0 for name in USAGE}
    if names := names_of(row.get("files")):
        told["files"] = names
    role = row.get("role")
    status = text_of(row.get("status"))
    parent = row.get("parent_id")
    return Node(
        key=row["id"],
        parent=str(parent) if parent is not None else None,
        role=role if role in (MessageRole.USER, MessageRole.ASSISTANT) else None,
        text=row["text"],
        at=moment(row.get("created_at")),
        status=status if status in STATUSES else MessageStatus.DONE,
        told=told,
    )


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**31


def _params(value: Any) -> dict[str, Any]:
    """As far as a conversation keeps them and they are such: a file may hold anything."""
    if not isinstance(value, dict):
        return {}
    value = kept(value)
    try:
        sampling_params(value, most_tokens=1_000_000)
    except BadInput:
        return {}
    return value
