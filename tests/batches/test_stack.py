"""A batch on the running product, by OpenAI's own client: real engine, recorder, Celery, killed in the middle."""

from __future__ import annotations

import io
import json
import os
import signal
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import httpx
import openai
import psutil
import pytest
from standardwebhooks import Webhook

from tests.batches.conftest import jsonl, line
from tests.stack import Stack, wait_for
from tests.webhooks.conftest import Receiver, listening

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]
TEAM = 1
ITEMS = 24


def celery_worker(stack: Stack) -> int:
    """The process that works, and not the one that watches over it."""
    for child in psutil.Process(stack.process.pid).children(recursive=True):
        try:
            words = child.cmdline()
        except psutil.Error:
            continue
        if "celery" in words and "worker" in words and "ops.child" not in words:
            return child.pid
    return 0


@pytest.fixture
def receiver() -> Any:
    with listening() as kept:
        yield kept


@contextmanager
def owner_api(stack: Stack) -> Iterator[httpx.Client]:
    """The team's administration by its owner's session."""
    team = stack.demo["tenants"][TEAM]
    with httpx.Client(base_url=stack.url, timeout=30) as http:
        page = http.get("/accounts/login/")
        assert page.status_code == 200
        token = http.cookies["csrftoken"]
        who = {"login": team["admin"]["email"], "password": team["admin"]["password"], "csrfmiddlewaretoken": token}
        assert http.post("/accounts/login/", data=who, headers={"Referer": stack.url}).status_code == 302
        http.headers["X-CSRFToken"] = http.cookies["csrftoken"]
        http.headers["Referer"] = stack.url
        yield http


def asked_by_batches(stack: Stack) -> int:
    """Other tests have batches in this product, too."""
    with closing(sqlite3.connect(stack.data / "db.sqlite3")) as database:
        (asked,) = database.execute(
            "SELECT count(*) FROM chat_generation WHERE idempotency_key LIKE 'batch-%'"
        ).fetchone()
    return int(asked)


def test_a_batch_is_answered_once_and_in_full_though_its_worker_is_killed_and_a_webhook_tells_of_its_end(
    stack: Stack, receiver: Receiver
) -> None:
    before = asked_by_batches(stack)
    slug = stack.demo["tenants"][TEAM]["slug"]
    with owner_api(stack) as http:
        made = http.post(f"/api/t/{slug}/webhooks", json={"url": receiver.url, "events": ["batch.completed"]})
        assert made.status_code == 201, made.text
        secret, webhook = made.json()["secret"], made.json()["webhook"]["id"]
    client = openai.OpenAI(base_url=f"{stack.url}/v1", api_key=stack.key(TEAM), max_retries=0)
    lines = [line(f"item-{n}", f"Count to {n}.", max_tokens=24, temperature=0) for n in range(ITEMS)]
    file = client.files.create(file=("in.jsonl", io.BytesIO(jsonl(*lines))), purpose="batch")
    batch = client.batches.create(
        input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h"
    )  # fmt: skip

    def done() -> int:
        counts = client.batches.retrieve(batch.id).request_counts
        return counts.completed if counts is not None else 0

    wait_for(lambda: done() >= 4, 90)
    pid = celery_worker(stack)
    assert pid
    os.kill(pid, signal.SIGKILL)
    assert done() < ITEMS, "it was killed in the middle"
    # A chat of the same team gets its answer beside it, and soon.
    began = time.monotonic()
    chat = client.chat.completions.create(
        model="default", messages=[{"role": "user", "content": "Say hello."}], max_tokens=8
    )  # fmt: skip
    assert chat.choices[0].message.content
    took = time.monotonic() - began
    end: Any = wait_for(lambda: (found := client.batches.retrieve(batch.id)).status == "completed" and found, 150, 0.2)
    assert end.request_counts.to_dict() == {"total": ITEMS, "completed": ITEMS, "failed": 0}
    found = [json.loads(entry) for entry in client.files.content(end.output_file_id).content.splitlines()]
    assert [entry["custom_id"] for entry in found] == [f"item-{n}" for n in range(ITEMS)]
    texts = {entry["response"]["body"]["choices"][0]["message"]["content"] for entry in found}
    assert all(texts)
    assert len({entry["response"]["request_id"] for entry in found}) == ITEMS
    with closing(sqlite3.connect(stack.data / "db.sqlite3")) as database:
        (left,) = database.execute("SELECT count(*) FROM batches_batchitem").fetchone()
    assert asked_by_batches(stack) - before == ITEMS, "nothing was answered twice"
    assert left == 0
    assert took < 30, "chats go before"
    wait_for(lambda: receiver.got, 30)
    payload = Webhook(secret).verify(receiver.got[0].body, receiver.got[0].headers)
    assert (payload["type"], payload["data"]["id"]) == ("batch.completed", batch.id)
    with owner_api(stack) as http:
        assert http.delete(f"/api/t/{slug}/webhooks/{webhook}").status_code == 204
