"""The protocol without IO: what to do when a connection opens, speaks, falls silent or breaks, and when time passes.

A driver reports what happens (`opened`, `received`, `lost`, `tick`), carries out `actions()` after each report, and
calls `tick` at `deadline()`. Times are seconds of a clock that never goes back. Nothing here waits, sleeps or sends.

Promises: a request that was not acknowledged is sent again under the same idempotency key; each running response is
resumed on every new connection behind the last thing that is whole (octavo_client.cursor); a connection that is silent
is asked, and given up; one that will expire is replaced before. Attempts to connect wait a random part ("full jitter")
of 0.5 s, 1 s, 2 s … 15 s, so that a restarted server is not met by all at once.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from octavo_client import frames
from octavo_client.call import Call
from octavo_client.cursor import Gap, Mismatch
from octavo_client.errors import (
    AccessDenied,
    AccessRevoked,
    AnswerTimeout,
    AuthenticationFailed,
    ClientClosed,
    ConnectionFailed,
    OctavoError,
    RequestRefused,
    ResponseLost,
    SessionEnded,
)
from octavo_client.topics import Subscription, Topics

FIRST_WAIT_S = 0.5
LONGEST_WAIT_S = 15.0
ANSWER_S = 8.0  # a connection that is asked must answer within this
OPEN_S = 15.0  # and one that opens must say so
UNHEARD_S = 15.0  # no word about a request: it is sent again
STALL_S = 15.0  # nothing of a running response: it is resumed; twice as long each time in vain
LONGEST_STALL_S = 120.0
GAPS = 5
RESTARTS = 3

FATAL: dict[int, type[SessionEnded]] = {
    4400: SessionEnded,
    4401: AuthenticationFailed,
    4403: AccessDenied,
    4413: SessionEnded,
    4440: AccessRevoked,
}


@dataclass(frozen=True)
class Open:
    """Open connection `connection`; report `opened`, or `lost`."""

    connection: int


@dataclass(frozen=True)
class Send:
    connection: int
    text: str


@dataclass(frozen=True)
class Close:
    """Close it after what was sent; what it still says is not wanted, and `lost` need not be reported."""

    connection: int


Action = Open | Send | Close


@dataclass
class _Connection:
    heard_at: float
    open: bool = False
    ready: bool = False
    asked: bool = False
    heartbeat_s: float = 25.0
    error: frames.ErrorFrame | None = None


@dataclass
class Core:
    """`give_up_s`: without a connection for so long, everything fails. `max_retries`: how often a request that the
    server refuses for now is sent again; `changed` is called when `state` has changed."""

    give_up_s: float = 300.0
    max_retries: int = 3
    jitter: Callable[[], float] = random.random
    changed: Callable[[], None] = lambda: None

    state: str = "idle"  # idle, connecting, open, waiting, ended
    error: OctavoError | None = None  # why it has ended
    reason: str = ""  # what the last connection broke with
    session: frames.SessionCreated | None = None
    rate_limits: list[frames.RateLimit] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    topics: Topics = field(init=False)

    _actions: list[Action] = field(default_factory=list)
    _connections: dict[int, _Connection] = field(default_factory=dict)
    _current: int | None = None
    _opening: int | None = None
    _numbers: int = 0
    _failures: int = 0
    _retry_at: float | None = None
    _lost_at: float | None = None

    def __post_init__(self) -> None:
        self.topics = Topics(self.send)

    # --- what callers want ------------------------------------------------------------------------------------------

    def connect(self, now: float) -> None:
        """Open a connection where there is none."""
        if self.state in ("idle", "waiting"):
            self._lost_at = now if self._lost_at is None else self._lost_at
            self._open(now)

    def start(self, call: Call, now: float, *, timeout_s: float | None = None) -> Call:
        """Ask, or follow. Raises what the session has ended with."""
        if self.state == "ended":
            assert self.error is not None
            raise self.error.copy()
        if call.request is not None:
            call.request.setdefault("idempotency_key", None)
            call.request["idempotency_key"] = call.request["idempotency_key"] or call.event_id
        call.expires_at = None if timeout_s is None else now + timeout_s
        self.calls.append(call)
        self.connect(now)
        self._fill(now)
        return call

    def cancel(self, call: Call, now: float) -> None:
        """Stop a response; its ending says when that is done."""
        if not (call.ended or call.stopping):
            self._stop(call, now)

    def _stop(self, call: Call, now: float) -> None:
        call.stopping = True
        if not call.accepted and call.connection is None:
            self._drop(call)
            call.cancelled_here()
        elif call.accepted and call.connection is not None:
            self._send_cancel(call)
            call.act_at = now + UNHEARD_S

    def abandon(self, call: Call, now: float) -> None:
        """Nobody reads it any more: it is stopped, and its events are not kept."""
        call.abandoned = True
        call.events.clear()
        self.cancel(call, now)

    def subscribe(self, topic: str, now: float) -> Subscription:
        """Hear of a topic, on this connection and all that follow. Raises what the session has ended with."""
        if self.error is not None:
            raise self.error.copy()
        reader = Subscription(topic)
        self.topics.add(reader)
        self.connect(now)
        return reader

    def send(self, frame: dict[str, Any]) -> bool:
        """Any other frame; False where there is no connection."""
        if self._current is None:
            return False
        self._send(self._current, frame)
        return True

    def close(self, error: OctavoError | None = None) -> None:
        """End it all; what runs fails."""
        if self.state == "ended":
            return
        self.error = error or ClientClosed("This client is closed.", code="closed")
        for number in list(self._connections):
            self._actions.append(Close(number))
        self._connections.clear()
        self._current = self._opening = self._retry_at = None
        for call in self.calls:
            call.fail(self.error.copy())
        self.calls.clear()
        self.topics.close(self.error)
        self._enter("ended")

    def actions(self) -> list[Action]:
        """What is to be done now, in order; each is told once."""
        actions, self._actions = self._actions, []
        return actions

    # --- what happens -----------------------------------------------------------------------------------------------

    def opened(self, number: int, now: float) -> None:
        connection = self._connections.get(number)
        if connection is not None:
            connection.open = True
            connection.heard_at = now

    def lost(self, number: int, now: float, *, code: int = 1006, reason: str = "", fatal: bool = False) -> None:
        """A connection has closed, broken, or could not be opened. `fatal`: trying again would be of no use."""
        connection = self._connections.pop(number, None)
        if connection is None:
            return
        said = connection.error
        self.reason = (said.message if said else "") or reason or f"The connection closed with {code}."
        if code in FATAL or fatal:
            kind = FATAL.get(code, ConnectionFailed)
            self.close(kind(self.reason, code=said.code if said else "closed"))
            return
        if number == self._opening:
            self._opening = None
        if number == self._current:
            self._current = None
        for call in self.calls:
            if call.connection == number:
                call.connection, call.moved, call.act_at = None, True, None
        self._fill(now)
        if self._current is None and self._opening is None:
            self._lost_at = now if self._lost_at is None else self._lost_at
            longest = min(LONGEST_WAIT_S, FIRST_WAIT_S * 2 ** min(self._failures, 10))
            self._failures += 1
            self._retry_at = now + longest * self.jitter()
            self._enter("waiting")

    def received(self, number: int, text: str | bytes, now: float) -> None:
        connection = self._connections.get(number)
        if connection is None:
            return
        connection.open, connection.asked, connection.heard_at = True, False, now
        frame = frames.parse(text)
        if frame is not None and number == self._current and self.topics.heard(frame):
            return
        if isinstance(frame, frames.SessionCreated):
            self._ready(number, connection, frame, now)
        elif isinstance(frame, frames.SessionExpiring):
            if number == self._current and self._opening is None:
                self._open(now)
        elif isinstance(frame, frames.RateLimitsUpdated):
            self.rate_limits = frame.rate_limits
        elif isinstance(frame, frames.ErrorFrame):
            self._refused(number, connection, frame, now)
        elif isinstance(frame, frames.Queued):
            self._queued(number, frame, now)
        elif frame is not None:
            response_id = getattr(frame, "response_id", None)
            for call in list(self.calls):
                if response_id is not None and call.answer.response_id == response_id and call.connection == number:
                    self._heard(call, frame, now)
        self._fill(now)
        self._tidy()

    def tick(self, now: float) -> None:
        """Time has passed; harmless at any time."""
        if self.state == "ended":
            return
        if self._lost_at is not None and now >= self._lost_at + self.give_up_s:
            message = f"No connection for {self.give_up_s:.0f} s. {self.reason}".strip()
            self.close(ConnectionFailed(message, code="unreachable", retryable=True))
            return
        if self._retry_at is not None and now >= self._retry_at:
            self._open(now)
        for number, connection in list(self._connections.items()):
            if now < self._patience_ends(connection):
                continue
            if connection.ready and not connection.asked:
                connection.asked, connection.heard_at = True, now
                self._send(number, {"type": "ping"})
            else:
                self._actions.append(Close(number))
                self.lost(number, now, reason="The connection does not answer.")
        for call in list(self.calls):
            if call.expires_at is not None and now >= call.expires_at:
                self._time_out(call, now)
            elif call.act_at is not None and now >= call.act_at:
                self._act(call, now)
        self._fill(now)
        self._tidy()

    def deadline(self) -> float | None:
        """When `tick` has something to do next."""
        times = [self._patience_ends(connection) for connection in self._connections.values()]
        if self._retry_at is not None:
            times.append(self._retry_at)
        if self._lost_at is not None and self.state != "ended":
            times.append(self._lost_at + self.give_up_s)
        for call in self.calls:
            times += [at for at in (call.expires_at, call.act_at) if at is not None]
        return min(times, default=None)

    # --- connections ------------------------------------------------------------------------------------------------

    def _enter(self, state: str) -> None:
        if state != self.state:
            self.state = state
            self.changed()

    def _open(self, now: float) -> None:
        self._numbers += 1
        self._retry_at = None
        self._opening = self._numbers
        self._connections[self._numbers] = _Connection(now)
        self._actions.append(Open(self._numbers))
        if self._current is None:
            self._enter("connecting")

    def _ready(self, number: int, connection: _Connection, frame: frames.SessionCreated, now: float) -> None:
        connection.ready = True
        connection.heartbeat_s = max(1.0, frame.heartbeat_s)
        if number != self._opening:
            return
        former, self._current, self._opening = self._current, number, None
        self._failures = 0
        self._lost_at = None
        self.session = frame
        for call in list(self.calls):
            # The server stops a stateless answer with its connection: it stays on the former one to its end.
            if call.connection is not None and call.connection == former and call.stateless and call.accepted:
                continue
            if call.connection is not None:
                call.connection, call.act_at = None, None
        self._fill(now)
        self.topics.connected()
        self._enter("open")

    def _patience_ends(self, connection: _Connection) -> float:
        if connection.ready and not connection.asked:
            return connection.heard_at + connection.heartbeat_s
        return connection.heard_at + (ANSWER_S if connection.ready else OPEN_S)

    def _tidy(self) -> None:
        """Connections that were replaced are closed once nothing is followed on them."""
        kept = {self._current, self._opening, *(call.connection for call in self.calls)}
        for number in [number for number in self._connections if number not in kept]:
            del self._connections[number]
            self._actions.append(Close(number))

    def _send(self, number: int, frame: dict[str, Any]) -> None:
        self._actions.append(Send(number, frames.render(frame)))

    # --- responses --------------------------------------------------------------------------------------------------

    def _fill(self, now: float) -> None:
        """Take up what waits for nothing but a connection with room."""
        number, session = self._current, self.session
        if number is None or session is None:
            return
        room = session.limits.max_responses - sum(call.connection == number for call in self.calls)
        for call in list(self.calls):
            if room > 0 and call.connection is None and call.act_at is None:
                self._take(call, number, now)
                room -= 1

    def _take(self, call: Call, number: int, now: float) -> None:
        """Ask for it, or for the rest of it, on this connection."""
        call.connection = number
        call.patience = STALL_S
        if not call.accepted:
            assert call.request is not None
            assert self.session is not None
            frame = {"type": "response.create", "event_id": call.event_id, **call.request}
            size, most = len(frames.render(frame).encode()), self.session.limits.max_frame_bytes
            if size > most:  # the server would close the connection, and with it everybody else's
                self._drop(call)
                message = f"This request takes {size:,} bytes; the server takes {most:,} at most."
                call.fail(RequestRefused(message, code="frame_too_large", param="input"))
                return
            self._send(number, frame)
            # In a lane it may have to wait for others.
            call.act_at = None if "stream_id" in call.request else now + UNHEARD_S
            return
        if call.stopping:
            self._send_cancel(call)
        self._resume(call)
        call.act_at = now + call.patience

    def _resume(self, call: Call) -> None:
        assert call.connection is not None
        after = call.cursor.rewind()
        call.resuming = True
        lane = call.request.get("stream_id") if call.request is not None else None
        frame = {"type": "response.resume", "event_id": call.event_id, "response_id": call.answer.response_id}
        self._send(call.connection, {**frame, "after": after, "stream_id": lane})

    def _send_cancel(self, call: Call) -> None:
        assert call.connection is not None
        self._send(call.connection, {"type": "response.cancel", "response_id": call.answer.response_id})

    def _queued(self, number: int, frame: frames.Queued, now: float) -> None:
        for call in list(self.calls):
            if call.connection != number:
                continue
            if not call.accepted and frame.event_id == call.event_id:
                call.queued(frame)
                call.tries = 0
                if call.stopping:
                    self._send_cancel(call)
            elif call.answer.response_id == frame.response_id:
                call.queued(frame)
            else:
                continue
            call.patience = STALL_S
            call.act_at = now + call.patience

    def _heard(self, call: Call, frame: frames.Frame, now: float) -> None:
        call.patience = STALL_S
        call.act_at = now + call.patience
        try:
            if isinstance(frame, frames.TextDelta):
                call.text(frame)
            elif isinstance(frame, frames.ToolCallBegun):
                call.tool_call_begun(frame)
            elif isinstance(frame, frames.ToolCallDelta):
                call.tool_call(frame)
            elif isinstance(frame, frames.Started):
                call.started(frame)
            elif isinstance(frame, frames.Ended):
                self._end(call, frame)
            elif isinstance(frame, frames.Unknown):
                call.unknown(frame)
            call.resuming = False
            if call.cursor.last > call.furthest:
                call.furthest, call.gaps = call.cursor.last, 0
        except Gap:
            if call.resuming:
                return  # it was on its way before
            call.gaps += 1
            if call.gaps > GAPS:
                self._lose(call, "The server does not tell the whole of this response.", code="gap")
            else:
                self._resume(call)
        except Mismatch:
            self._lose(call, "The server tells this response differently from before.", code="mismatch")

    def _end(self, call: Call, frame: frames.Ended) -> None:
        unasked = isinstance(frame, frames.Cancelled) and call.stateless and call.moved and not call.stopping
        if unasked:
            # Its connection broke, and with it went its lease.
            self._again(call, "The connection broke, which ends an answer that is kept nowhere. Ask again.")
            return
        call.end(frame)
        self._drop(call)

    def _again(self, call: Call, message: str) -> None:
        """A stateless answer that the server has let go begins anew, unless some of it has been given away."""
        if call.read or call.restarts >= RESTARTS:
            self._lose(call, message, code="connection_lost")
            return
        call.restarts += 1
        call.restart()

    def _lose(self, call: Call, message: str, *, code: str) -> None:
        self._drop(call)
        call.fail(ResponseLost(message, code=code, retryable=True))

    def _refused(self, number: int, connection: _Connection, frame: frames.ErrorFrame, now: float) -> None:
        concerned = [
            call
            for call in self.calls
            if call.connection == number
            and (
                (frame.event_id is not None and frame.event_id == call.event_id)
                or (frame.response_id is not None and frame.response_id == call.answer.response_id)
            )
        ]
        if not concerned:
            connection.error = frame
        for call in concerned:
            wait = frame.retry_after_ms / 1000 if frame.retry_after_ms is not None else None
            if frame.retryable and (call.tries < self.max_retries or call.accepted):
                backoff = min(LONGEST_WAIT_S, FIRST_WAIT_S * 2 ** min(call.tries, 10)) * self.jitter()
                call.tries += 1
                call.act_at = now + (backoff if wait is None else wait)
                if not call.accepted:
                    call.connection = None
                    if call.stopping:
                        self._drop(call)
                        call.cancelled_here()
            elif call.accepted and call.stateless and call.moved and not call.stopping:
                self._again(call, frame.message)
            else:
                self._drop(call)
                kind = ResponseLost if call.accepted else RequestRefused
                error = kind(
                    frame.message, code=frame.code, param=frame.param, retryable=frame.retryable, retry_after_s=wait
                )
                call.fail(error)

    def _act(self, call: Call, now: float) -> None:
        """Nothing was heard of it, or its time to be sent again has come."""
        call.act_at = None
        number = call.connection
        if number is None:
            return  # it is taken up when there is a connection with room
        if not call.accepted:
            self._take(call, number, now)
            return
        if call.stopping:
            self._send_cancel(call)
        self._resume(call)
        call.patience = min(call.patience * 2, LONGEST_STALL_S)
        call.act_at = now + call.patience

    def _time_out(self, call: Call, now: float) -> None:
        call.expires_at = None
        call.abandoned = True
        call.fail(AnswerTimeout("This answer took too long, and was cancelled.", code="timeout", retryable=True))
        if not call.stopping:
            self._stop(call, now)

    def _drop(self, call: Call) -> None:
        call.act_at = call.expires_at = None
        if call in self.calls:
            self.calls.remove(call)
