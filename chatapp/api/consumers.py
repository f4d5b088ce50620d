"""The websockets /ws/v1 (API keys) and /ws/ui (the browser's session): frames in, tasks, frames out.

A handler only validates and starts a task, so that a Stop gets through while answers run. All that a socket sends goes
through its outbox. Closing a socket stops what only it could receive (stateless calls); answers in conversations go on.
How each way in proves who it is: subclasses at the end.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Coroutine, Iterator, Mapping
from contextlib import aclosing, contextmanager, suppress
from typing import Any
from urllib.parse import parse_qs

import redis.exceptions
import structlog
from channels.generic.websocket import AsyncWebsocketConsumer

from chatapp import scope
from chatapp.api import frames, rate_headers
from chatapp.api.answering import Lease, complete, in_thread
from chatapp.api.following import events
from chatapp.api.frames import FrameError
from chatapp.api.guard import Watch, guard
from chatapp.api.keys import key_of_socket
from chatapp.api.outbox import Outbox, Overflow
from chatapp.api.responses import Narrator
from chatapp.audit.source import client_address, set_source
from chatapp.chat import selectors, services
from chatapp.chat.models import Generation
from chatapp.errors import BadInput, Refusal
from chatapp.ids import request_id
from chatapp.limits.budget import RateLimited
from chatapp.limits.selectors import limits_of
from chatapp.streaming.workers import queue_position
from chatapp.tenants.access import Access, BadKey, MfaRequired, NoAccess, access_for_key, access_for_user

log = structlog.get_logger(__name__)

MOST_RESPONSES = 32
HEARTBEAT_S = 25.0
# A day: long enough for anyone's work, and every session's rights are looked at anew now and then.
LIFETIME_S = 24 * 3600
EXPIRING_S = 60
# Frames being worked on at once, those that follow a response included; a client that sends more has to wait.
MOST_TASKS = 4 * MOST_RESPONSES
POSITION_EVERY_S = 1.0
CLOSE_RATE = 4429
SUBPROTOCOL = "octavo.v1"


class NotLetIn(Exception):
    def __init__(self, code: str, message: str, close: int) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.close = close


class ResponseConsumer(AsyncWebsocketConsumer):
    """One socket. Subclasses say who is asking (`let_in`)."""

    stateless_allowed = True

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.outbox = Outbox(self._send_text, self._close_with)
        self.access: Access | None = None
        self.watch: Watch | None = None
        self.tasks: set[asyncio.Task[None]] = set()
        self.following: dict[str, asyncio.Task[None] | None] = {}
        self.starting = 0  # responses that have been asked for and are not followed yet
        self.leases: dict[str, Lease] = {}

    # --- the socket's life ------------------------------------------------------------------------------------------

    async def let_in(self) -> Access:
        """Who is asking. Raises NotLetIn."""
        raise NotImplementedError

    def session_key(self) -> str | None:
        return None

    async def connect(self) -> None:
        # Accepted first: daphne turns every refusal before that into a bare 403, which tells a client nothing.
        offered = self.scope.get("subprotocols") or []
        await self.accept(SUBPROTOCOL if SUBPROTOCOL in offered else None)
        self._start(self._send_all())
        try:
            # Frames are handled in this very context, and their tasks inherit it.
            set_source(*_where_from(self.scope))
            self.access = await self.let_in()
            scope.enter(self.access.tenant)
            limits = await in_thread(_plan_of, self.access)
        except NotLetIn as refusal:
            self._put(frames.Error(code=refusal.code, message=refusal.message, retryable=False))
            self.outbox.close(refusal.close)
            return
        except Exception:
            log.exception("socket.not_opened")
            self._put(frames.Error(code="unavailable", message="This cannot be served right now.", retryable=True))
            self.outbox.close(frames.CLOSE_INTERNAL)
            return
        self.watch = Watch(self.access, self.session_key(), self._revoked)
        guard().add(self.watch)
        self._put(
            frames.SessionCreated(
                session_id=str(uuid.uuid4()),
                limits=frames.Limits(max_responses=MOST_RESPONSES, plan=limits),
                heartbeat_s=HEARTBEAT_S,
                expires_at=int(time.time()) + LIFETIME_S,
            )
        )
        self._start(self._expire())

    async def disconnect(self, code: int) -> None:
        if self.watch is not None:
            guard().remove(self.watch)
        for lease in self.leases.values():
            lease.end(stop=True)
        for task in self.tasks:
            task.cancel()

    def _revoked(self) -> None:
        self._put(frames.Error(code="revoked", message="Your access has ended. Log in again.", retryable=False))
        self.outbox.close(frames.CLOSE_REVOKED)

    async def _expire(self) -> None:
        await asyncio.sleep(LIFETIME_S - EXPIRING_S)
        self._put(frames.SessionExpiring(expires_at=int(time.time()) + EXPIRING_S))
        await asyncio.sleep(EXPIRING_S)
        self.outbox.close(frames.CLOSE_GOING_AWAY)

    async def _send_all(self) -> None:
        try:
            await self.outbox.run()
        except Exception:
            # Silence would look like an answer that never comes; a closed socket is opened again.
            log.exception("socket.cannot_send")
            await self.close(code=frames.CLOSE_INTERNAL)

    async def _send_text(self, text: str) -> None:
        await self.send(text_data=text)

    async def _close_with(self, code: int) -> None:
        await self.close(code=code)

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return task

    def _put(self, frame: frames.ServerFrame, response_id: str | None = None) -> None:
        try:
            self.outbox.put(frame, response_id=response_id)
        except Overflow:
            self._give_up()

    def _give_up(self) -> None:
        """The client does not read: the close must not wait behind what it does not read either."""
        if not self.outbox.closing:
            self.outbox.close(CLOSE_RATE)
            self._start(self._close_with(CLOSE_RATE))

    # --- frames in --------------------------------------------------------------------------------------------------

    async def receive(self, text_data: str | None = None, bytes_data: bytes | None = None) -> None:
        if self.access is None or self.outbox.closing:
            return
        try:
            frame = frames.parse(text_data)
        except FrameError as error:
            self._put(
                frames.Error(
                    event_id=error.event_id, code=error.code, message=error.message, param=error.param, retryable=False
                )
            )
            if error.close is not None:
                self.outbox.close(error.close)
            return
        if isinstance(frame, frames.Ping):
            self._put(frames.Pong(event_id=frame.event_id))
        elif len(self.tasks) >= MOST_TASKS:
            self._put(
                frames.Error(
                    event_id=frame.event_id, code="too_many_requests", retryable=True, retry_after_ms=1000,
                    message="This socket has too much to do already; wait for answers before you ask for more.",
                )
            )  # fmt: skip
        elif isinstance(frame, frames.Create):
            self._start(self._guarded(self._create(frame), frame.event_id))
        elif isinstance(frame, frames.Cancel):
            self._start(self._guarded(self._cancel(frame), frame.event_id, frame.response_id))
        else:
            self._start(self._guarded(self._resume(frame), frame.event_id, frame.response_id))

    async def _guarded(
        self, work: Coroutine[Any, Any, None], event_id: str | None, response_id: str | None = None
    ) -> None:
        """Whatever goes wrong in a task becomes an error frame; the socket stays."""
        try:
            await work
        except Refusal as error:
            if isinstance(error, RateLimited) and (rates := rate_headers.frame(error.standings)) is not None:
                self._put(rates)
            self._put(
                frames.Error(
                    event_id=event_id,
                    response_id=response_id,
                    code=error.code,
                    message=error.message,
                    param=error.param,
                    retryable=error.retryable,
                    retry_after_ms=error.retry_after_s * 1000 if error.retry_after_s is not None else None,
                )
            )
        except Overflow:
            self._give_up()
        except asyncio.CancelledError:
            raise
        except Exception as error:
            passing = isinstance(error, redis.exceptions.ConnectionError | redis.exceptions.TimeoutError)
            if not passing:
                log.exception("socket.failed")
            message = "The queue cannot be reached right now." if passing else "Something went wrong on our side."
            self._put(
                frames.Error(
                    event_id=event_id, response_id=response_id, code="unavailable" if passing else "internal",
                    message=message, retryable=True,
                )
            )  # fmt: skip

    async def _create(self, frame: frames.Create) -> None:
        with self._place():
            stateless = not isinstance(frame.input, str)
            if stateless:
                generation = await self._stateless(frame)
            elif frame.draft_id is not None:
                raise BadInput("A draft is tried out with a list of messages, of which nothing is kept.", param="input")
            else:
                generation = await in_thread(
                    services.ask,
                    access=self.access,
                    text=frame.input,
                    conversation_id=frame.conversation_id,
                    parent_id=frame.parent_id,
                    assistant_id=frame.assistant_id,
                    params=frame.params,
                    model=frame.model,
                    idempotency_key=frame.idempotency_key,
                )
            key = str(generation.pk)
            if stateless and key not in self.leases:
                self.leases[key] = Lease(key)
            narrator = self._narrator(generation)
            position, parent_id = await in_thread(_place_of, generation)
        self._take_over(key)
        self._put(
            frames.Queued(
                response_id=key,
                position=position,
                event_id=frame.event_id,
                conversation_id=narrator.conversation_id,
                message_id=narrator.message_id,
                parent_id=parent_id,
                model=generation.model,
            ),
            key,
        )
        if (rates := rate_headers.frame(generation.standings or ())) is not None:
            self._put(rates)
        await self._follow(narrator, after=-1, position=position)

    @contextmanager
    def _place(self) -> Iterator[None]:
        """A place among the responses of this socket, until it is followed. Raises TooManyResponses."""
        if len(self.following) + self.starting >= MOST_RESPONSES:
            raise TooManyResponses(
                f"This socket follows {MOST_RESPONSES} responses already; wait for one to end.", retry_after_s=1
            )
        self.starting += 1
        try:
            yield
        finally:
            self.starting -= 1

    def _take_over(self, key: str) -> None:
        """Whoever tells this response here stops: it is told from another place on, and never twice at once."""
        former = self.following.pop(key, None)
        if former is not None:
            former.cancel()
        self.outbox.forget(key)

    async def _stateless(self, frame: frames.Create) -> Generation:
        assert self.access is not None
        if not self.stateless_allowed and frame.draft_id is None:
            raise BadInput("input must be a text here.", param="input")
        if frame.conversation_id is not None or frame.parent_id is not None:
            raise BadInput("A list of messages stands alone; send a text to a conversation.", param="conversation_id")
        assert not isinstance(frame.input, str)
        return await complete(
            access=self.access,
            messages=[{"role": message.role, "content": message.text} for message in frame.input],
            params=frame.params,
            model=frame.model,
            assistant_id=frame.assistant_id,
            draft_id=frame.draft_id,
            idempotency_key=frame.idempotency_key,
        )

    async def _cancel(self, frame: frames.Cancel) -> None:
        """The answer is the ending of the response itself, for whoever follows it."""
        await in_thread(services.cancel, access=self.access, generation_id=frame.response_id)

    async def _resume(self, frame: frames.Resume) -> None:
        assert self.access is not None
        generation = await in_thread(selectors.generation, self.access, frame.response_id)
        key = str(generation.pk)
        self._take_over(key)
        with self._place():
            pass
        await self._follow(self._narrator(generation, after=frame.after), after=frame.after)

    # --- answers out ------------------------------------------------------------------------------------------------

    def _narrator(self, generation: Generation, after: int = -1) -> Narrator:
        seen = max(after, 0)
        return Narrator(
            self.outbox,
            str(generation.pk),
            told=seen,
            seen=seen,
            conversation_id=str(generation.conversation_id) if generation.conversation_id else None,
            message_id=str(generation.message_id) if generation.message_id else None,
        )

    async def _follow(self, narrator: Narrator, *, after: int, position: int = 0) -> None:
        key = narrator.response_id
        self.following[key] = task = asyncio.current_task()
        waiting = self._start(self._positions(key, position)) if position > 1 else None
        try:
            await self._tell(narrator, after, waiting)
        finally:
            if waiting is not None:
                waiting.cancel()
            if self.following.get(key) is task:
                del self.following[key]

    async def _tell(self, narrator: Narrator, after: int, waiting: asyncio.Task[None] | None) -> None:
        assert self.access is not None
        async with aclosing(events(self.access, narrator.response_id, after)) as told:
            async for event in told:
                if waiting is not None:
                    waiting.cancel()
                if await narrator.tell(event):
                    lease = self.leases.pop(narrator.response_id, None)
                    if lease is not None:
                        lease.end(stop=False)
                    return

    async def _positions(self, key: str, position: int) -> None:
        """Tell how the queue moves, until the answer starts."""
        while position:
            await asyncio.sleep(POSITION_EVERY_S)
            with suppress(redis.exceptions.RedisError):  # the next one may get through
                now = await asyncio.to_thread(queue_position, key)
                if now and now != position:
                    self._put(frames.Queued(response_id=key, position=now), key)
                position = now


class TooManyResponses(Refusal):
    status = 429
    code = "too_many_responses"
    retryable = True


def _place_of(generation: Generation) -> tuple[int, str | None]:
    """Its position in the queue, and the question that the answer belongs to."""
    position = queue_position(str(generation.pk)) if generation.unfinished else 0
    message = generation.message if generation.message_id else None
    return position, str(message.parent_id) if message is not None and message.parent_id else None


def _plan_of(access: Access) -> dict[str, int | float]:
    with scope.tenant_scope(access.tenant):
        return limits_of(access).said()


def _where_from(opened: Mapping[str, Any]) -> tuple[str | None, str, str | None]:
    """The client's address, an id of the socket, and the page's origin: for the audit log and the limits of keys."""
    headers = dict(opened.get("headers", ()))
    peer = (opened.get("client") or (None,))[0]
    forwarded = headers.get(b"x-forwarded-for", b"").decode("latin-1")
    origin = headers.get(b"origin")
    return (
        client_address(peer, forwarded),
        request_id(headers.get(b"x-request-id", b"").decode("latin-1")),
        origin.decode("latin-1") if origin is not None else None,
    )


class UiConsumer(ResponseConsumer):
    """/ws/ui?tenant=slug: the session's user, in one of that user's tenants. Origins are checked in chatapp.asgi."""

    stateless_allowed = False

    def session_key(self) -> str | None:
        session = self.scope.get("session")
        return session.session_key if session is not None else None

    async def let_in(self) -> Access:
        slug = parse_qs(self.scope["query_string"].decode("latin-1")).get("tenant", [""])[0]
        user = self.scope["user"]
        if not user.is_authenticated:
            raise NotLetIn("unauthenticated", "Log in first.", frames.CLOSE_UNAUTHENTICATED)
        try:
            return await in_thread(access_for_user, user, slug)
        except NoAccess:
            raise NotLetIn("not_found", "There is no such team.", frames.CLOSE_FORBIDDEN) from None
        except MfaRequired as refusal:
            raise NotLetIn(refusal.code, refusal.message, frames.CLOSE_FORBIDDEN) from None


class ApiConsumer(ResponseConsumer):
    """/ws/v1: an API key, as Bearer header or as the subprotocols octavo.v1 and octavo.key.<key>. No cookie counts."""

    async def let_in(self) -> Access:
        try:
            return await in_thread(access_for_key, key_of_socket(self.scope))
        except BadKey as bad:
            close = frames.CLOSE_UNAUTHENTICATED if bad.status == 401 else frames.CLOSE_FORBIDDEN
            raise NotLetIn(bad.code, bad.message, close) from None
