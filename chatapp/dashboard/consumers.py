"""/ws/ops/occupancy: the live workers, and the block table of the one that the page watches.

Frames from the page: `{"type": "watch", "worker": id}`, and `{"type": "ping"}`. Frames to it: `workers` every two
seconds with the names of the tenants, `snapshot` as it changes but five times a second at most, and `pong`.
The right to look, and the session that opened the socket, are looked at twice a second; without them it ends with 4403.
"""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
from channels.db import database_sync_to_async
from channels.generic.websocket import AsyncWebsocketConsumer
from django.contrib.auth import get_user_model
from django.contrib.sessions.models import Session
from django.utils import timezone

from chatapp.accounts.operators import is_operator
from chatapp.streaming import occupancy, workers
from chatapp.tenants.models import Tenant
from engine.protocol import Snapshot, WorkerDetails

# Twice a second, so that a logout is noticed within one; the names and workers with every fourth.
LOOK_EVERY_S = 0.5
WORKERS_EVERY = 4
SNAPSHOT_EVERY_S = 0.2
CLOSE_FORBIDDEN = 4403


class Watch(msgspec.Struct, tag_field="type", tag="watch"):
    worker: str


class Ping(msgspec.Struct, tag_field="type", tag="ping"):
    pass


class Workers(msgspec.Struct, tag_field="type", tag="workers"):
    workers: list[WorkerDetails]
    tenants: dict[str, str]  # id -> name


class BlockTable(msgspec.Struct, tag_field="type", tag="snapshot"):
    snapshot: Snapshot


_frames: msgspec.json.Decoder[Watch | Ping] = msgspec.json.Decoder(Watch | Ping)


def _may_look(user_id: Any, session_key: str | None) -> bool:
    """This user is an operator still, and the session that opened the socket has not ended."""
    if session_key is not None:
        sessions = Session.objects.filter(session_key=session_key, expire_date__gt=timezone.now())
        if not sessions.exists():
            return False
    return is_operator(get_user_model().objects.filter(pk=user_id).first())


def _view() -> Workers:
    """What the page shows beside the table."""
    names = {str(pk): name for pk, name in Tenant.objects.values_list("pk", "name")}
    return Workers(workers=sorted(workers.live(), key=lambda worker: worker.id), tenants=names)


class OccupancyConsumer(AsyncWebsocketConsumer):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.listing: asyncio.Task[None] | None = None
        self.watching: asyncio.Task[None] | None = None

    async def connect(self) -> None:
        await self.accept()
        user = self.scope.get("user")
        if not await database_sync_to_async(is_operator)(user):
            await self.close(CLOSE_FORBIDDEN)
            return
        assert user is not None
        session = self.scope.get("session")
        self.listing = asyncio.create_task(self._list(user.pk, session.session_key if session is not None else None))

    async def disconnect(self, code: int) -> None:
        for task in (self.listing, self.watching):
            if task is not None:
                task.cancel()

    async def receive(self, text_data: str | None = None, bytes_data: bytes | None = None) -> None:
        if self.listing is None:
            return
        try:
            frame = _frames.decode(text_data or "")
        except msgspec.DecodeError:
            return
        if isinstance(frame, Ping):
            await self.send('{"type":"pong"}')
            return
        if self.watching is not None:
            self.watching.cancel()
        self.watching = asyncio.create_task(self._watch(frame.worker))

    async def _list(self, user_id: Any, session_key: str | None) -> None:
        rounds = 0
        while await database_sync_to_async(_may_look)(user_id, session_key):
            if rounds % WORKERS_EVERY == 0:
                await self._say(await database_sync_to_async(_view)())
            rounds += 1
            await asyncio.sleep(LOOK_EVERY_S)
        if self.watching is not None:
            self.watching.cancel()
        await self.close(CLOSE_FORBIDDEN)

    async def _watch(self, worker: str) -> None:
        async for snapshot in occupancy.snapshots(worker):
            await self._say(BlockTable(snapshot))
            await asyncio.sleep(SNAPSHOT_EVERY_S)

    async def _say(self, frame: Workers | BlockTable) -> None:
        await self.send(msgspec.json.encode(frame).decode())
