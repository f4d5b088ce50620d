"""An overloaded machine says so on every surface, in the form that clients there act on, and recovers by itself."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Iterator
from typing import Any

import httpx2
import openai
import pytest
from asgiref.sync import sync_to_async

from chatapp.api import frames, seats
from chatapp.api.seats import Seats
from chatapp.chat.models import Generation, Message
from chatapp.errors import TooMany
from chatapp.limits.models import Reservation
from chatapp.streaming import submit
from engine.protocol import Part
from tests.api.inprocess import Engine, client, engine, http, make, team
from tests.api.sockets import line
from tests.chat.conftest import Team, record, server, worker

__all__ = ["client", "engine", "http", "make", "record", "server", "team", "worker"]

pytestmark = pytest.mark.django_db(transaction=True)
HELLO: Any = [{"role": "user", "content": "Hello"}]
ASKED = {
    "/v1/chat/completions": {"messages": HELLO},
    "/v1/completions": {"prompt": "Hello"},
    "/v1/responses": {"input": "Hello"},
}


@pytest.fixture(autouse=True)
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(submit, "_short_until", 0.0)


@pytest.fixture
def full_redis(server: Any) -> Iterator[None]:
    """Nine tenths of what Redis may use are used."""
    info = server.info("memory")
    server.config_set("maxmemory", int((info["used_memory"] - info["mem_not_counted_for_evict"]) / 0.9))
    yield
    server.config_set("maxmemory", 0)


async def nothing_is_left() -> bool:
    return not any([await model.objects.aexists() for model in (Generation, Message, Reservation)])


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("address", ASKED)
async def test_http_answers_503_with_retry_after_in_openais_shape_and_keeps_nothing(
    http: httpx2.AsyncClient, settings: Any, address: str, stream: bool
) -> None:
    settings.OCTAVO_QUEUE_IN_ALL = 0
    reply = await http.post(address, json={"model": "default", "stream": stream, **ASKED[address]})
    assert reply.status_code == 503
    assert 5 <= int(reply.headers["retry-after"]) < 15
    error = reply.json()["error"]
    assert (error["type"], error["code"]) == ("server_error", "overloaded")
    assert f"Try again in {reply.headers['retry-after']} s." in error["message"]
    assert "x-should-retry" not in reply.headers
    assert await nothing_is_left()


async def test_a_tenant_s_own_bound_is_429_and_the_machine_s_is_503(
    http: httpx2.AsyncClient, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(request: Any, most: int) -> int:
        raise submit.QueueFull(request.tenant, most)

    with monkeypatch.context() as patched:
        patched.setattr("chatapp.chat.queueing.enqueue", full)
        own = await http.post("/v1/chat/completions", json={"messages": HELLO})
    settings.OCTAVO_QUEUE_IN_ALL = 0
    machine = await http.post("/v1/chat/completions", json={"messages": HELLO})
    assert [own.status_code, machine.status_code] == [429, 503]
    assert own.headers["retry-after"] == "5"


async def test_a_full_redis_is_refused_before_the_database_is_written_to(
    http: httpx2.AsyncClient, full_redis: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    await asyncio.sleep(0.25)  # a look at the memory counts for 0.2 s
    first = await http.post("/v1/chat/completions", json={"messages": HELLO})
    monkeypatch.setattr("chatapp.chat.queueing.enqueue", None)  # it is not even asked
    second = await http.post("/v1/chat/completions", json={"messages": HELLO})
    for reply in (first, second):
        assert (reply.status_code, reply.json()["error"]["code"]) == (503, "overloaded")
    assert await nothing_is_left()


async def test_openais_client_comes_back_by_itself_when_there_is_room(
    client: openai.AsyncOpenAI, engine: Engine, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(submit, "RETRY_AFTER_S", 1)
    monkeypatch.setattr(submit, "SPREAD_S", 1)
    settings.OCTAVO_QUEUE_IN_ALL = 0
    asking = asyncio.create_task(
        client.with_options(max_retries=1).chat.completions.create(model="default", messages=HELLO)
    )
    await asyncio.sleep(0.5)
    settings.OCTAVO_QUEUE_IN_ALL = 10
    await engine.say([Part(text="Here again", token_ids=[1])])
    assert (await asking).choices[0].message.content == "Here again"


async def test_a_socket_says_when_to_try_again_and_stays(team: Team, settings: Any) -> None:
    async with line(team.secret) as socket:
        settings.OCTAVO_QUEUE_IN_ALL = 0
        await socket.send(type="response.create", event_id="e1", input=HELLO)
        error = (await socket.read_until("error"))[-1]
        assert (error["event_id"], error["code"], error["retryable"]) == ("e1", "overloaded", True)
        assert 5000 <= error["retry_after_ms"] < 15_000
        settings.OCTAVO_QUEUE_IN_ALL = 10
        assert (await socket.create(event_id="e2", input=HELLO))["event_id"] == "e2"


# --- sockets --------------------------------------------------------------------------------------------------------


async def test_sockets_of_one_key_are_bounded_and_a_closed_one_makes_room(
    team: Team, make: Callable[[str], Team], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chatapp.api.consumers.seats", Seats())
    monkeypatch.setattr(seats, "MOST_OF_A_KEY", 2)
    secret, other = team.secret, (await sync_to_async(make)("birch")).secret
    async with line(secret) as first:
        async with line(secret), line(other) as others:
            assert others.hello["type"] == "session.created", "another key has its own"
            async with line(secret) as third:
                assert (third.hello["code"], third.hello["retryable"]) == ("too_many_sockets", True)
                assert third.hello["retry_after_ms"] == 5000
                assert await third.closed() == frames.CLOSE_RATE
        async with line(secret) as again:
            assert again.hello["type"] == "session.created"
        await first.send(type="ping")
        assert (await first.read())["type"] == "pong", "those that are open stay"


async def test_sockets_of_a_process_are_bounded_and_it_says_when_to_come_back(
    team: Team, monkeypatch: pytest.MonkeyPatch, settings: Any
) -> None:
    monkeypatch.setattr("chatapp.api.consumers.seats", Seats())
    settings.OCTAVO_MAX_SOCKETS = 1
    async with line(team.secret) as first:
        async with line("nobody's key") as second:
            assert (second.hello["code"], second.hello["retryable"]) == ("overloaded", True)
            assert 5000 <= second.hello["retry_after_ms"] < 15_000
            assert await second.closed() == frames.CLOSE_TRY_LATER
        await first.send(type="ping")
        assert (await first.read())["type"] == "pong"


def test_a_seat_whose_socket_was_forgotten_is_free_again(team: Team) -> None:
    class Socket:
        pass

    kept, holder = Seats(), Socket()
    leave = kept.take(holder, team.key)
    kept.take(Socket(), team.key)  # nobody holds on to it
    gc.collect()
    assert kept._all == 1
    leave()
    leave()
    assert (kept._all, dict(kept._of)) == (0, {})


def test_a_process_takes_no_more_sockets_than_it_may_open_files(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    settings.OCTAVO_MAX_SOCKETS = 10_000
    monkeypatch.setattr("resource.getrlimit", lambda _: (1024, 4096))
    assert seats.most_in_all() == 1024 - seats.OTHER_FILES


def test_a_team_s_sockets_are_bounded_whoever_opens_them(team: Team, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seats, "MOST_OF_A_TEAM", 2)
    kept, holders = Seats(), [type("Socket", (), {})() for _ in range(3)]
    kept.take(holders[0], team.key)
    kept.take(holders[1], team.member)
    with pytest.raises(TooMany, match="Your team has 2 sockets open"):
        kept.take(holders[2], team.member)
