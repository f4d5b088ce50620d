"""/ws/ops/occupancy: the live workers, and the block table of the one that the page watches, now or as it was.

Text frames from the page

    {"type": "watch", "worker": id}             its table live, in place of what was shown before
    {"type": "at", "worker": id, "at_ms": t}    its table as it was at t, by the worker's clock
    {"type": "line", "worker": id}              its time line, and what it grows by while the socket is open
    {"type": "ping"}

Frames to it: `workers` every two seconds with the names of the tenants and what waits of them for a worker; the table
as binary messages (engine.occupancy_wire.packed), a whole frame first and then the changes, and again a whole one after
a gap; behind the frames of an `at` {"type": "shown", "worker", "at_ms": t as asked, "frame_ms": of the last of these
frames}, which is later than t where that is further back than is kept, and 0 where nothing is known of the worker;
{"type": "line", "worker", "points": [...]}, of which one is {at_ms, number, figures}, then {"type": "point", "worker",
"point"}; `pong`.

Of several `at` that come while one is being answered only the last is. The right to look, and the session that opened
the socket, are looked at twice a second; without them it ends with 4403. A page that reads slowly is sent changes
later, and a whole frame in place of them once it is so far behind.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import aclosing
from typing import Annotated, Any

import msgspec
import redis.exceptions
import structlog
from channels.db import database_sync_to_async
from channels.generic.websocket import AsyncWebsocketConsumer
from django.contrib.auth import get_user_model
from django.contrib.sessions.models import Session
from django.db import DatabaseError
from django.utils import timezone

from chatapp import stopping
from chatapp.accounts.operators import is_operator
from chatapp.streaming import fleet, occupancy, workers
from chatapp.tenants.models import Tenant
from engine.protocol import WorkerDetails

log = structlog.get_logger(__name__)

# Twice a second, so that a logout is noticed within one; the names and workers with every fourth.
LOOK_EVERY_S = 0.5
WORKERS_EVERY = 4
# Workers add to their time lines every two seconds at most.
POINTS_EVERY_S = 1.0
MOST_LINES = 256
CLOSE_FORBIDDEN = 4403

WorkerId = Annotated[str, msgspec.Meta(min_length=1, max_length=200)]


class Watch(msgspec.Struct, tag_field="type", tag="watch"):
    worker: WorkerId


class At(msgspec.Struct, tag_field="type", tag="at"):
    worker: WorkerId
    at_ms: Annotated[int, msgspec.Meta(ge=0, le=2**53)]


class Line(msgspec.Struct, tag_field="type", tag="line"):
    worker: WorkerId


class Ping(msgspec.Struct, tag_field="type", tag="ping"):
    pass


class Workers(msgspec.Struct, tag_field="type", tag="workers"):
    workers: list[WorkerDetails]
    tenants: dict[str, str]  # id -> name
    queued: dict[str, dict[str, int]]  # model -> tenant id -> requests that no worker has taken yet


class Shown(msgspec.Struct, tag_field="type", tag="shown"):
    worker: str
    at_ms: int
    frame_ms: int


class WholeLine(msgspec.Struct, tag_field="type", tag="line"):
    worker: str
    points: list[msgspec.Raw]


class Point(msgspec.Struct, tag_field="type", tag="point"):
    worker: str
    point: msgspec.Raw


_frames: msgspec.json.Decoder[Watch | At | Line | Ping] = msgspec.json.Decoder(Watch | At | Line | Ping)


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
    live = sorted(workers.live(), key=lambda worker: worker.id)
    backlogs = fleet.backlogs({worker.model for worker in live})
    queued = {found.model: {queue.tenant: queue.waiting for queue in found.queues} for found in backlogs}
    return Workers(workers=live, tenants=names, queued=queued)


class OccupancyConsumer(AsyncWebsocketConsumer):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.tasks: list[asyncio.Task[None]] = []
        self.live: asyncio.Task[None] | None = None
        self.stay: Callable[[], None] | None = None
        self.asked = asyncio.Event()
        self.wanted: Watch | At | None = None
        self.lines: dict[str, bytes | None] = {}  # worker -> how far its line was told; None: not at all yet
        self.lined = asyncio.Event()

    async def connect(self) -> None:
        await self.accept()
        user = self.scope.get("user")
        if not await database_sync_to_async(is_operator)(user):
            await self.close(CLOSE_FORBIDDEN)
            return
        assert user is not None
        session = self.scope.get("session")
        key = session.session_key if session is not None else None
        self.tasks = [asyncio.create_task(work) for work in (self._list(user.pk, key), self._show(), self._grow())]
        self.stay = stopping.leave_at_once(self.close)

    async def disconnect(self, code: int) -> None:
        if self.stay is not None:
            self.stay()
        self._end()

    def _end(self) -> None:
        for task in (*self.tasks, self.live):
            if task is not None and task is not asyncio.current_task():
                task.cancel()

    async def receive(self, text_data: str | None = None, bytes_data: bytes | None = None) -> None:
        if not self.tasks:
            return
        try:
            frame = _frames.decode(text_data or "")
        except msgspec.DecodeError:
            return
        if isinstance(frame, Ping):
            await self.send('{"type":"pong"}')
        elif isinstance(frame, Line):
            if len(self.lines) < MOST_LINES or frame.worker in self.lines:
                self.lines[frame.worker] = None
                self.lined.set()
        else:
            self.wanted = frame
            self.asked.set()

    async def _list(self, user_id: Any, session_key: str | None) -> None:
        rounds = 0
        while True:
            try:
                if not await database_sync_to_async(_may_look)(user_id, session_key):
                    break
                if rounds % WORKERS_EVERY == 0:
                    await self._say(await database_sync_to_async(_view)())
            except (redis.exceptions.RedisError, DatabaseError) as error:
                # Without a database nothing can be taken away either; the next round asks again.
                log.warning("occupancy.waiting", error=type(error).__name__)
            rounds += 1
            await asyncio.sleep(LOOK_EVERY_S)
        self._end()
        await self.close(CLOSE_FORBIDDEN)

    async def _show(self) -> None:
        """Whatever was asked for last."""
        while True:
            await self.asked.wait()
            self.asked.clear()
            wanted = self.wanted
            if self.live is not None:
                self.live.cancel()
                await asyncio.wait({self.live})
                self.live = None
            if isinstance(wanted, At):
                await self._patiently(self._at(wanted))
            elif wanted is not None:
                self.live = asyncio.create_task(self._follow(wanted.worker))

    async def _follow(self, worker: str) -> None:
        async with aclosing(occupancy.follow(worker)) as frames:
            async for frame in frames:
                await self.send(bytes_data=frame.packed)

    async def _at(self, asked: At) -> None:
        frames = await occupancy.at(asked.worker, asked.at_ms)
        for frame in frames:
            await self.send(bytes_data=frame.packed)
        shown = frames[-1].at_ms if frames else 0
        await self._say(Shown(worker=asked.worker, at_ms=asked.at_ms, frame_ms=shown))

    async def _grow(self) -> None:
        """Tell the time lines that were asked for, and what they grow by."""
        while True:
            if not self.lines:
                self.lined.clear()
                await self.lined.wait()
            self.lined.clear()
            await self._patiently(self._tell_lines())
            try:
                async with asyncio.timeout(POINTS_EVERY_S):
                    await self.lined.wait()
            except TimeoutError:
                pass

    async def _tell_lines(self) -> None:
        asked = dict(self.lines)
        news = await occupancy.lines({worker: last or b"0-0" for worker, last in asked.items()})
        for worker, last in asked.items():
            found = news.get(worker)
            if self.lines[worker] is not last:
                continue  # asked for anew meanwhile
            if last is None:
                self.lines[worker] = found.last if found else b"0-0"
                await self._say(WholeLine(worker, found.points if found else []))
            elif found:
                self.lines[worker] = found.last
                for point in found.points:
                    await self._say(Point(worker, point))

    async def _patiently(self, work: Coroutine[Any, Any, None]) -> None:
        """Without Redis there is nothing to show; the next question asks it again."""
        try:
            await work
        except occupancy.LOST as error:
            log.warning("occupancy.waiting", error=type(error).__name__)

    async def _say(self, frame: Workers | Shown | WholeLine | Point) -> None:
        await self.send(msgspec.json.encode(frame).decode())
