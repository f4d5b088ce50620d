"""The responses of one client: asked for, followed, taken up again on another connection, stopped. No IO, as in core.

Which connection is there, and that it speaks, is core's; what is asked on it, and what the answers mean, is here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from octavo_client import frames
from octavo_client.call import Call
from octavo_client.cursor import Gap, Mismatch
from octavo_client.errors import AnswerTimeout, OctavoError, RequestRefused, ResponseLost

FIRST_WAIT_S = 0.5
LONGEST_WAIT_S = 15.0
UNHEARD_S = 15.0  # no word about a request: it is sent again
STALL_S = 15.0  # nothing of a running response: it is resumed; twice as long each time in vain
LONGEST_STALL_S = 120.0
GAPS = 5
RESTARTS = 3


@dataclass
class Responses:
    """`send` sends a frame on a connection. `current`: the connection for what is new, `session` what it said."""

    send: Callable[[int, dict[str, Any]], None]
    jitter: Callable[[], float]
    max_retries: int
    calls: list[Call] = field(default_factory=list)
    current: int | None = None
    session: frames.SessionCreated | None = None

    def add(self, call: Call, now: float, timeout_s: float | None) -> None:
        if call.request is not None:
            call.request["idempotency_key"] = call.request.get("idempotency_key") or call.event_id
        call.expires_at = None if timeout_s is None else now + timeout_s
        self.calls.append(call)

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

    def fill(self, now: float) -> None:
        """Take up what waits for nothing but a connection with room."""
        number, session = self.current, self.session
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
            self.send(number, frame)
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
        self.send(call.connection, {**frame, "after": after, "stream_id": lane})

    def _send_cancel(self, call: Call) -> None:
        assert call.connection is not None
        self.send(call.connection, {"type": "response.cancel", "response_id": call.answer.response_id})

    # --- what happens to connections ---

    def moved(self, former: int | None, session: frames.SessionCreated) -> None:
        """There is a new connection; what was followed on the former one is to go on here."""
        self.session = session
        for call in self.calls:
            if call.connection is None or (call.connection == former and call.stateless and call.accepted):
                continue  # the server stops a stateless answer with its connection: it stays there to its end
            call.connection, call.moved, call.act_at = None, True, None

    def lost(self, number: int) -> None:
        for call in self.calls:
            if call.connection == number:
                call.connection, call.moved, call.act_at = None, True, None

    def blamed(self, number: int, error: RequestRefused) -> None:
        """The server closed a connection over a frame. Requests that were sent on it and not acknowledged may be that:
        each is sent again as often as one that is refused for now, and fails then."""
        for call in list(self.calls):
            if call.connection != number or call.accepted:
                continue
            call.tries += 1
            if call.tries > self.max_retries:
                self._drop(call)
                call.fail(error.copy())

    def close(self, error: OctavoError) -> None:
        for call in self.calls:
            call.fail(error.copy())
        self.calls.clear()

    def tick(self, now: float) -> None:
        for call in list(self.calls):
            if call.expires_at is not None and now >= call.expires_at:
                self._time_out(call, now)
            elif call.act_at is not None and now >= call.act_at:
                self._act(call, now)

    def deadlines(self) -> list[float]:
        return [at for call in self.calls for at in (call.expires_at, call.act_at) if at is not None]

    # --- what the server says ---

    def hear(self, number: int, frame: frames.Frame, now: float) -> None:
        """A frame about a response, on the connection that it is followed on."""
        if isinstance(frame, frames.Queued):
            self._queued(number, frame, now)
            return
        response_id = getattr(frame, "response_id", None)
        for call in list(self.calls):
            if response_id is not None and call.answer.response_id == response_id and call.connection == number:
                self._heard(call, frame, now)

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

    def refused(self, number: int, frame: frames.ErrorFrame, now: float) -> bool:
        """A request, or something about a response, is refused; False where it is about none of these."""
        concerned = [
            call
            for call in self.calls
            if call.connection == number
            and (
                (frame.event_id is not None and frame.event_id == call.event_id)
                or (frame.response_id is not None and frame.response_id == call.answer.response_id)
            )
        ]
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
        return bool(concerned)

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
