"""Two teams, what others export, and clients that carry files."""

from __future__ import annotations

import io
import json
from datetime import UTC, datetime
from typing import Any

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client

from chatapp.chat.models import Conversation, Generation, Message, MessageRole, MessageStatus, State
from chatapp.tenants.access import Access
from tests.chat.conftest import server, strangers, team, worker
from tests.data.conftest import a_chat, logged_in

__all__ = ["a_chat", "logged_in", "server", "strangers", "team", "worker"]

ODD = (
    "line\u2028separator, \U0001f468\u200d\U0001f469\u200d\U0001f467, \u202eright to left, e\u0301, \u4e2d\u6587\r\n"
    "</script>\n~~~\n```python\nprint('open')"
)


@pytest.fixture(autouse=True)
def _commits(monkeypatch: pytest.MonkeyPatch) -> None:
    """What waits for a commit happens at once: these tests run inside a transaction."""
    from django.db import transaction

    monkeypatch.setattr(transaction, "on_commit", lambda work, **kw: work())


def a_tree(access: Access) -> Conversation:
    """A question, two answers to it, and a question behind the first one; the second answer is the newest."""
    at = datetime(2026, 3, 1, 12, 0, 0, 123456, tzinfo=UTC)
    chat = Conversation.objects.create(
        tenant=access.tenant, user=access.user, title="Ebbe & Flut: was?", created_at=at, updated_at=at, model="small",
        starred_at=at, params={"temperature": 0.5},
    )  # fmt: skip
    chat.tags.create(name="see")

    def say(parent: Message | None, role: str, text: str, minute: int) -> Message:
        message = Message.objects.create(
            conversation=chat, parent=parent, role=role, text=text, created_at=at.replace(minute=minute)
        )
        if role == MessageRole.ASSISTANT:
            Generation.objects.create(
                tenant=access.tenant, principal=access.principal, conversation=chat, message=message, model="small",
                state=State.FINISHED, deadline=at, prompt_tokens=7, cached_tokens=3, completion_tokens=minute,
                finish_reason="stop",
            )  # fmt: skip
        return message

    question = say(None, "user", ODD, 1)
    first = say(question, "assistant", "The moon pulls.", 2)
    say(first, "user", "And the sun?", 3)
    second = say(question, "assistant", "# Both\n\npull.", 4)
    Message.objects.filter(pk=second.pk).update(status=MessageStatus.STOPPED)
    return chat


def upload(client: Client, slug: str, content: Any, name: str = "x.bin", **query: str) -> Any:
    data = content if isinstance(content, bytes) else json.dumps(content).encode()
    address = f"/api/t/{slug}/imports?" + "&".join(f"{key}={value}" for key, value in query.items())
    return client.post(address, {"file": SimpleUploadedFile(name, data)})


def as_file(content: Any) -> io.BytesIO:
    return io.BytesIO(content if isinstance(content, bytes) else json.dumps(content).encode())


def node(key: str, parent: str | None, role: str = "", text: Any = "", at: float | None = None, **more: Any) -> Any:
    """A node of ChatGPT's mapping; without a role one without a message."""
    if not role:
        return {"id": key, "message": None, "parent": parent, "children": []}
    content = {"content_type": "text", "parts": [text]} if isinstance(text, str) else text
    message = {"id": key, "author": {"role": role}, "create_time": at, "content": content, "recipient": "all", **more}
    return {"id": key, "message": message, "parent": parent, "children": []}


def chatgpt(title: str = "Tides", key: str = "c-1", **fields: Any) -> dict[str, Any]:
    """As ChatGPT exports it: a root without a message, a hidden system message, a tool in the middle of an answer, a
    thought, an image, and a second answer."""
    nodes = [
        node("root", None),
        node("sys", "root", "system", "Hidden.", metadata={"is_visually_hidden_from_conversation": True}),
        node("q", "sys", "user", "Why tides?", 1_700_000_000.5),
        node("think", "q", "assistant", {"content_type": "thoughts", "thoughts": []}, 1_700_000_001),
        node("call", "think", "assistant", {"content_type": "code", "text": "s()"}, 1_700_000_002, recipient="browser"),
        node("tool", "call", "tool", "results", 1_700_000_003),
        node(
            "a", "tool", "assistant", "The moon \ue200cite\ue202turn0\ue201pulls.", 1_700_000_004,
            metadata={"model_slug": "gpt-4o"},
        ),
        node("a2", "a", "assistant", "And the sun.", 1_700_000_005),
        node("b", "q", "assistant", "Gravity.", 1_700_000_006),
        node(
            "q2", "a2", "user",
            {"content_type": "multimodal_text", "parts": [{"content_type": "image_asset_pointer"}, "And this?"]},
            1_700_000_007, metadata={"attachments": [{"name": "sea.png"}]},
        ),
    ]  # fmt: skip
    return {
        "title": title, "create_time": 1_700_000_000.5, "update_time": 1_700_000_010.25, "conversation_id": key,
        "mapping": {one["id"]: one for one in nodes}, "current_node": "q2", "is_archived": True, **fields,
    }  # fmt: skip


def open_webui(**fields: Any) -> dict[str, Any]:
    def say(key: str, parent: str | None, role: str, content: str, **more: Any) -> dict[str, Any]:
        at = 1_720_000_000 + int(key)
        return {
            "id": key,
            "parentId": parent,
            "childrenIds": [],
            "role": role,
            "content": content,
            "timestamp": at,
            **more,
        }

    thought = '<details type="reasoning" done="true"><summary>Thought</summary>\n> hm\n</details>\n'
    said = {
        "1": say("1", None, "user", "Hi", files=[{"type": "file", "name": "notes.txt"}]),
        "2": say("2", "1", "assistant", f"{thought}Hello.", model="llama3:8b"),
        "3": say("3", "1", "assistant", "Hey", model="qwen", done=False),
    }
    chat = {"title": "Greeting", "models": ["llama3:8b"], "history": {"messages": said, "currentId": "2"}}
    return {
        "id": "w-1", "user_id": "u", "title": "Greeting", "updated_at": 1_720_000_009, "created_at": 1_720_000_000,
        "pinned": True, "archived": False, "meta": {"tags": ["small talk"]},
        "chat": chat, **fields,
    }  # fmt: skip
