"""/ws/t/<slug>/memory: who may see what a team has in the engines' memory, and that nothing of others comes there."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import redis
from channels.db import database_sync_to_async
from channels.routing import URLRouter
from channels.testing import WebsocketCommunicator
from django.contrib.auth.models import AnonymousUser
from django.test import Client

from chatapp.accounts.models import User
from chatapp.api import team_memory
from chatapp.api.routing import session_sockets
from chatapp.chat.services import ask
from chatapp.limits.models import Plan, TenantLimits
from chatapp.streaming.tables import tables
from chatapp.tenants.models import KeyScope, Membership, Role
from chatapp.tenants.services import add_member, create_api_key
from engine import occupancy_wire as wire
from engine import protocol
from engine.occupancy_wire import Figures, Row
from tests.api.sockets import until
from tests.chat.conftest import Team, server, strangers, team
from tests.dashboard.frames import FREE, Publisher, cell

__all__ = ["server", "strangers", "team"]
pytestmark = pytest.mark.django_db(transaction=True)

INSTRUCTIONS = cell(wire.CACHED, tenant=0, kind=wire.TEAM, pinned=True)
OURS = cell(tenant=0, refs=1, filled=5)
THEIRS = cell(tenant=1, refs=1)


class Looker:
    def __init__(self, communicator: WebsocketCommunicator) -> None:
        self.communicator = communicator
        self.heard: list[str] = []

    async def read(self, timeout_s: float = 5) -> dict[str, Any]:
        text = await self.communicator.receive_from(timeout=timeout_s)
        self.heard.append(text)
        frame: dict[str, Any] = json.loads(text)
        return frame

    async def until(self, used: int, worker: int = 0) -> dict[str, Any]:
        """The first frame in which so many blocks are in use."""
        while True:
            frame = await self.read()
            engines = frame["engines"]
            if len(engines) > worker and (engines[worker]["memory"] or {}).get("used") == used:
                return frame

    async def closed(self) -> tuple[str, int]:
        """The refusal's code, and what the socket was closed with."""
        code = ""
        while True:
            output = await self.communicator.receive_output(timeout=5)
            if output["type"] == "websocket.close":
                return code, output["code"]
            code = json.loads(output["text"]).get("code", "")


@asynccontextmanager
async def looking(user: Any, slug: str = "acme") -> AsyncIterator[Looker]:
    communicator = WebsocketCommunicator(URLRouter(session_sockets), f"/ws/t/{slug}/memory")
    communicator.scope["user"] = user
    assert (await communicator.connect())[0]
    try:
        yield Looker(communicator)
    finally:
        await communicator.disconnect()


@pytest.fixture
def worker(server: redis.Redis, settings: Any) -> Publisher:
    found = Publisher(server, model=settings.OCTAVO_MODEL_NAMES[0])
    found.beat()
    return found


def row(number: int, tenant: int, blocks: list[int], name: str = "") -> Row:
    return Row(number=number, id=name or f"id-{number}", tenant=tenant, prompt=9, tokens=21, blocks=blocks)


async def test_a_team_sees_its_own_blocks_as_they_change_and_hears_nothing_of_what_others_do(
    team: Team, strangers: Team, worker: Publisher
) -> None:
    """P11."""
    us, them = str(team.tenant.pk), str(strangers.tenant.pk)
    generation = await database_sync_to_async(ask)(access=team.member, text="The vault opens at nine.")
    worker.whole([FREE, INSTRUCTIONS, FREE, FREE, THEIRS], tenants=[us, them], rows=[row(1, 1, [4])])
    async with looking(team.owner.user) as looker:
        (engine,) = (await looker.until(used=0))["engines"]
        assert engine["memory"]["cells"] == [{"kind": "team", "pinned": True}]
        mine = row(2, 0, [0, 2], str(generation.pk))
        worker.change({0: OURS, 2: OURS}, rows=[mine])
        frame = await looker.until(used=2)
        (engine,) = frame["engines"]
        assert engine["memory"]["sequences"] == [
            {"id": str(generation.pk), "prompt": 9, "tokens": 21, "table": [[1, 2]]}
        ]
        assert frame["answers"] == {str(generation.pk): {"kind": "chat", "assistant": "Assistant"}}
        for number in range(3, 8):
            theirs = row(number, 1, [3, 4], f"theirs-{number}")
            figures = Figures(used=number, free=1, of={them: (number, 0, 0, 1, number)})
            worker.change({3: THEIRS, 4: cell(tenant=1, refs=number)}, rows=[theirs], figures=figures)
        await until(lambda: (head := tables().copy("w1").head) is not None and head.number == worker.number)
        assert await looker.communicator.receive_nothing(timeout=2 * team_memory.EVERY_S), "of what only others did"
        worker.change({0: FREE, 2: FREE}, gone=[2])
        await looker.until(used=0)
    said = "".join(looker.heard)
    assert not [word for word in (them, "theirs", "vault", "Other", '"number"', "at_ms") if word in said]


def test_a_program_with_the_right_key_reads_the_same(
    team: Team, strangers: Team, worker: Publisher, server: redis.Redis
) -> None:
    us, them = str(team.tenant.pk), str(strangers.tenant.pk)
    generation = ask(access=team.member, text="The vault opens at nine.")
    worker.whole([OURS, INSTRUCTIONS, THEIRS], tenants=[us, them], rows=[row(1, 1, [2])])
    worker.change({0: OURS}, rows=[row(2, 0, [0], str(generation.pk))])
    Publisher(server, "w2", model=worker.model).beat()
    key = create_api_key(tenant=team.tenant, name="Watcher", scopes=[KeyScope.USAGE])[1]
    reply = Client().get("/api/t/acme/memory", headers={"Authorization": f"Bearer {key}"})
    first, second = reply.json()["engines"]
    assert first["queued"] == second["queued"] == 1
    assert [(run["kind"], run["held"]) for run in first["memory"]["cells"]] == [("team", 0), ("own", 1)]
    (running,) = first["memory"]["sequences"]
    assert (running["id"], running["kind"], running["assistant"]) == (str(generation.pk), "chat", "Assistant")
    assert running["table"] == [[1, 1]]
    assert (second["id"], second["memory"]) == ("w2", None)
    assert them.encode() not in reply.content
    reply = Client().get("/api/t/acme/memory", headers={"Authorization": f"Bearer {team.secret}"})
    assert reply.status_code == 403


async def test_what_waits_of_a_team_for_an_engine_is_counted_and_what_waits_of_others_is_not(
    team: Team, strangers: Team, worker: Publisher, server: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(team_memory, "ENGINES_EVERY_S", 0.2)
    worker.whole([OURS], tenants=[str(team.tenant.pk)], rows=[row(1, 0, [0])])
    asked = database_sync_to_async(ask)
    await asked(access=team.member, text="First.")
    for text in ("First.", "Second.", "Third."):
        await asked(access=strangers.member, text=text)
    async with looking(team.owner.user) as looker:
        assert (await looker.until(used=1))["engines"][0]["queued"] == 1
        await asked(access=team.member, text="Second.")
        assert (await looker.read())["engines"][0]["queued"] == 2
        for _ in range(5):
            server.fcall(*protocol.take("w1", worker.model, 5, []))
        assert (await looker.read())["engines"][0]["queued"] == 0


async def test_a_second_engine_another_model_and_the_quota_of_each(
    team: Team, worker: Publisher, server: redis.Redis, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(team_memory, "ENGINES_EVERY_S", 0.2)
    plan = await Plan.objects.acreate(name="Quarter", kv_share=0.25)
    await TenantLimits.objects.aupdate_or_create(tenant=team.tenant, defaults={"plan": plan})
    us = str(team.tenant.pk)
    worker.whole([OURS, *[FREE] * 99], tenants=[us], rows=[row(1, 0, [0])])
    worker.beat(tenant_blocks=50)
    elsewhere = Publisher(server, "w3", model="not-served")
    elsewhere.whole([OURS], tenants=[us])
    elsewhere.beat()
    async with looking(team.owner.user) as looker:
        (engine,) = (await looker.until(used=1))["engines"]
        assert (engine["id"], engine["model"], engine["quota"]) == ("w1", settings.OCTAVO_MODEL_NAMES[0], 25)
        other = Publisher(server, "w2", model=worker.model)
        other.whole([OURS, OURS], tenants=[us], rows=[row(1, 0, [0, 1])])
        other.beat(tenant_blocks=1)
        frame = await looker.until(used=2, worker=1)
        assert [one["quota"] for one in frame["engines"]] == [25, 1]
        server.fcall(*protocol.retire("w2"))
        while len((await looker.read())["engines"]) > 1:
            pass


async def test_without_an_engine_there_is_none_and_one_that_has_said_nothing_yet_has_no_memory(
    team: Team, server: redis.Redis, worker: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(team_memory, "ENGINES_EVERY_S", 0.2)
    server.flushdb()
    server.function_load(protocol.LIBRARY_SOURCE.read_text(), replace=True)
    async with looking(team.owner.user) as looker:
        assert await looker.read() == {"type": "memory", "engines": [], "answers": {}}
        worker.beat()
        (engine,) = (await looker.read())["engines"]
        assert (engine["id"], engine["memory"]) == ("w1", None)
        await looker.communicator.send_to(text_data='{"type": "ping"}')
        assert await looker.read() == {"type": "pong"}


async def test_only_who_may_read_the_dashboard_gets_in(team: Team, strangers: Team, worker: Publisher) -> None:
    async with looking(team.member.user) as looker:
        assert await looker.closed() == ("not_allowed", 4403)
    async with looking(strangers.owner.user) as looker:
        assert await looker.closed() == ("not_found", 4403)
    async with looking(team.owner.user, "never-was") as looker:
        assert await looker.closed() == ("not_found", 4403)
    async with looking(AnonymousUser()) as looker:
        assert await looker.closed() == ("unauthenticated", 4401)
    auditor = await database_sync_to_async(User.objects.create_user)("auditor@acme.test", "a password")
    await database_sync_to_async(add_member)(tenant=team.tenant, user=auditor, role=Role.AUDITOR)
    async with looking(auditor) as looker:
        assert (await looker.read())["type"] == "memory"
        await Membership.objects.filter(user=auditor).aupdate(role=Role.MEMBER)
        assert await looker.closed() == ("revoked", 4440)


async def test_a_workers_table_is_read_once_for_all_who_look_and_not_when_nobody_does(
    team: Team, strangers: Team, worker: Publisher
) -> None:
    us, them = str(team.tenant.pk), str(strangers.tenant.pk)
    worker.whole([OURS, THEIRS, THEIRS], tenants=[us, them], rows=[row(1, 0, [0]), row(2, 1, [1, 2])])
    async with looking(team.owner.user) as first, looking(strangers.owner.user, "other") as second:
        await first.until(used=1)
        await second.until(used=2)
        assert len(tables()) == 1
    await until(lambda: len(tables()) == 0)


async def test_a_frame_that_cannot_be_read_is_passed_over_until_the_next_whole_one(
    team: Team, worker: Publisher, server: redis.Redis
) -> None:
    us = str(team.tenant.pk)
    worker.whole([OURS, FREE], tenants=[us], rows=[row(1, 0, [0])])
    async with looking(team.owner.user) as looker:
        await looker.until(used=1)
        entry = {"head": json.dumps({"number": 2, "at_ms": 1, "base": 1, "block_size": "?"}), "cells": b"?"}
        server.xadd(wire_key := protocol.occupancy_key("w1"), entry)
        assert server.xlen(wire_key) == 2
        worker.number = 2
        worker.change({1: OURS}, rows=[row(2, 0, [1])])
        worker.whole([OURS, OURS], tenants=[us], rows=[row(1, 0, [0]), row(2, 0, [1])])
        await looker.until(used=2)
