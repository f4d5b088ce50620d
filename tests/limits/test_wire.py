"""What clients are told of limits: OpenAI's headers and codes, and the frames of the websocket."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from channels.testing import WebsocketCommunicator
from django.test import AsyncClient
from django.utils import timezone

from chatapp.api import consumers
from chatapp.api.rate_headers import duration
from chatapp.limits import rates
from chatapp.limits.models import TEAM, Meter
from chatapp.limits.rates import Rate
from chatapp.limits.selectors import month_of
from chatapp.tenants.access import Access
from tests.chat.conftest import ScriptedWorker, Team
from tests.limits.conftest import Allow

pytestmark = pytest.mark.django_db(transaction=True)
BODY = {"model": "default", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 5}


async def post(secret: str, body: dict[str, Any] | None = None) -> Any:
    headers = {"Authorization": f"Bearer {secret}"}
    return await AsyncClient().post(
        "/v1/chat/completions", json.dumps(body or BODY), content_type="application/json", headers=headers
    )


def use_up(team: Team, what: str, amount: int) -> None:
    assert rates.take([Rate(what, str(team.tenant.pk), TEAM, amount)], amount) is None


@pytest.mark.parametrize(
    ("seconds", "said"), [(0, "0ms"), (0.1204, "120ms"), (1, "1s"), (59.6, "1m0s"), (61, "1m1s"), (360, "6m0s")]
)
def test_durations_are_said_as_openai_says_them(seconds: float, said: str) -> None:
    assert duration(seconds) == said


async def test_every_answer_to_a_key_says_how_much_is_left(transactional_db: None, team: Team, allow: Allow) -> None:
    await sync_to_async(allow)(requests_per_minute=10, tokens_per_minute=1000)
    for address, status in (("/v1/models", 200), ("/v1/models/none", 404), ("/v1/nothing", 404)):
        reply = await AsyncClient().get(address, headers={"Authorization": f"Bearer {team.secret}"})
        assert reply.status_code == status
        told = {name: reply[f"x-ratelimit-{name}"] for name in ("limit-requests", "remaining-tokens", "reset-tokens")}
        assert told == {"limit-requests": "10", "remaining-tokens": "1000", "reset-tokens": "0ms"}
    reply = await post(team.secret, {"messages": []})
    assert (reply.status_code, reply["x-ratelimit-remaining-requests"]) == (400, "10")
    reply = await post("octv_wrong")
    assert reply.status_code == 401
    assert not [name for name in reply.headers if name.lower().startswith("x-ratelimit")]


async def test_without_limits_by_the_minute_there_are_no_headers(transactional_db: None, team: Team) -> None:
    reply = await AsyncClient().get("/v1/models", headers={"Authorization": f"Bearer {team.secret}"})
    assert reply.status_code == 200
    assert not [name for name in reply.headers if name.lower().startswith("x-ratelimit")]


async def test_a_used_up_minute_is_a_429_with_the_time_to_wait(
    transactional_db: None, team: Team, allow: Allow
) -> None:
    await sync_to_async(allow)(requests_per_minute=10, tokens_per_minute=1000)
    use_up(team, "requests", 10)
    reply = await post(team.secret)
    error = reply.json()["error"]
    assert (reply.status_code, error["code"], error["type"]) == (429, "rate_limit_exceeded", "rate_limit_error")
    assert 1 <= int(reply["Retry-After"]) <= 121
    assert f"Try again in {reply['Retry-After']} s" in error["message"]
    assert (reply["x-ratelimit-remaining-requests"], reply["x-ratelimit-limit-requests"]) == ("0", "10")
    assert reply["x-ratelimit-reset-requests"].endswith("s")
    assert "x-should-retry" not in reply


async def test_a_used_up_month_is_called_insufficient_quota_and_not_to_be_retried(
    transactional_db: None, team: Team, allow: Allow
) -> None:
    await sync_to_async(allow)(tokens_per_month=100, requests_per_minute=10)
    await Meter.objects.acreate(tenant=team.tenant, month=month_of(timezone.now()), subject=TEAM, used=79)
    reply = await post(team.secret)
    error = reply.json()["error"]
    assert (reply.status_code, error["code"], error["type"]) == (429, "insufficient_quota", "insufficient_quota")
    assert reply["x-should-retry"] == "false"
    assert reply["x-ratelimit-remaining-requests"] == "9"


async def opened(monkeypatch: pytest.MonkeyPatch, access: Access) -> tuple[WebsocketCommunicator, Callable[[], Any]]:
    async def let_in(self: Any) -> Access:
        return access

    monkeypatch.setattr(consumers.ApiConsumer, "let_in", let_in)
    socket = WebsocketCommunicator(consumers.ApiConsumer.as_asgi(), "/ws/v1")
    await socket.connect()

    async def read() -> dict[str, Any]:
        return json.loads(await socket.receive_from(timeout=10))

    return socket, read


async def test_a_socket_is_told_its_limits_and_after_each_create_what_is_left(
    transactional_db: None, team: Team, allow: Allow, worker: ScriptedWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    await sync_to_async(allow)(requests_per_minute=2, tokens_per_minute=1000, output_tokens=50)
    socket, read = await opened(monkeypatch, team.key)
    assert (await read())["limits"]["plan"] == {
        "requests_per_minute": 2,
        "tokens_per_minute": 1000,
        "output_tokens": 50,
    }
    left = []
    for n in range(3):
        await socket.send_to(json.dumps({"type": "response.create", "input": f"Hi {n}", "event_id": str(n)}))
        frames = [await read(), await read()]
        kinds = {frame["type"]: frame for frame in frames}
        told = {rate["name"]: rate for rate in kinds["rate_limits.updated"]["rate_limits"]}
        left.append(told["requests"]["remaining"])
        assert told["requests"]["limit"] == 2
        assert 0 < told["requests"]["reset_seconds"] <= 120
        if n < 2:
            assert kinds["response.queued"]["event_id"] == str(n)
            assert told["tokens"]["remaining"] < 1000
    assert left == [1, 0, 0]
    error = kinds["error"]
    assert (error["code"], error["retryable"], error["event_id"]) == ("rate_limit_exceeded", True, "2")
    assert error["retry_after_ms"] >= 1000
    await socket.disconnect()
