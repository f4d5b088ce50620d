"""Two teams with chats, a real server, and a data folder of their own."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.utils import timezone

from chatapp.audit.models import AuditEntry
from chatapp.chat.models import Conversation, Generation, Message, MessageRole, MessageStatus, State
from chatapp.data import tasks
from chatapp.tenants.access import Access
from tests.chat.conftest import Team, make_team, record, server, strangers, team, worker

__all__ = ["record", "server", "strangers", "team", "worker"]


@pytest.fixture(autouse=True)
def data_folder(tmp_path: Path, settings: Any) -> Path:
    settings.DATA = tmp_path / "data"
    settings.OCTAVO_PROMPT_STORE = tmp_path / "data" / "prompts"
    options = {**settings.FILES["OPTIONS"], "location": tmp_path / "data" / "files"}
    settings.STORAGES = {**settings.STORAGES, "files": {**settings.FILES, "OPTIONS": options}}
    return tmp_path / "data"


class Sent:
    """What was handed to Celery, in order; `run` does it, and what it hands on."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, tuple[Any, ...]]] = []

    def run(self, most: int = 100) -> None:
        for _ in range(most):
            if not self.calls:
                return
            task, args = self.calls.pop(0)
            task.run(*args)
        raise AssertionError("it goes on for ever")


@pytest.fixture(autouse=True)
def sent(monkeypatch: pytest.MonkeyPatch) -> Sent:
    """No broker: tasks are kept for the test to run."""
    kept = Sent()
    for task in (tasks.export, tasks.delete_tenant, tasks.leave):
        monkeypatch.setattr(task, "delay", lambda *args, task=task: kept.calls.append((task, args)))
        monkeypatch.setattr(
            task, "apply_async", lambda args, countdown=0, task=task: kept.calls.append((task, tuple(args)))
        )
    return kept


def a_chat(access: Access, *texts: str, days_ago: float = 0, **fields: Any) -> Conversation:
    """A finished conversation: questions and answers in turns, with what the last one used."""
    when = timezone.now() - timedelta(days=days_ago)
    conversation = Conversation.objects.create(
        tenant=access.tenant, user=access.user, key=access.key, title=texts[0][:100], created_at=when, updated_at=when,
        **fields,
    )  # fmt: skip
    parent = None
    for index, text in enumerate(texts):
        role = MessageRole.ASSISTANT if index % 2 else MessageRole.USER
        parent = Message.objects.create(
            conversation=conversation, parent=parent, role=role, text=text, status=MessageStatus.DONE,
            created_at=when + timedelta(seconds=index),
        )  # fmt: skip
    Generation.objects.create(
        tenant=access.tenant, principal=access.principal, conversation=conversation, message=parent, model="m",
        state=State.FINISHED, created_at=when, ended_at=when, deadline=when, prompt_tokens=7, completion_tokens=5,
        digest="d" * 64, idempotency_key=f"k{conversation.pk}", finish_reason="stop",
    )  # fmt: skip
    return conversation


def logged_in(access: Access) -> Client:
    client = Client()
    client.force_login(access.user, backend="django.contrib.auth.backends.ModelBackend")  # type: ignore[arg-type]
    return client


@pytest.fixture
def written(transactional_db: None) -> Iterator[tuple[Team, Team]]:
    """The two teams in a database that is really written to, for what needs commits, VACUUM or other processes."""
    yield make_team("acme"), make_team("other")
    _empty_the_log()


def _empty_the_log() -> None:
    """Emptying the tables after a test would be refused for the log's."""
    guard: Any = import_module("chatapp.audit.migrations.0002_append_only")
    with connection.schema_editor() as editor:
        guard.unguard(None, editor)
    AuditEntry.objects.all().delete()
    with connection.schema_editor() as editor:
        guard.guard(None, editor)
