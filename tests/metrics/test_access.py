"""Who may read /metrics: whoever knows its token, and nobody by a session or a key."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client

from chatapp.accounts.models import User
from engine import protocol
from engine.protocol import WorkerDetails
from tests.chat.conftest import ScriptedWorker, Team
from tests.metrics.conftest import TOKEN

pytestmark = pytest.mark.django_db
PAGES = ("/metrics", "/metrics/targets")


@pytest.fixture(autouse=True)
def token(settings: Any) -> None:
    settings.OCTAVO_METRICS_TOKEN = TOKEN


def status(client: Client, path: str, authorization: str | None = None) -> int:
    headers = {} if authorization is None else {"Authorization": authorization}
    return client.get(path, headers=headers).status_code


@pytest.mark.parametrize("path", PAGES)
def test_the_token_opens_them_and_nothing_else_does(client: Client, team: Team, path: str) -> None:
    assert status(client, path, f"Bearer {TOKEN}") == 200
    for wrong in (None, "", "Bearer", "Bearer ", f"Bearer {TOKEN[:-1]}", f"Bearer {TOKEN}x", f"Basic {TOKEN}", TOKEN):
        reply = client.get(path, headers={} if wrong is None else {"Authorization": wrong})
        assert (reply.status_code, reply["WWW-Authenticate"], reply.content) == (401, "Bearer", b""), wrong
    assert status(client, path, f"Bearer {team.secret}") == 401, "a team's key"
    assert team.owner.user is not None
    for user in (team.owner.user, User.objects.create_superuser("op@octavo.test", "a password")):
        client.force_login(user)
        assert status(client, path) == 401, user


@pytest.mark.parametrize("path", PAGES)
def test_they_are_not_there_without_a_token(client: Client, settings: Any, path: str) -> None:
    settings.OCTAVO_METRICS_TOKEN = ""
    for given in (None, "", "Bearer", "Bearer "):
        assert status(client, path, given) == 404


@pytest.mark.parametrize("path", PAGES)
def test_they_are_read_and_not_written_and_never_kept(client: Client, path: str) -> None:
    headers = {"Authorization": f"Bearer {TOKEN}"}
    assert client.post(path, headers=headers).status_code == 405
    assert "no-store" in client.get(path, headers=headers)["Cache-Control"]


def test_targets_are_the_workers_that_have_metrics(client: Client, worker: ScriptedWorker) -> None:
    headers = {"Authorization": f"Bearer {TOKEN}"}
    worker.beat()
    assert client.get("/metrics/targets", headers=headers).json() == []
    details = WorkerDetails(
        id="w1", model="m", context=99, block_size=16, num_blocks=9, pid=1, metrics="engine-1.internal:9100"
    )
    worker.redis.fcall(*protocol.heartbeat("w1", details))
    assert client.get("/metrics/targets", headers=headers).json() == [
        {
            "targets": ["engine-1.internal:9100"],
            "labels": {"__meta_octavo_worker": "w1", "__meta_octavo_model": "m"},
        }
    ]


def test_targets_are_kept_while_redis_is_away(client: Client, settings: Any) -> None:
    """An empty list would end all of them; without an answer Prometheus goes on with those that it knows."""
    settings.REDIS_URL = "unix:///nowhere/valkey.sock"
    assert client.get("/metrics/targets", headers={"Authorization": f"Bearer {TOKEN}"}).status_code == 503
