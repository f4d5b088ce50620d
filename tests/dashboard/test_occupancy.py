"""Who may look at the block table, and what comes over its socket."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Iterator
from typing import Any

import pytest
import redis
from channels.db import database_sync_to_async
from channels.testing import WebsocketCommunicator
from django.contrib.sessions.backends.db import SessionStore
from django.db import OperationalError
from django.test import Client

from chatapp.accounts.models import User
from chatapp.dashboard import consumers
from chatapp.dashboard.consumers import OccupancyConsumer
from chatapp.streaming import occupancy
from chatapp.tenants.models import Tenant
from engine import occupancy_wire as wire
from engine import protocol
from tests.dashboard.frames import FREE, Publisher, cell, words

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def server(redis_url: str, settings: Any) -> Iterator[redis.Redis]:
    client = redis.Redis.from_url(redis_url, protocol=2)
    client.flushall()
    client.function_load(protocol.LIBRARY_SOURCE.read_text(), replace=True)
    settings.REDIS_URL = redis_url
    yield client
    client.close()


def operator() -> User:
    return User.objects.create_superuser("op@octavo.test", "a password")


def socket(user: Any) -> WebsocketCommunicator:
    communicator = WebsocketCommunicator(OccupancyConsumer.as_asgi(), "/ws/ops/occupancy")
    communicator.scope["user"] = user
    return communicator


class Page:
    """What a page keeps of the socket: the table out of binary frames, and the text frames that it waits for."""

    def __init__(self, communicator: WebsocketCommunicator) -> None:
        self.socket = communicator
        self.table = wire.Table()
        self.wholes = 0

    async def hear(self, kind: str | None = None) -> dict[str, Any]:
        """The next text frame of this kind; None: the next binary frame, taken in."""
        for _ in range(400):
            output = await self.socket.receive_output(timeout=5)
            if output.get("bytes") is not None:
                head, cells = wire.unpacked(output["bytes"])
                decoded = wire.decode_head(head)
                self.wholes += decoded.base == 0
                self.table.apply(decoded, cells)
                if kind is None:
                    return {}
            else:
                frame = json.loads(output["text"])
                if frame["type"] == kind:
                    return dict(frame)
        raise AssertionError(f"no frame of type {kind} came")

    async def until(self, number: int) -> wire.Table:
        """The table once the frame `number` was taken in."""
        async with asyncio.timeout(5):
            while self.table.head is None or self.table.head.number != number:
                await self.hear()
        return self.table

    async def ask(self, **frame: Any) -> None:
        await self.socket.send_json_to(frame)


async def opened() -> Page:
    page = Page(socket(await database_sync_to_async(operator)()))
    assert (await page.socket.connect())[0]
    return page


async def hear(communicator: WebsocketCommunicator, kind: str) -> dict[str, Any]:
    return await Page(communicator).hear(kind)


USED = cell(tenant=0, refs=1)
CACHED = cell(wire.CACHED, tenant=0, pinned=True)


async def test_an_operator_sees_workers_names_and_blocks_as_they_change(server: redis.Redis) -> None:
    tenant = await Tenant.objects.acreate(slug="acme", name="Acme")
    worker = Publisher(server)
    worker.beat()
    worker.whole([FREE, CACHED, USED], tenants=[str(tenant.pk)])
    worker.change({0: USED})
    page = await opened()
    frame = await page.hear("workers")
    assert [found["id"] for found in frame["workers"]] == ["w1"]
    assert frame["tenants"] == {str(tenant.pk): "Acme"}
    await page.ask(type="watch", worker="w1")
    assert words(await page.until(2)) == [USED, CACHED, USED]
    worker.change({1: USED, 2: FREE})
    table = await page.until(3)
    assert (words(table), table.tenants, page.wholes) == ([USED, USED, FREE], [str(tenant.pk)], 1)
    await page.socket.disconnect()


async def test_an_operator_sees_what_waits_for_a_worker(server: redis.Redis) -> None:
    Publisher(server).beat()
    for number, team in enumerate(("t-1", "t-1", "t-2")):
        request = protocol.Request(id=f"g{number}", tenant=team, model="m", messages=[], salt="s")
        server.fcall(*protocol.enqueue(request))
    page = await opened()
    assert (await page.hear("workers"))["queued"] == {"m": {"t-1": 2, "t-2": 1}}
    await page.socket.disconnect()


async def test_after_a_gap_and_after_a_stream_begun_anew_comes_a_whole_frame(server: redis.Redis) -> None:
    worker = Publisher(server)
    worker.whole([FREE, FREE])
    page = await opened()
    await page.ask(type="watch", worker="w1")
    await page.until(1)
    worker.gap()  # a frame that nobody ever sees
    worker.change({0: USED})
    worker.whole([USED, CACHED])
    entry = worker.change({1: FREE})
    assert words(await page.until(5)) == [USED, FREE]
    server.delete(protocol.occupancy_key("w1"))
    while entry.startswith(f"{now_ms(server)}-"):
        pass
    worker.whole([FREE, USED])
    worker.change({0: CACHED})
    assert words(await page.until(7)) == [CACHED, USED]
    await page.socket.disconnect()


async def test_a_worker_that_writes_only_later_and_one_that_writes_what_cannot_be_read_are_waited_for(
    server: redis.Redis,
) -> None:
    worker = Publisher(server)
    page = await opened()
    await page.ask(type="watch", worker="w1")
    server.xadd(protocol.occupancy_key("w1"), {"snapshot": "{}"})
    worker.number = 4
    worker.change({0: USED})  # of a table that nobody has seen the whole of
    worker.whole([FREE, USED])
    assert words(await page.until(6)) == [FREE, USED]
    await page.socket.disconnect()


async def test_a_lost_connection_to_redis_loses_no_frame(server: redis.Redis) -> None:
    worker = Publisher(server)
    worker.whole([FREE, FREE])
    page = await opened()
    await page.ask(type="watch", worker="w1")
    await page.until(1)
    server.client_kill_filter(_type="normal", skipme=True)
    worker.change({0: USED})
    worker.change({1: USED})
    assert words(await page.until(3)) == [USED, USED]
    assert page.wholes == 1
    await page.socket.disconnect()


def now_ms(server: redis.Redis) -> int:
    seconds, micros = server.time()
    return int(seconds) * 1000 + int(micros) // 1000


def history(worker: Publisher, began_ms: int, length: int, every: int) -> list[list[Any]]:
    """A random history, a frame a second, a whole one each `every` frames; the table behind each of them."""
    chance = random.Random(length)
    now = [FREE] * 12
    behind = []
    for number in range(length):
        changed = {place: chance.choice([FREE, CACHED, USED]) for place in chance.sample(range(12), 3)}
        for place, made in changed.items():
            now[place] = made
        at_ms = began_ms + 1000 * number
        if number % every == 0:
            worker.whole(list(now), at_ms=at_ms)
        else:
            worker.change(changed, at_ms=at_ms)
        behind.append(list(now))
    return behind


@pytest.mark.parametrize("apart_ms", [0, 45_000, -45_000])
async def test_the_table_as_it_was_at_any_moment_is_what_it_was(server: redis.Redis, apart_ms: int) -> None:
    """Whether the clocks of Redis and the worker agree or not."""
    began = 1_000_000
    worker = Publisher(server, apart_ms=apart_ms)
    behind = history(worker, began, length=200, every=80)
    for number in (0, 1, 79, 80, 81, 150, 199):
        found = await occupancy.at("w1", began + 1000 * number + 999)
        table = wire.Table()
        for frame in found:
            table.apply(wire.decode_head(frame.head), frame.cells)
        assert words(table) == behind[number]
    (oldest,) = await occupancy.at("w1", began - 5000)
    assert (oldest.number, oldest.at_ms) == (1, began)
    assert await occupancy.at("nobody", began) == []


async def test_whoever_reads_late_catches_up_and_sees_what_others_see(server: redis.Redis) -> None:
    worker = Publisher(server)
    first = history(worker, 0, length=40, every=256)
    page = await opened()
    await page.ask(type="watch", worker="w1")
    assert words(await page.until(40)) == first[-1]
    rest = history(worker, 1_000_000, length=300, every=256)
    assert words(await page.until(340)) == rest[-1]
    await page.socket.disconnect()


async def test_a_page_looks_back_and_comes_back_to_what_is_live(server: redis.Redis) -> None:
    worker = Publisher(server)
    worker.whole([FREE, FREE], at_ms=1_000_000)
    worker.change({0: USED}, at_ms=1_001_000)
    worker.change({1: USED}, at_ms=1_002_000)
    page = await opened()
    await page.ask(type="watch", worker="w1")
    await page.until(3)
    for at_ms, frame_ms, blocks in (
        (1_001_500, 1_001_000, [USED, FREE]),
        (9_000_000, 1_002_000, [USED, USED]),
        (10, 1_000_000, [FREE, FREE]),
    ):
        await page.ask(type="at", worker="w1", at_ms=at_ms)
        shown = await page.hear("shown")
        assert (shown["worker"], shown["at_ms"], shown["frame_ms"]) == ("w1", at_ms, frame_ms)
        assert words(page.table) == blocks
    worker.change({0: FREE})
    await page.ask(type="at", worker="gone", at_ms=5)
    assert (await page.hear("shown"))["frame_ms"] == 0
    assert words(page.table) == [FREE, FREE], "what happens meanwhile does not come"
    await page.ask(type="watch", worker="w1")
    assert words(await page.until(4)) == [FREE, USED]
    await page.socket.disconnect()


async def test_a_time_line_comes_whole_and_then_grows_whatever_is_shown(server: redis.Redis) -> None:
    worker, other = Publisher(server), Publisher(server, "w2")
    worker.point(1000, used=1)
    worker.point(3000, used=2, of={"t": (1, 0, 0, 1, 0)})
    page = await opened()
    await page.ask(type="line", worker="w1")
    line = await page.hear("line")
    assert [(point["at_ms"], point["figures"]["used"]) for point in line["points"]] == [(1000, 1), (3000, 2)]
    assert line["points"][1]["figures"]["of"] == {"t": [1, 0, 0, 1, 0]}
    await page.ask(type="line", worker="w2")
    assert await page.hear("line") == {"type": "line", "worker": "w2", "points": []}
    await page.ask(type="at", worker="w1", at_ms=1000)
    other.point(4000, free=7)
    told = await page.hear("point")
    assert (told["worker"], told["point"]["at_ms"], told["point"]["figures"]) == ("w2", 4000, {"free": 7})
    await page.socket.disconnect()


async def test_frames_that_make_no_sense_change_nothing(server: redis.Redis) -> None:
    worker = Publisher(server)
    worker.whole([USED])
    page = await opened()
    for text in ("[", "{", '{"type":"watch"}', '{"type":"at","worker":"w1","at_ms":-1}', '{"type":"line","worker":""}'):
        await page.socket.send_to(text_data=text)
    await page.socket.send_to(bytes_data=b"watch")
    await page.ask(type="watch", worker="w1")
    assert words(await page.until(1)) == [USED]
    await page.socket.disconnect()


async def test_without_a_worker_the_list_is_empty(server: redis.Redis) -> None:
    communicator = socket(await database_sync_to_async(operator)())
    assert (await communicator.connect())[0]
    assert (await hear(communicator, "workers"))["workers"] == []
    await communicator.send_json_to({"type": "ping"})
    assert await hear(communicator, "pong")
    await communicator.disconnect()


@pytest.mark.parametrize("fields", [{}, {"is_staff": True}, {"is_superuser": True}], ids=["person", "staff", "half"])
async def test_whoever_is_no_operator_is_turned_away(fields: dict[str, bool]) -> None:
    user = await database_sync_to_async(User.objects.create_user)("a@b.test", "a password", **fields)
    communicator = socket(user)
    await communicator.connect()
    closed = await communicator.receive_output(timeout=5)
    assert (closed["type"], closed["code"]) == ("websocket.close", 4403)


async def test_an_operator_who_is_one_no_more_is_turned_away_while_looking(server: redis.Redis) -> None:
    user = await database_sync_to_async(operator)()
    communicator = socket(user)
    assert (await communicator.connect())[0]
    await hear(communicator, "workers")
    await User.objects.filter(pk=user.pk).aupdate(is_superuser=False)
    closed = await communicator.receive_output(timeout=6)
    assert (closed["type"], closed["code"]) == ("websocket.close", 4403)


async def test_a_database_that_fails_for_a_moment_ends_neither_the_list_nor_the_look_at_the_right(
    server: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = await opened()
    await page.hear("workers")
    really = consumers._may_look
    fails = iter([True, True])

    def may_look(*asked: Any) -> bool:
        if next(fails, False):
            raise OperationalError("database is locked")
        return really(*asked)

    monkeypatch.setattr(consumers, "_may_look", may_look)
    Publisher(server).beat()
    assert [found["id"] for found in (await page.hear("workers"))["workers"]] == ["w1"]
    await User.objects.aupdate(is_superuser=False)
    while (output := await page.socket.receive_output(timeout=5))["type"] != "websocket.close":
        pass
    assert output["code"] == 4403


async def test_a_session_that_ends_closes_the_socket_within_a_second(server: redis.Redis) -> None:
    """P12."""
    user = await database_sync_to_async(operator)()
    session = SessionStore()
    await database_sync_to_async(session.create)()
    communicator = socket(user)
    communicator.scope["session"] = session
    assert (await communicator.connect())[0]
    await hear(communicator, "workers")
    await database_sync_to_async(session.flush)()
    closed = await communicator.receive_output(timeout=1)
    assert (closed["type"], closed["code"]) == ("websocket.close", 4403)


def test_the_page_is_for_operators_only() -> None:
    client = Client()
    assert client.get("/admin/occupancy/").status_code == 302
    staff = User.objects.create_user("staff@octavo.test", "a password", is_staff=True)
    client.force_login(staff, backend="django.contrib.auth.backends.ModelBackend")
    assert client.get("/admin/occupancy/").status_code == 403
    client.force_login(operator(), backend="django.contrib.auth.backends.ModelBackend")
    reply = client.get("/admin/occupancy/")
    assert reply.status_code == 200
    html = reply.content.decode()
    assert "<canvas" in html
    assert 'href="/admin/occupancy/"' in html
