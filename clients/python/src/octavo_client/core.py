"""The protocol without IO: what to do when a connection opens, speaks, falls silent or breaks, and when time passes.

A driver reports what happens (`opened`, `received`, `lost`, `tick`), carries out `actions()` after each report, and
calls `tick` at `deadline()`. Times are seconds of a clock that never goes back. Nothing here waits, sleeps or sends.

Promises: a request that was not acknowledged is sent again under the same idempotency key; each running response is
resumed on every new connection behind the last thing that is whole (octavo_client.cursor); a connection that is silent
is asked, and given up; one that will expire is replaced before. Attempts to connect wait a random part ("full jitter")
of 0.5 s, 1 s, 2 s … 15 s, so that a restarted server is not met by all at once; and as long as a server without room
says.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from octavo_client import frames
from octavo_client.call import Call
from octavo_client.errors import (
    AccessDenied,
    AccessRevoked,
    AuthenticationFailed,
    ClientClosed,
    ConnectionFailed,
    OctavoError,
    RequestRefused,
    SessionEnded,
)
from octavo_client.responses import FIRST_WAIT_S, LONGEST_WAIT_S, Responses
from octavo_client.topics import Subscription, Topics

ANSWER_S = 8.0  # a connection that is asked must answer within this
OPEN_S = 15.0  # and one that opens must say so

BAD_FRAME = {4400, 4413}
"""A frame of ours could not be read, or was too long. Another connection is of use; which frame it was is not said."""
FATAL: dict[int, type[SessionEnded]] = {
    4401: AuthenticationFailed,
    4403: AccessDenied,
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
    rate_limits: list[frames.RateLimit] = field(default_factory=list)
    topics: Topics = field(init=False)
    responses: Responses = field(init=False)

    _actions: list[Action] = field(default_factory=list)
    _connections: dict[int, _Connection] = field(default_factory=dict)
    _opening: int | None = None
    _numbers: int = 0
    _failures: int = 0
    _retry_at: float | None = None
    _lost_at: float | None = None

    def __post_init__(self) -> None:
        self.topics = Topics(self.send)
        self.responses = Responses(self._send, self.jitter, self.max_retries)

    @property
    def session(self) -> frames.SessionCreated | None:
        """What the server said about the newest connection."""
        return self.responses.session

    @property
    def calls(self) -> list[Call]:
        """What is under way."""
        return self.responses.calls

    @property
    def _current(self) -> int | None:
        return self.responses.current

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
        self.responses.add(call, now, timeout_s)
        self.connect(now)
        self.responses.fill(now)
        return call

    def cancel(self, call: Call, now: float) -> None:
        """Stop a response; its ending says when that is done."""
        self.responses.cancel(call, now)

    def abandon(self, call: Call, now: float) -> None:
        """Nobody reads it any more: it is stopped, and its events are not kept."""
        self.responses.abandon(call, now)

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
        self.responses.current = self._opening = self._retry_at = None
        self.responses.close(self.error)
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
            self.responses.current = None
        if code in BAD_FRAME:
            self.responses.blamed(number, RequestRefused(self.reason, code=said.code if said else "bad_frame"))
        self.responses.lost(number)
        self.responses.fill(now)
        if self._current is None and self._opening is None:
            self._lost_at = now if self._lost_at is None else self._lost_at
            longest = min(LONGEST_WAIT_S, FIRST_WAIT_S * 2 ** min(self._failures, 10))
            self._failures += 1
            asked = (said.retry_after_ms or 0) / 1000 if said else 0.0
            self._retry_at = now + max(asked, longest * self.jitter())
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
            if not self.responses.refused(number, frame, now):
                connection.error = frame
        elif frame is not None:
            self.responses.hear(number, frame, now)
        self.responses.fill(now)
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
        self.responses.tick(now)
        self.responses.fill(now)
        self._tidy()

    def deadline(self) -> float | None:
        """When `tick` has something to do next."""
        times = [self._patience_ends(connection) for connection in self._connections.values()]
        if self._retry_at is not None:
            times.append(self._retry_at)
        if self._lost_at is not None and self.state != "ended":
            times.append(self._lost_at + self.give_up_s)
        return min([*times, *self.responses.deadlines()], default=None)

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
        former, self.responses.current, self._opening = self._current, number, None
        self._failures = 0
        self._lost_at = None
        self.responses.moved(former, frame)
        self.responses.fill(now)
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
