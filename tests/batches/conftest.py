"""Batches of a team's key, carried on by hand: no broker, a scripted worker, a real Redis."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from typing import Any

import pytest

from chatapp.batches import running, services, tasks
from chatapp.batches.models import Batch
from chatapp.files import services as files
from chatapp.files.models import StoredFile
from tests.chat.conftest import ScriptedWorker, Team, record, server, strangers, team, worker
from tests.files.conftest import folder

__all__ = ["folder", "record", "server", "strangers", "team", "worker"]

CHAT = "/v1/chat/completions"


def line(custom_id: str, text: str = "Hi", url: str = CHAT, **body: Any) -> dict[str, Any]:
    asked = {"messages": [{"role": "user", "content": text}], **body} if url == CHAT else {"prompt": text, **body}
    return {"custom_id": custom_id, "method": "POST", "url": url, "body": asked}


def jsonl(*lines: Any) -> bytes:
    texts = [entry if isinstance(entry, bytes) else json.dumps(entry).encode() for entry in lines]
    return b"\n".join(texts) + b"\n"


def upload(team: Team, *lines: Any) -> StoredFile:
    return files.store(access=team.key, name="requests.jsonl", content=io.BytesIO(jsonl(*lines)), purpose="batch")


def go(batch: Batch) -> Batch:
    running.advance(str(batch.pk))
    batch.refresh_from_db()
    return batch


def file_of(key: Any) -> list[dict[str, Any]]:
    with files.open_file(StoredFile.objects.get(pk=key)) as opened:
        return [json.loads(entry) for entry in opened.read().splitlines()]


@pytest.fixture(autouse=True)
def handed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was handed to Celery: ids."""
    kept: list[str] = []
    monkeypatch.setattr(tasks.advance, "apply_async", lambda args, retry: kept.append(args[0]))
    return kept


@pytest.fixture
def begun(team: Team) -> Callable[..., Batch]:
    def begin(*lines: Any, endpoint: str = CHAT, **more: Any) -> Batch:
        file = upload(team, *lines)
        return services.create(
            access=team.key, input_file_id=file.public_id, endpoint=endpoint, completion_window="24h", **more
        )

    return begin


@pytest.fixture
def finish(worker: ScriptedWorker, record: Callable[[], int]) -> Callable[..., Batch]:
    """Answer all that comes, one after the other, until the batch is over."""

    def to_end(batch: Batch, *texts: str) -> Batch:
        for _ in range(50):
            if not go(batch).unfinished:
                return batch
            worker.answer(*(texts or ("Hel", "lo")))
            record()
        raise AssertionError(f"it goes on for ever: {batch.status}")

    return to_end
