"""A Redis that takes connections and says nothing: whoever asks hears of it within seconds."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.test import Client

from chatapp.streaming import connection
from tests.chat.conftest import Team

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def silent(server: Any, settings: Any) -> Iterator[None]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        settings.REDIS_URL = f"redis://127.0.0.1:{listening.getsockname()[1]}/0"
        yield
    connection._clients.pop(settings.REDIS_URL, None)


def took(ask: Callable[[], Any]) -> tuple[Any, float]:
    began = time.monotonic()
    return ask(), time.monotonic() - began


@pytest.mark.usefixtures("silent")
def test_ready_says_within_seconds_that_redis_is_away(client: Client) -> None:
    assert client.get("/healthz").status_code == 200  # views are imported with the first request
    reply, first = took(lambda: client.get("/readyz"))
    assert (reply.status_code, reply.json()["missing"]) == (503, ["redis", "worker"])
    assert first < connection.ANSWER_S + 2
    reply, second = took(lambda: client.get("/readyz"))
    assert reply.status_code == 503
    assert second < 1, "for a moment nobody waits for it again"


@pytest.mark.usefixtures("silent")
def test_a_question_is_taken_or_refused_within_seconds_and_is_not_lost(client: Client, team: Team) -> None:
    client.force_login(team.member.user)  # type: ignore[arg-type]
    page, waited = took(lambda: client.get(f"/t/{team.tenant.slug}/"))
    assert page.status_code == 200
    assert waited < connection.ANSWER_S + 2
    reply, waited = took(
        lambda: client.post(
            "/v1/tickets", content_type="application/json", headers={"Authorization": f"Bearer {team.secret}"}
        )
    )
    assert waited < connection.ANSWER_S + 2
    assert (reply.status_code, reply.json()["error"]["code"]) == (503, "unavailable")
    assert int(reply["Retry-After"]) > 0
