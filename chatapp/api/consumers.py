"""The websockets /ws/v1 (API keys) and /ws/ui (the browser's session): their lives, and who may open them.

A handler only validates and hands on: to the desk (chatapp.api.desk) what concerns responses, to the subscriptions
(chatapp.api.subscriptions) what concerns topics. All that a socket sends goes through its outbox. Whatever goes wrong
in the work that a frame makes becomes an error frame, and the socket stays. How each way in proves who it is:
subclasses at the end.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable, Coroutine, Mapping
from typing import Any
from urllib.parse import parse_qs

import structlog
from channels.generic.websocket import AsyncWebsocketConsumer

from chatapp import scope, stopping
from chatapp.api import frames, rate_headers, turns
from chatapp.api.answering import in_thread
from chatapp.api.desk import MOST_RESPONSES, Desk
from chatapp.api.frames import FrameError
from chatapp.api.guard import Watch, guard
from chatapp.api.keys import key_of_socket, ticket_of_socket
from chatapp.api.lanes import MOST_WAITING
from chatapp.api.outbox import Outbox, Overflow
from chatapp.api.seats import seats
from chatapp.api.subscriptions import Subscriptions
from chatapp.api.tickets import access_for_ticket
from chatapp.audit.source import NOWHERE, client_address, set_source, source
from chatapp.away import away
from chatapp.errors import Overloaded, Refusal, TooMany
from chatapp.ids import LONGEST_REQUEST_ID, request_id
from chatapp.limits.budget import RateLimited
from chatapp.limits.selectors import limits_of
from chatapp.metrics.sockets import outboxes
from chatapp.tenants.access import Access, BadKey, MfaRequired, NoAccess, access_for_key, access_for_user
from engine import tracing

log = structlog.get_logger(__name__)

HEARTBEAT_S = 25.0
# Long enough for anyone's work, and every session's rights are looked at anew now and then. Less than the day after
# which daphne ends a socket by itself, without a word.
LIFETIME_S = 23 * 3600
EXPIRING_S = 60
# When the process is told to end: time to open another socket, and to ask there for what runs.
LEAVING_S = 2.0
# Frames being worked on at once, those that follow a response or wait in a lane included; a client that sends more has
# to wait. There is always room for a Stop of all that it follows.
MOST_TASKS = 4 * MOST_RESPONSES + MOST_WAITING
# Frames that a client may send, in the long run and at once. Nobody who reads the answers gets near it.
FRAMES_PER_SECOND = 100
FRAMES_AT_ONCE = 1000
SUBPROTOCOL = "octavo.v1"
API_PATH = "/ws/v1"
ROOM_FOR_NUMBER = 12  # behind a socket's id: "/" and how many frames a day has


class NotLetIn(Exception):
    """`retry_after_s`: it may be tried again then; None: it is of no use."""

    def __init__(self, code: str, message: str, close: int, retry_after_s: int | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.close = close
        self.retry_after_s = retry_after_s


class ResponseConsumer(AsyncWebsocketConsumer):
    """One socket. Subclasses say who is asking (`let_in`)."""

    stateless_allowed = True
    ended_words = "Your access has ended. Log in again."

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.session_id = str(uuid.uuid4())
        self.outbox = Outbox(self._send_text, self._close_with)
        outboxes.add(self.outbox)
        self.watch: Watch | None = None
        self.desk: Desk | None = None
        self.topics: Subscriptions | None = None
        self.tasks: set[asyncio.Task[None]] = set()
        self._leave_seat: Callable[[], object] = lambda: None
        self._stay = lambda: None  # takes back what happens when the process is told to end
        self._came = NOWHERE
        self._frames = 0
        self._may_send = float(FRAMES_AT_ONCE)
        self._sent_at = time.monotonic()

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
            set_source(*_where_from(self.scope, self.session_id))
            self._came = source()
            access = await self._seated()
            scope.enter(access.tenant)
            limits = await in_thread(_plan_of, access)
        except NotLetIn as refusal:
            again = refusal.retry_after_s
            self._put(
                frames.Error(
                    code=refusal.code,
                    message=refusal.message,
                    retryable=again is not None,
                    retry_after_ms=again * 1000 if again is not None else None,
                )
            )
            self.outbox.close(refusal.close)
            return
        except Exception:
            log.exception("socket.not_opened")
            self._put(frames.Error(code="unavailable", message="This cannot be served right now.", retryable=True))
            self.outbox.close(frames.CLOSE_INTERNAL)
            return
        self.desk = Desk(access, self.outbox, self._put, self._start, stateless_allowed=self.stateless_allowed)
        self.topics = Subscriptions(access, self.outbox, self._give_up)
        self.watch = Watch(access, self.session_key(), self._revoked)
        guard().add(self.watch)
        self._put(
            frames.SessionCreated(
                session_id=self.session_id,
                limits=frames.Limits(
                    max_responses=MOST_RESPONSES,
                    max_waiting=MOST_WAITING,
                    frames_per_second=FRAMES_PER_SECOND,
                    frames_at_once=FRAMES_AT_ONCE,
                    plan=limits,
                ),
                heartbeat_s=HEARTBEAT_S,
                expires_at=int(time.time() + LIFETIME_S),
            )
        )
        self._start(self._expire())
        self._stay = stopping.begun.call(lambda: self._start(self._leave()))

    async def _seated(self) -> Access:
        """Who is asking, with a place for the socket. Raises NotLetIn."""
        try:
            seats.check()
            access = await self.let_in()
            self._leave_seat = seats.take(self, access)
        except Overloaded as full:
            raise NotLetIn(full.code, full.message, frames.CLOSE_TRY_LATER, full.retry_after_s) from None
        except TooMany as full:
            raise NotLetIn(full.code, full.message, frames.CLOSE_RATE, full.retry_after_s) from None
        return access

    async def disconnect(self, code: int) -> None:
        self._leave_seat()
        self._stay()
        if self.watch is not None:
            guard().remove(self.watch)
        if self.desk is not None:
            self.desk.close()
        if self.topics is not None:
            self.topics.close()
        for task in self.tasks:
            task.cancel()

    def _revoked(self) -> None:
        self._put(frames.Error(code="revoked", message=self.ended_words, retryable=False))
        self.outbox.close(frames.CLOSE_REVOKED)

    async def _expire(self) -> None:
        await asyncio.sleep(LIFETIME_S - EXPIRING_S)
        self._put(frames.SessionExpiring(expires_at=int(time.time() + EXPIRING_S)))
        await asyncio.sleep(EXPIRING_S)
        self.outbox.close(frames.CLOSE_GOING_AWAY)

    async def _leave(self) -> None:
        """Answers that end with this socket get the time that requests get."""
        self._put(frames.SessionExpiring(expires_at=int(time.time() + LEAVING_S)))
        await asyncio.sleep(LEAVING_S)
        while self.desk is not None and self.desk.holds and not stopping.over.reached:  # noqa: ASYNC110
            await asyncio.sleep(0.1)
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
            self.outbox.close(frames.CLOSE_RATE)
            self._start(self._close_with(frames.CLOSE_RATE))

    # --- frames in --------------------------------------------------------------------------------------------------

    async def receive(self, text_data: str | None = None, bytes_data: bytes | None = None) -> None:
        desk, topics = self.desk, self.topics
        if desk is None or topics is None or self.outbox.closing or not self._in_time():
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
            return
        self._next_request()
        if len(self.tasks) >= MOST_TASKS:
            self._put(
                frames.Error(
                    event_id=frame.event_id, code="too_many_requests", retryable=True, retry_after_ms=1000,
                    message="This socket has too much to do already; wait for answers before you ask for more.",
                )
            )  # fmt: skip
        elif isinstance(frame, frames.Create):
            self._work(lambda: _traced(desk.create(frame)), frame, stream_id=frame.stream_id)
        elif isinstance(frame, frames.Cancel):
            self._work(lambda: desk.cancel(frame), frame, frame.response_id, frame.stream_id)
        elif isinstance(frame, frames.Resume):
            self._work(lambda: desk.resume(frame), frame, frame.response_id, frame.stream_id)
        elif isinstance(frame, frames.Subscribe):
            self._work(lambda: topics.subscribe(frame), frame)
        else:
            self._work(lambda: topics.unsubscribe(frame), frame)

    def _next_request(self) -> None:
        """Each frame is a request of its own, to the audit log and to all logs: its number behind the socket's id."""
        self._frames += 1
        came = self._came
        set_source(came.address, f"{came.request_id}/{self._frames}", came.origin, came.traceparent)

    def _in_time(self) -> bool:
        """Closes the socket of a client that sends frames faster than any use of it could want."""
        now = time.monotonic()
        allowed = self._may_send + (now - self._sent_at) * FRAMES_PER_SECOND
        self._may_send, self._sent_at = min(allowed, FRAMES_AT_ONCE) - 1, now
        if self._may_send >= 0:
            return True
        message = f"A socket takes {FRAMES_PER_SECOND} frames a second, and {FRAMES_AT_ONCE:,} at once."
        self._put(frames.Error(code="too_many_frames", message=message, retryable=True, retry_after_ms=10_000))
        self.outbox.close(frames.CLOSE_RATE)
        return False

    def _work(
        self,
        begin: Callable[[], Coroutine[Any, Any, None]],
        frame: frames.ClientFrame,
        response_id: str | None = None,
        stream_id: str | None = None,
    ) -> None:
        """Do it in a task of its own. What must be in the order of the frames, `begin` does before it returns."""
        try:
            work = begin()
        except Refusal as refusal:
            self._refuse(refusal, frame.event_id, response_id, stream_id)
        else:
            self._start(self._guarded(work, frame.event_id, response_id, stream_id))

    def _refuse(self, refusal: Refusal, event_id: str | None, response_id: str | None, stream_id: str | None) -> None:
        if isinstance(refusal, RateLimited) and (rates := rate_headers.frame(refusal.standings)) is not None:
            self._put(rates)
        self._put(
            frames.Error(
                event_id=event_id,
                response_id=response_id,
                stream_id=stream_id,
                code=refusal.code,
                message=refusal.message,
                param=refusal.param,
                retryable=refusal.retryable,
                retry_after_ms=refusal.retry_after_s * 1000 if refusal.retry_after_s is not None else None,
            )
        )

    async def _guarded(
        self, work: Coroutine[Any, Any, None], event_id: str | None, response_id: str | None, stream_id: str | None
    ) -> None:
        """Whatever goes wrong in a task becomes an error frame; the socket stays."""
        try:
            await work
        except Refusal as refusal:
            self._refuse(refusal, event_id, response_id, stream_id)
        except Overflow:
            self._give_up()
        except asyncio.CancelledError:
            raise
        except Exception as error:
            if (gone := away(error)) is not None:
                self._refuse(gone, event_id, response_id, stream_id)
                return
            log.exception("socket.failed")
            self._put(
                frames.Error(
                    event_id=event_id, response_id=response_id, stream_id=stream_id,
                    code="internal", message="Something went wrong on our side.", retryable=True,
                )
            )  # fmt: skip


def _traced(answering: Coroutine[Any, Any, None]) -> Coroutine[Any, Any, None]:
    """With a span around what a question makes, up to the end of its answer, where traces are kept."""
    if not tracing.on():
        return answering
    came = source()

    async def traced() -> None:
        with tracing.span(
            "response.create", kind="server", parent=came.traceparent, octavo__request_id=came.request_id
        ):
            await answering

    return traced()


def _plan_of(access: Access) -> dict[str, int | float]:
    with scope.tenant_scope(access.tenant):
        return limits_of(access).said()


def _where_from(opened: Mapping[str, Any], session_id: str) -> tuple[str | None, str, str | None, str]:
    """The client's address, an id of the socket (the caller's, or the one that it is told), the page's origin, and an
    API caller's trace: for the audit log, the limits of keys, and what is logged."""
    headers = dict(opened.get("headers", ()))
    peer = (opened.get("client") or (None,))[0]
    forwarded = headers.get(b"x-forwarded-for", b"").decode("latin-1")
    origin = headers.get(b"origin")
    given = headers.get(b"x-request-id", b"").decode("latin-1")
    return (
        client_address(peer, forwarded),
        request_id(given, longest=LONGEST_REQUEST_ID - ROOM_FOR_NUMBER) if given else session_id,
        origin.decode("latin-1") if origin is not None else None,
        tracing.traceparent(headers.get(b"traceparent", b"").decode("latin-1")) if opened["path"] == API_PATH else "",
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
        turns.asked_by(self.session_key())
        try:
            return await in_thread(access_for_user, user, slug)
        except NoAccess:
            raise NotLetIn("not_found", "There is no such team.", frames.CLOSE_FORBIDDEN) from None
        except MfaRequired as refusal:
            raise NotLetIn(refusal.code, refusal.message, frames.CLOSE_FORBIDDEN) from None


class ApiConsumer(ResponseConsumer):
    """/ws/v1: an API key, as Bearer header or as the subprotocols octavo.v1 and octavo.key.<key>; or a ticket, as
    octavo.ticket.<ticket>. No cookie counts."""

    ended_words = "What this API key may do has changed or ended. Ask an admin of your team."

    async def let_in(self) -> Access:
        try:
            ticket = ticket_of_socket(self.scope)
            key = key_of_socket(self.scope) if ticket is None else ticket
            turns.asked_by(key)
            return await in_thread(access_for_key if ticket is None else access_for_ticket, key)
        except BadKey as bad:
            close = frames.CLOSE_UNAUTHENTICATED if bad.status == 401 else frames.CLOSE_FORBIDDEN
            raise NotLetIn(bad.code, bad.message, close) from None
