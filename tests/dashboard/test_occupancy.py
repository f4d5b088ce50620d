"""Who may look at the block table, and what comes over its socket."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import redis
from channels.db import database_sync_to_async
from channels.testing import WebsocketCommunicator
from django.contrib.sessions.backends.db import SessionStore
from django.test import Client

from chatapp.accounts.models import User
from chatapp.dashboard.consumers import OccupancyConsumer
from chatapp.tenants.models import Tenant
from engine import protocol
from engine.protocol import Snapshot, WorkerDetails

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


def publish(server: redis.Redis, worker: str, state: list[int], tenant: str) -> None:
    """A heartbeat and a block table, as a worker writes them."""
    details = WorkerDetails(id=worker, model="m", context=99, block_size=16, num_blocks=len(state), pid=1)
    server.fcall(*protocol.heartbeat(worker, details))
    owned = [0 if one else -1 for one in state]
    snapshot = Snapshot(
        worker=worker, at_ms=1, block_size=16, state=state, refs=[1 if one == 2 else 0 for one in state],
        tenant=owned, filled=[16 if one else 0 for one in state], tenants=[tenant], pinned=[1],
    )  # fmt: skip
    server.xadd(protocol.occupancy_key(worker), {"snapshot": protocol.encode(snapshot)})


def socket(user: Any) -> WebsocketCommunicator:
    communicator = WebsocketCommunicator(OccupancyConsumer.as_asgi(), "/ws/ops/occupancy")
    communicator.scope["user"] = user
    return communicator


async def hear(communicator: WebsocketCommunicator, kind: str) -> dict[str, Any]:
    for _ in range(20):
        frame = await communicator.receive_json_from(timeout=5)
        if frame["type"] == kind:
            return dict(frame)
    raise AssertionError(f"no frame of type {kind} came")


async def test_an_operator_sees_workers_names_and_blocks_as_they_change(server: redis.Redis) -> None:
    user = await database_sync_to_async(operator)()
    tenant = await Tenant.objects.acreate(slug="acme", name="Acme")
    publish(server, "w1", [0, 1, 2], str(tenant.pk))
    communicator = socket(user)
    assert (await communicator.connect())[0]
    frame = await hear(communicator, "workers")
    assert [worker["id"] for worker in frame["workers"]] == ["w1"]
    assert frame["tenants"] == {str(tenant.pk): "Acme"}
    await communicator.send_json_to({"type": "watch", "worker": "w1"})
    assert (await hear(communicator, "snapshot"))["snapshot"]["state"] == [0, 1, 2]
    publish(server, "w1", [2, 2, 2], str(tenant.pk))
    frame = await hear(communicator, "snapshot")
    assert (frame["snapshot"]["state"], frame["snapshot"]["pinned"]) == ([2, 2, 2], [1])
    await communicator.disconnect()


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
