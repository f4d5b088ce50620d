"""POST /v1/tickets, and sockets that are opened with what it gives."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
import redis
from django.test import AsyncClient

from chatapp.api import tickets
from chatapp.tenants.access import access_for_key
from chatapp.tenants.models import ApiKey, KeyScope
from chatapp.tenants.services import create_api_key, revoke_api_key
from tests.api.sockets import Voice, line, until, voice
from tests.chat.conftest import Team, server, strangers, team

__all__ = ["server", "strangers", "team", "voice"]
pytestmark = pytest.mark.django_db(transaction=True)


async def post(secret: str, body: Any = None, **headers: str) -> Any:
    content = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    return await AsyncClient().post(
        "/v1/tickets", data=content, content_type="application/json",
        headers={"Authorization": f"Bearer {secret}", **headers},
    )  # fmt: skip


async def issued(secret: str, body: Any = None) -> dict[str, Any]:
    reply = await post(secret, body)
    assert reply.status_code == 200, reply.content
    return dict(reply.json())


async def refused(ticket: str, **options: Any) -> tuple[str, int]:
    async with line(subprotocols=("octavo.v1", f"octavo.ticket.{ticket}"), **options) as socket:
        assert socket.hello["type"] == "error"
        assert socket.hello["message"]
        return socket.hello["code"], await socket.closed()


async def test_a_ticket_opens_one_socket_as_its_key(team: Team, voice: Voice) -> None:
    told = await issued(team.secret)
    assert told["object"] == "ticket"
    assert told["subprotocols"] == ["octavo.v1", f"octavo.ticket.{told['ticket']}"]
    assert team.secret not in json.dumps(told)
    async with line(subprotocols=tuple(told["subprotocols"])) as socket:
        assert socket.hello["type"] == "session.created"
        queued = await socket.create(input="Hello.")
        voice.answer("Hi.")
        assert (await socket.ended(queued["response_id"]))[-1]["type"] == "response.completed"
    async with line(team.secret) as socket:
        await socket.send(type="response.resume", response_id=queued["response_id"])
        assert (await socket.ended(queued["response_id"]))[-1]["type"] == "response.completed", "it is the key's own"


async def test_a_used_an_old_and_an_unknown_ticket_close_with_4401_and_words(team: Team, server: redis.Redis) -> None:
    ticket = (await issued(team.secret))["ticket"]
    async with line(subprotocols=(f"octavo.ticket.{ticket}",)) as socket:
        assert socket.hello["type"] == "session.created"
    assert await refused(ticket) == ("invalid_ticket", 4401)
    for wrong in ("octt_nobody", "", "é", team.secret, "octt_" + "x" * 10_000):
        code, close = await refused(wrong)
        assert (code in ("invalid_ticket", "unauthenticated"), close) == (True, 4401), wrong
    old = (await issued(team.secret))["ticket"]
    (key,) = server.keys("octavo:ticket:*")  # type: ignore[misc]
    assert 0 < server.ttl(key) <= tickets.TTL_S  # type: ignore[operator]
    assert old.encode() not in key + (server.get(key) or b"")  # type: ignore[operator]
    server.pexpire(key, 1)
    await until(lambda: not server.exists(key))
    assert await refused(old) == ("invalid_ticket", 4401)


async def test_beside_a_key_in_the_address_a_ticket_opens_nothing(team: Team) -> None:
    """That key has leaked: whoever sends it must hear of it."""
    ticket = (await issued(team.secret))["ticket"]
    assert await refused(ticket, query=f"?key={team.secret}") == ("key_in_address", 4401)
    async with line(subprotocols=(f"octavo.ticket.{ticket}",)) as socket:
        assert socket.hello["type"] == "session.created", "and the ticket is not used up"


async def test_of_two_that_use_a_ticket_at_once_one_gets_in(team: Team) -> None:
    ticket = (await issued(team.secret))["ticket"]

    async def try_it() -> str:
        async with line(subprotocols=(f"octavo.ticket.{ticket}",)) as socket:
            return str(socket.hello["type"])

    assert sorted(await asyncio.gather(*(try_it() for _ in range(5)))) == ["error"] * 4 + ["session.created"]


async def test_what_its_key_may_not_its_ticket_may_not_either(team: Team) -> None:
    """Looked at when the ticket is used: revoked meanwhile, another network, another page."""
    ticket = (await issued(team.secret))["ticket"]
    await asyncio.to_thread(revoke_api_key, key=team.key.key)
    assert await refused(ticket) == ("invalid_api_key", 4401)

    def limited(**limits: Any) -> str:
        key, secret = create_api_key(tenant=team.tenant, name=f"limited {sorted(limits)}")
        access = access_for_key(secret)
        made = tickets.issue(access=access, allowed_origins=[])
        ApiKey.objects.filter(pk=key.pk).update(**limits)
        return made.ticket

    there = await asyncio.to_thread(limited, allowed_networks=["203.0.113.0/24"])
    assert await refused(there) == ("address_not_allowed", 4403)
    page = await asyncio.to_thread(limited, allowed_origins=["https://app.example"])
    assert await refused(page, headers=((b"origin", b"https://evil.example"),)) == ("origin_not_allowed", 4403)


async def test_a_ticket_may_be_for_some_pages_only_and_a_wrong_one_uses_it_up(team: Team) -> None:
    body = {"allowed_origins": ["https://App.example"]}
    for origin in (b"https://evil.example", None):
        ticket = (await issued(team.secret, body))["ticket"]
        headers = ((b"origin", origin),) if origin else ()
        assert await refused(ticket, headers=headers) == ("origin_not_allowed", 4403)
        assert await refused(ticket, headers=((b"origin", b"https://app.example"),)) == ("invalid_ticket", 4401)
    ticket = (await issued(team.secret, body))["ticket"]
    async with line(
        subprotocols=(f"octavo.ticket.{ticket}",), headers=((b"origin", b"https://app.example"),)
    ) as socket:
        assert socket.hello["type"] == "session.created"


async def test_revoking_the_key_ends_the_socket_that_its_ticket_has_opened(team: Team) -> None:
    """P12."""
    ticket = (await issued(team.secret))["ticket"]
    async with line(subprotocols=(f"octavo.ticket.{ticket}",)) as socket:
        await asyncio.to_thread(revoke_api_key, key=team.key.key)
        assert await socket.closed() == 4440


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (b"{", None),
        (b"[]", None),
        (b"7", None),
        (b"\xff", None),
        (b"[" * 5000, None),
        ({"allowed_origins": "https://app.example"}, "allowed_origins"),
        ({"allowed_origins": [5]}, "allowed_origins[...]"),
        ({"allowed_origins": ["app.example"]}, "allowed_origins"),
        ({"allowed_origins": ["https://app.example/path"]}, "allowed_origins"),
        ({"allowed_origins": [f"https://a{n}.example" for n in range(51)]}, "allowed_origins"),
    ],
    ids=lambda value: str(value)[:24],
)
async def test_a_wrong_body_is_400_with_the_field(team: Team, body: Any, param: str | None) -> None:
    reply = await post(team.secret, body)
    assert reply.status_code == 400
    error = reply.json()["error"]
    assert error["message"]
    if param is not None:
        assert error["param"].startswith(param.partition("[")[0])


async def test_who_may_ask_for_tickets(team: Team, strangers: Team, monkeypatch: pytest.MonkeyPatch) -> None:
    assert (await post("octv_wrong")).status_code == 401
    assert (await AsyncClient().post("/v1/tickets")).status_code == 401
    assert (await AsyncClient().get("/v1/tickets")).status_code == 405
    admin = (await asyncio.to_thread(create_api_key, tenant=team.tenant, name="a", scopes=(KeyScope.ADMIN,)))[1]
    assert (await post(admin)).status_code == 403, "a key that may not chat needs no sockets"
    monkeypatch.setattr(tickets, "MOST_A_MINUTE", 3)
    statuses = [(await post(team.secret)).status_code for _ in range(5)]
    assert statuses == [200] * 3 + [429] * 2
    reply = await post(team.secret)
    assert int(reply["Retry-After"]) >= 1
    assert (await post(strangers.secret)).status_code == 200, "the limit is a key's own"
