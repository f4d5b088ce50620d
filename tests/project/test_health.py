"""Health: alive is not ready, and what is missing is named."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import DatabaseError
from django.test import Client

from chatapp import health
from tests.chat.conftest import ScriptedWorker

pytestmark = pytest.mark.django_db


def test_a_process_that_answers_is_healthy_whatever_else_is_away(client: Client, settings: Any) -> None:
    settings.REDIS_URL = "unix:///nowhere/valkey.sock"
    assert client.get("/healthz").status_code == 200


def test_ready_needs_a_live_worker(client: Client, worker: ScriptedWorker) -> None:
    reply = client.get("/readyz")
    assert (reply.status_code, reply.json()["missing"]) == (503, ["worker"])
    worker.beat()
    reply = client.get("/readyz")
    assert (reply.status_code, reply.json()["missing"]) == (200, [])
    assert "no-cache" in reply["Cache-Control"]


def test_ready_needs_redis(client: Client, settings: Any) -> None:
    settings.REDIS_URL = "unix:///nowhere/valkey.sock"
    reply = client.get("/readyz")
    assert (reply.status_code, reply.json()["missing"]) == (503, ["redis", "worker"])


def test_ready_needs_the_database(client: Client, worker: ScriptedWorker, monkeypatch: pytest.MonkeyPatch) -> None:
    worker.beat()

    class Away:
        def cursor(self) -> Any:
            raise DatabaseError("away")

    monkeypatch.setattr(health, "connection", Away())
    reply = client.get("/readyz")
    assert (reply.status_code, reply.json()["missing"]) == (503, ["database"])
