"""A conversation's tree as a whole: read along one branch, or written at once from somewhere else.

What is written here was said before: in another program, in another account, in a conversation that a colleague has
shared. No engine is asked and nothing is used up. Times are those it was said at, but never in the future, and never
before what they follow: readers and prompts go by them.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from django.db import transaction
from django.utils import timezone

from chatapp.chat.models import (
    LONGEST_TITLE,
    Conversation,
    Message,
    MessageRole,
    MessageStatus,
    Tag,
    TitledBy,
)
from chatapp.chat.text import joined, one_line, settled, title
from chatapp.errors import NotFound
from chatapp.ids import new_id, parse_id
from chatapp.prompts.models import SystemPrompt
from chatapp.tenants.access import Access

MOMENT = timedelta(microseconds=1)
NEW = "New chat"


@dataclass(frozen=True)
class Said:
    """A message: `key` names it in its tree, `parent` is the key of the message that it follows."""

    key: str
    parent: str | None
    role: str
    text: str
    at: datetime | None = None
    status: str = MessageStatus.DONE


@dataclass(frozen=True)
class Tree:
    """`messages`: parents before their children. Times that are None are now's. `tags`: as chatapp.chat.tags
    makes them."""

    title: str
    messages: Sequence[Said]
    created_at: datetime | None = None
    updated_at: datetime | None = None
    starred_at: datetime | None = None
    archived_at: datetime | None = None
    tags: Sequence[str] = ()
    model: str = ""
    params: dict[str, Any] = field(default_factory=dict)
    assistant: SystemPrompt | None = None


def branch(messages: Sequence[Message], leaf_id: object = None) -> list[Message]:
    """From the root to the message named, else to the newest, as it is read: an answer and what goes on with it are one
    message. Raises NotFound for one of no such conversation."""
    by_id = {message.pk: message for message in messages}
    if leaf_id is None:
        at = messages[-1] if messages else None
    else:
        at = by_id.get(parse_id(leaf_id))
        if at is None:
            raise NotFound("There is no such message in this conversation.", param="leaf_id")
    path = []
    while at is not None:
        path.append(at)
        at = by_id.get(at.parent_id) if at.parent_id else None
    read: list[Message] = []
    for message in reversed(path):
        if read and read[-1].role == message.role == MessageRole.ASSISTANT:
            whole = copy(read.pop())  # nothing of a row is overwritten
            whole.text, whole.status = joined(whole.text, message.text), message.status
            read.append(whole)
        else:
            read.append(message)
    return read


def clean_title(text: str, said: Sequence[Said] = ()) -> str:
    """One line without what turns its direction; without any, the first words of the first question."""
    words = one_line(settled(text))
    if not words:
        words = title(next((one.text for one in said if one.role == MessageRole.USER and one.text.strip()), NEW))
    return words if len(words) <= LONGEST_TITLE else words[: LONGEST_TITLE - 1] + "…"


@transaction.atomic
def plant(access: Access, tree: Tree) -> tuple[Conversation, dict[str, uuid.UUID]]:
    """The conversation, the asker's own, and the new ids by the keys of the tree. Nobody's open page is told."""
    now = timezone.now()
    conversation = Conversation(
        tenant=access.tenant,
        user=access.user,
        key=access.key,
        title=clean_title(tree.title, tree.messages),
        titled_by=TitledBy.PERSON if tree.title.strip() else TitledBy.WORDS,
        created_at=_past(tree.created_at, now),
        updated_at=_past(tree.updated_at, now),
        starred_at=tree.starred_at and _past(tree.starred_at, now),
        archived_at=tree.archived_at and _past(tree.archived_at, now),
        model=tree.model,
        params=tree.params,
        assistant=tree.assistant,
    )
    rows: dict[str, Message] = {}
    for one in tree.messages:
        parent = rows[one.parent] if one.parent is not None else None
        at = _past(one.at, now) if one.at is not None else parent.created_at if parent else conversation.created_at
        if parent is not None and at <= parent.created_at:
            at = parent.created_at + MOMENT
        rows[one.key] = Message(
            id=new_id(), conversation=conversation, parent=parent, role=one.role, text=settled(one.text),
            status=one.status, created_at=at,
        )  # fmt: skip
    # In bulk, which sends no signals: thousands may come at once, and whoever brings them tells of them once.
    Conversation.objects.bulk_create([conversation])
    Message.objects.bulk_create(rows.values(), batch_size=500)
    Tag.objects.bulk_create(Tag(conversation=conversation, name=name) for name in tree.tags)
    return conversation, {key: row.pk for key, row in rows.items()}


def _past(moment: datetime | None, now: datetime) -> datetime:
    return now if moment is None else min(moment, now)
