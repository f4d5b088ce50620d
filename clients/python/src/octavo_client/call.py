"""One response as this client follows it: its frames in, its events and its answer out. Knows no connection."""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Callable
from typing import Any

import msgspec

from octavo_client.answer import Answer, Choice, ToolCall
from octavo_client.cursor import Cursor
from octavo_client.errors import OctavoError, ResponseFailed
from octavo_client.frames import (
    STATUS,
    Delta,
    Ended,
    Failed,
    Queued,
    Started,
    TextDelta,
    ToolCallBegun,
    ToolCallDelta,
    Unknown,
)

# What a stream gives, in this order: Queued (again as the queue moves), Started, deltas, one ending.
Event = Queued | Started | TextDelta | ToolCallBegun | ToolCallDelta | Ended


def new_id() -> str:
    return secrets.token_hex(16)


class Call:
    """`request`: the frame that asks, None where a response is followed that somebody else has asked for.

    `collect`: nobody reads events, so none are kept; the answer may then begin anew as long as it has not ended.
    """

    def __init__(self, request: dict[str, Any] | None, *, response_id: str | None = None, after: int = -1) -> None:
        self.request = request
        self.event_id = new_id()
        self.answer = Answer(response_id=response_id)
        self.cursor = Cursor(after)
        self.events: deque[Event] = deque()
        self.error: OctavoError | None = None
        self.ended = False
        self.collect = False
        self.read = False  # some text has been given away
        self.abandoned = False
        self.changed: Callable[[], None] = lambda: None
        # What the core does with it.
        self.connection: int | None = None  # where it was asked for, or is being followed
        self.moved = False  # the connection that it was asked on is gone
        self.stopping = False
        self.tries = 0
        self.restarts = 0
        self.resuming = False  # asked for the rest; what is still on its way from before does not fit
        self.gaps = 0
        self.furthest = 0
        self.expires_at: float | None = None
        self.act_at: float | None = None  # when to do something about it, unless something is heard
        self.patience = 0.0

    @property
    def stateless(self) -> bool:
        """Nothing of it is kept, and the server stops it when its connection breaks."""
        return self.request is not None and not isinstance(self.request.get("input", ""), str)

    @property
    def accepted(self) -> bool:
        return self.answer.response_id is not None

    def restart(self) -> None:
        """Ask anew, as if nothing had been."""
        assert self.request is not None
        self.event_id = new_id()
        self.request["idempotency_key"] = new_id()
        self.answer.__dict__.update(Answer().__dict__)
        self.cursor = Cursor()
        self.events.clear()
        self.connection = None
        self.moved = self.resuming = False
        self.act_at = None
        self.gaps = self.furthest = 0

    # --- frames -----------------------------------------------------------------------------------------------------

    def queued(self, frame: Queued) -> None:
        answer = self.answer
        answer.response_id = frame.response_id
        answer.position = frame.position
        answer.conversation_id = frame.conversation_id or answer.conversation_id
        answer.message_id = frame.message_id or answer.message_id
        answer.parent_id = frame.parent_id or answer.parent_id
        answer.model = frame.model or answer.model
        if answer.status == "sending":
            answer.status = "queued"
        if answer.status == "queued":
            self._tell(frame)

    def started(self, frame: Started) -> None:
        self.answer.conversation_id = frame.conversation_id or self.answer.conversation_id
        self.answer.status = "running"
        if self.cursor.begin():
            self._tell(frame)

    def text(self, frame: TextDelta) -> None:
        told = {"delta": frame.delta, "logprobs": frame.logprobs, "prompt_logprobs": frame.prompt_logprobs}
        given = {name: more for name, more in told.items() if more}
        kind = ("text", frame.index, frame.finish_reason)
        fresh = self._cover(frame, kind, [((name, frame.index), more) for name, more in given.items()])
        if fresh is None:
            return
        new = {name: more for name, more in zip(given, fresh, strict=True) if more}
        choice = self._choice(frame.index)
        ends = choice.finish_reason is None and frame.finish_reason is not None
        choice.text += new.get("delta", "")
        choice.logprobs += new.get("logprobs", [])
        choice.finish_reason = frame.finish_reason or choice.finish_reason
        self.answer.prompt_logprobs += new.get("prompt_logprobs", [])
        if new or ends:
            lacking = {"delta": "", "logprobs": None, "prompt_logprobs": None}
            self._tell(msgspec.structs.replace(frame, **{**lacking, **new}))

    def tool_call_begun(self, frame: ToolCallBegun) -> None:
        if self._cover(frame, ("call", frame.index, frame.call), []) is None:
            return
        calls = self._choice(frame.index).tool_calls
        is_new = frame.call >= len(calls)
        while frame.call >= len(calls):
            calls.append(ToolCall())
        calls[frame.call].id, calls[frame.call].name = frame.item.call_id, frame.item.name
        if is_new:
            self._tell(frame)

    def tool_call(self, frame: ToolCallDelta) -> None:
        kind = ("arguments", frame.index, frame.call)
        fresh = self._cover(frame, kind, [(kind, frame.delta)])
        if not fresh or not fresh[0]:
            return
        calls = self._choice(frame.index).tool_calls
        while frame.call >= len(calls):  # followed from the middle on, by somebody who has its beginning
            calls.append(ToolCall())
        calls[frame.call].arguments += fresh[0]
        self._tell(msgspec.structs.replace(frame, delta=fresh[0]))

    def unknown(self, frame: Unknown) -> None:
        """It says something that we cannot read, and yet its numbers leave no gap."""
        if frame.seq is not None and frame.first_seq is not None:
            self.cursor.cover(frame.first_seq, frame.seq, ("unknown", frame.type), [], more=frame.more)

    def _cover(self, frame: Delta, kind: Any, told: list[tuple[Any, Any]]) -> list[Any] | None:
        fresh = self.cursor.cover(frame.first_seq, frame.seq, kind, told, more=frame.more)
        self.answer.status = "running"
        return fresh

    def end(self, frame: Ended) -> None:
        """Raises Gap when something before it is missing."""
        self.cursor.end(frame.seq)
        answer = self.answer
        answer.status = STATUS[type(frame)]
        answer.finish_reason = frame.finish_reason
        answer.conversation_id = frame.conversation_id or answer.conversation_id
        answer.message_id = frame.message_id or answer.message_id
        answer.usage = frame.usage
        answer.timing = frame.timing
        if isinstance(frame, Failed):
            problem = frame.error
            error = ResponseFailed(
                problem.message if problem else "This response failed.",
                code=problem.code if problem else "failed",
                param=problem.param if problem else None,
                retryable=bool(problem and problem.retryable),
            )
            self.fail(error)
            return
        self.ended = True
        self._tell(frame)

    def fail(self, error: OctavoError) -> None:
        if self.ended:
            return
        if isinstance(error, ResponseFailed):
            error.answer = self.answer
        if not self.answer.ended:
            self.answer.status = "failed"
        self.error = error
        self.ended = True
        self.changed()

    def cancelled_here(self) -> None:
        """Stopped before the server has heard of it."""
        if not self.ended:
            self.answer.status = "cancelled"
            self.ended = True
            self.changed()

    # --- reading ----------------------------------------------------------------------------------------------------

    def next_event(self) -> Event | None:
        """The next one that has come, None where none has."""
        if not self.events:
            return None
        event = self.events.popleft()
        if isinstance(event, Delta):
            self.read = True
        return event

    def _choice(self, index: int) -> Choice:
        choices = self.answer.choices
        while index >= len(choices):
            choices.append(Choice(len(choices)))
        return choices[index]

    def _tell(self, event: Event) -> None:
        if not (self.collect or self.abandoned):
            last = self.events[-1] if self.events else None
            joined = _joined(last, event)
            if joined is None:
                self.events.append(event)
            else:
                self.events[-1] = joined
        self.changed()


def _joined(last: Event | None, event: Event) -> Event | None:
    """Text that nobody has read yet becomes one event, so a slow reader costs no more than the text itself."""
    if not (isinstance(last, TextDelta) and isinstance(event, TextDelta) and last.index == event.index):
        return None
    return msgspec.structs.replace(
        event,
        first_seq=last.first_seq,
        delta=last.delta + event.delta,
        logprobs=[*(last.logprobs or ()), *(event.logprobs or ())] or None,
        prompt_logprobs=[*(last.prompt_logprobs or ()), *(event.prompt_logprobs or ())] or None,
    )
