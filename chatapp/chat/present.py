"""Conversations and messages as JSON for the browser: the pages' first data and the pages' API give the same shapes.

`status` of an answer is its generation's state; text and `last_seq` are what the database has, which for an answer
that still runs is nothing (-1): the reader resumes it over the socket.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from chatapp.chat import selectors
from chatapp.chat.models import Conversation, Generation, Message, MessageRole
from chatapp.chat.text import joined
from chatapp.files import present
from chatapp.prompts import selectors as prompts
from chatapp.tenants.access import Access

RETRYABLE = frozenset({"timeout", "interrupted", "failed"})
BY_DEFAULT = {
    "refused": "The engine refused this message.",
    "timeout": "This answer took too long and was ended.",
    "interrupted": "The engine stopped while it answered.",
    "failed": "The engine failed while it answered.",
}


def conversations(
    access: Access, before: str | None = None, limit: int = 50, filters: selectors.Filters | None = None
) -> dict[str, Any]:
    """A page of the asker's conversations, newest first: {items, next}."""
    page = selectors.conversations(access, before=before, limit=limit, filters=filters)
    return {"items": [conversation_item(item) for item in page.items], "next": page.next}


def conversation(access: Access, conversation_id: object) -> dict[str, Any]:
    """A conversation with all its messages, oldest first. Raises NotFound."""
    found = selectors.conversation(access, conversation_id)
    items = [message(one) for one in selectors.messages(access, conversation_id)]
    tenant = access.tenant
    model = found.model if found.model in tenant.models else tenant.model
    return {
        **conversation_item(found),
        "model": model,
        "params": found.params,
        "assistant": answerer(found),
        "messages": items,
    }


def as_read(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Of a conversation's messages the branch of the newest, an answer and what goes on with it as one."""
    by_id = {message["id"]: message for message in messages}
    path = []
    message = messages[-1] if messages else None
    while message is not None:
        path.append(message)
        message = by_id.get(message["parent_id"])
    read: list[dict[str, Any]] = []
    for message in reversed(path):
        if read and read[-1]["role"] == message["role"] == MessageRole.ASSISTANT:
            read[-1] = {**read[-1], "text": joined(read[-1]["text"], message["text"])}
        else:
            read.append(message)
    return read


def assistants(access: Access) -> list[dict[str, Any]]:
    """Whom a new chat may choose, the default one marked; one or none: there is no choice."""
    return [
        {"id": str(one.pk), "name": one.name, "description": one.description, "default": one.is_default}
        for one in prompts.choosable(access.tenant)
    ]


def answerer(of: Conversation) -> dict[str, Any] | None:
    """Who answers in a conversation, where somebody was chosen for it; `instead_of` names one that was archived."""
    if of.assistant is None:
        return None
    now = prompts.answering(of.tenant, of.assistant)
    name = now.name if now is not None else ""
    return {"name": name, "instead_of": of.assistant.name if now != of.assistant else None}


def conversation_item(item: Conversation) -> dict[str, Any]:
    running = bool(getattr(item, "running", False))
    return {
        "id": str(item.pk),
        "title": item.title,
        "created_at": item.created_at.isoformat(),
        "updated_at": item.updated_at.isoformat(),
        "running": running,
        "starred_at": item.starred_at.isoformat() if item.starred_at else None,
        "archived_at": item.archived_at.isoformat() if item.archived_at else None,
        "deleted_at": item.deleted_at.isoformat() if item.deleted_at else None,
        "tags": [tag.name for tag in item.tags.all()],
    }


def message(message: Message) -> dict[str, Any]:
    data: dict[str, Any] = {
        "id": str(message.pk),
        "parent_id": str(message.parent_id) if message.parent_id else None,
        "role": message.role,
        "text": message.text,
        "created_at": message.created_at.isoformat(),
    }
    if message.role == MessageRole.USER:
        data["files"] = [present.file(one.file) for one in message.attachments.all()]
    generation: Generation | None = getattr(message, "generation", None)
    if generation is not None:
        data |= answer(generation)
    return data


def answer(generation: Generation) -> dict[str, Any]:
    ended = not generation.unfinished
    return {
        "response_id": str(generation.pk),
        "model": generation.model,
        "status": generation.state,
        "last_seq": generation.last_seq if ended else -1,
        "finish_reason": generation.finish_reason or None,
        "usage": _usage(generation) if ended else None,
        "timing": generation.timing or None,
        "error": _error(generation),
    }


def _usage(generation: Generation) -> dict[str, int]:
    return {
        "prompt_tokens": generation.prompt_tokens,
        "cached_tokens": generation.cached_tokens,
        "shared_tokens": generation.shared_tokens,
        "completion_tokens": generation.completion_tokens,
    }


def _error(generation: Generation) -> dict[str, Any] | None:
    if generation.state not in BY_DEFAULT:
        return None
    return {
        "code": generation.error_code or generation.state,
        "message": generation.error_message or BY_DEFAULT[generation.state],
        "param": generation.error_param or None,
        "retryable": generation.state in RETRYABLE,
    }
