"""/ws/t/<slug>/memory: what a team has in the memory of the engines, for those who may read its dashboard.

Frames to the page: `memory`, all there is to see, whenever that has changed; `pong`; before a close that is final,
`error`. From it: `{"type": "ping"}`. What is told of an engine is made by chatapp.streaming.tenant_memory and by
nothing else, and nothing is told where that has not changed: not even when a frame comes is of others' making.

The right to look is looked at twice a second by the guard of all sockets. A page that reads slowly is sent less often,
and always what holds now; a view that takes long to make is made more rarely.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import msgspec
import redis.exceptions
import structlog
from channels.generic.websocket import AsyncWebsocketConsumer

from chatapp import stopping
from chatapp.api import frames, turns
from chatapp.api.answering import in_thread
from chatapp.api.guard import Watch, guard
from chatapp.api.seats import seats
from chatapp.chat.memory import Answer, answers
from chatapp.errors import Forbidden, Overloaded, TooMany
from chatapp.limits.selectors import limits_of_team
from chatapp.scope import tenant_scope
from chatapp.streaming import fleet, occupancy, workers
from chatapp.streaming.tables import tables
from chatapp.streaming.tenant_memory import View, view
from chatapp.tenants.access import Access, MfaRequired, NoAccess, access_for_user
from chatapp.tenants.models import Tenant
from chatapp.tenants.permissions import Permission
from engine.occupancy_wire import Table
from engine.protocol import WorkerDetails

log = structlog.get_logger(__name__)

EVERY_S = 0.25
ENGINES_EVERY_S = 2.0
# Making views takes at most one in so many seconds; so rarely they are made at most.
SHARE = 20
RARELY_S = 10.0
UNKNOWN = Answer("", "")
PING = b'{"type":"ping"}'


class Engine(msgspec.Struct, frozen=True):
    """`quota`: blocks that the team may use at once, as the engine reckons. `memory`: None until its table is here.
    `queued`: what waits of the team for the model, whichever engine will take it."""

    id: str
    model: str
    quota: int
    memory: View | None
    queued: int = 0


class Place(NamedTuple):
    """A live engine, and what holds of the team there."""

    worker: WorkerDetails
    quota: int
    queued: int

    def told(self, memory: View | None) -> Engine:
        return Engine(self.worker.id, self.worker.model, self.quota, memory, self.queued)


class Memory(msgspec.Struct, frozen=True, tag_field="type", tag="memory"):
    engines: list[Engine]
    answers: dict[str, Answer]


class Refused(msgspec.Struct, frozen=True, tag_field="type", tag="error"):
    code: str
    message: str
    retryable: bool = False


def quota(worker: WorkerDetails, share: float) -> int:
    """The most blocks that a team with this share of a pool may use there."""
    return min(worker.tenant_blocks or worker.num_blocks, max(1, int(worker.num_blocks * share)))


def _engines(access: Access) -> list[Place]:
    """The live engines of the team's models."""
    with tenant_scope(access.tenant):
        tenant = Tenant.objects.get(pk=access.tenant.pk)
        models, share = set(tenant.models), limits_of_team(tenant).kv_share
    found = [worker for worker in workers.live() if worker.model in models]
    queued = fleet.queued(str(access.tenant.pk), {worker.model for worker in found})
    return [
        Place(worker, quota(worker, share), queued[worker.model])
        for worker in sorted(found, key=lambda worker: (worker.model, worker.id))
    ]


def _answers(access: Access, ids: set[str]) -> dict[str, Answer]:
    with tenant_scope(access.tenant):
        return answers(access, ids)


def told(access: Access) -> Memory:
    """What the socket would tell now, looked up once. Raises Forbidden, redis.exceptions.RedisError."""
    access.require(Permission.READ_DASHBOARD)
    engines = [place.told(view(occupancy.table(place.worker.id), str(access.tenant.pk))) for place in _engines(access)]
    ids = {one.id for engine in engines if engine.memory is not None for one in engine.memory.sequences}
    return Memory(engines, dict.fromkeys(ids, UNKNOWN) | _answers(access, ids))


def _may_look(user: Any, slug: str) -> Access:
    access = access_for_user(user, slug)
    access.require(Permission.READ_DASHBOARD)
    return access


class TeamMemoryConsumer(AsyncWebsocketConsumer):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.task: asyncio.Task[None] | None = None
        self.watch: Watch | None = None
        self.leave_seat: Callable[[], object] = lambda: None
        self.stay: Callable[[], None] | None = None
        self.changed = asyncio.Event()
        self.looking: dict[str, Callable[[], None]] = {}
        self.stale: set[str] = set()
        self.views: dict[str, View | None] = {}
        self.answers: dict[str, Answer] = {}
        self.took_s = 0.0

    async def connect(self) -> None:
        await self.accept()
        user = self.scope["user"]
        try:
            if not user.is_authenticated:
                await self._refuse("unauthenticated", "Log in first.", frames.CLOSE_UNAUTHENTICATED)
                return
            seats.check()
            turns.asked_by(user.pk)
            access = await in_thread(_may_look, user, self.scope["url_route"]["kwargs"]["slug"])
            self.leave_seat = seats.take(self, access)
        except Overloaded as full:
            await self._refuse(full.code, full.message, frames.CLOSE_TRY_LATER)
            return
        except TooMany as full:
            await self._refuse(full.code, full.message, frames.CLOSE_RATE)
            return
        except NoAccess:
            await self._refuse("not_found", "There is no such team.", frames.CLOSE_FORBIDDEN)
            return
        except (MfaRequired, Forbidden) as refusal:
            await self._refuse(refusal.code, refusal.message, frames.CLOSE_FORBIDDEN)
            return
        session = self.scope.get("session")
        self.watch = Watch(access, session.session_key if session is not None else None, self._revoked)
        guard().add(self.watch)
        self.task = asyncio.create_task(self._run(access))
        self.stay = stopping.leave_at_once(self.close)

    async def _run(self, access: Access) -> None:
        try:
            await self._tell(access)
        except Exception:
            # Silence would look like a memory that does not change; a closed socket is opened again.
            log.exception("team_memory.failed")
            await self.close(frames.CLOSE_INTERNAL)

    async def disconnect(self, code: int) -> None:
        self.leave_seat()
        if self.stay is not None:
            self.stay()
        if self.watch is not None:
            guard().remove(self.watch)
        if self.task is not None:
            self.task.cancel()
        for end in self.looking.values():
            end()
        self.looking.clear()

    async def receive(self, text_data: str | None = None, bytes_data: bytes | None = None) -> None:
        if self.task is not None and text_data is not None and text_data.replace(" ", "").encode() == PING:
            await self.send('{"type":"pong"}')

    def _revoked(self) -> None:
        async def end() -> None:
            await self.disconnect(frames.CLOSE_REVOKED)
            await self._refuse("revoked", "Your access has ended. Log in again.", frames.CLOSE_REVOKED)

        self.ending = asyncio.create_task(end())  # held on to, or it may be collected before it has run

    async def _refuse(self, code: str, message: str, close: int) -> None:
        await self.send(msgspec.json.encode(Refused(code, message)).decode())
        await self.close(close)

    # --- what is told -------------------------------------------------------------------------------------------------

    async def _tell(self, access: Access) -> None:
        engines: list[Place] | None = None
        look_at, told = 0.0, b""
        while True:
            self.changed.clear()
            if (now := time.monotonic()) >= look_at:
                look_at = now + ENGINES_EVERY_S
                try:
                    engines = await in_thread(_engines, access)
                    self._look(place.worker.id for place in engines)
                except redis.exceptions.RedisError as error:
                    log.warning("team_memory.waiting", error=type(error).__name__)
            if engines is not None:
                said = await self._said(access, engines)
                if said != told:
                    told = said
                    await self.send(said.decode())
            await asyncio.sleep(min(max(EVERY_S, SHARE * self.took_s), RARELY_S))
            try:
                async with asyncio.timeout(max(0.0, look_at - time.monotonic())):
                    await self.changed.wait()
            except TimeoutError:
                pass

    def _look(self, ids: Any) -> None:
        wanted = set(ids)
        for gone in set(self.looking) - wanted:
            self.looking.pop(gone)()
            self.views.pop(gone, None)
            self.stale.discard(gone)
        for worker in wanted - set(self.looking):
            self.looking[worker] = tables().look(worker, partial(self._hear, worker))
            self.stale.add(worker)

    def _hear(self, worker: str) -> None:
        self.stale.add(worker)
        self.changed.set()

    async def _said(self, access: Access, engines: list[Place]) -> bytes:
        stale, self.stale = self.stale, set()
        copies = {worker: tables().copy(worker) for worker in stale}
        if copies:
            began = time.monotonic()
            self.views |= await asyncio.to_thread(_views, copies, str(access.tenant.pk))
            self.took_s = time.monotonic() - began
        ids = {one.id for found in self.views.values() if found is not None for one in found.sequences}
        if unknown := ids - set(self.answers):
            self.answers |= dict.fromkeys(unknown, UNKNOWN) | await in_thread(_answers, access, unknown)
        engines_told = [place.told(self.views.get(place.worker.id)) for place in engines]
        self.answers = {one: answer for one, answer in self.answers.items() if one in ids}
        return await asyncio.to_thread(msgspec.json.encode, Memory(engines_told, self.answers))


def _views(copies: Mapping[str, Table], tenant: str) -> dict[str, View | None]:
    return {worker: view(table, tenant) for worker, table in copies.items()}
