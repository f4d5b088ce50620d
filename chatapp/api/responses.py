"""From the engine's events to the frames of one response: numbers, merged ranges, and how an ending is called.

A `Narrator` tells one response to one socket. It remembers the last `seq` told, so that text whose event brought none
(a stop string half seen) is covered by the next frame and the numbering has no gap.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from chatapp.api import frames
from chatapp.api.following import Whole
from chatapp.api.outbox import Outbox
from engine import protocol

RETRYABLE = frozenset({"timeout", "interrupted", "failed"})
# What would end the same way again.
NEVER_AGAIN = frozenset({"poison"})

_DEFAULT_MESSAGES = {
    "refused": "The engine refused this request.",
    "cancelled": "This response was cancelled.",
    "timeout": "This response took too long and was ended.",
    "interrupted": "The engine stopped while it answered; ask again.",
    "failed": "The engine failed while it answered; ask again.",
}


def problem(event: protocol.AnyTerminal) -> frames.ResponseError | None:
    """What went wrong with a response that ended so; None where nothing did."""
    if isinstance(event, protocol.Finished | protocol.Cancelled):
        return None
    kind = event.__struct_config__.tag
    assert isinstance(kind, str)
    code = event.code or kind
    return frames.ResponseError(
        code=code,
        message=event.message or _DEFAULT_MESSAGES[kind],
        param=event.param,
        retryable=(event.retryable or kind in RETRYABLE) and code not in NEVER_AGAIN,
    )


def ending(
    response_id: str,
    event: protocol.AnyTerminal,
    *,
    conversation_id: str | None = None,
    message_id: str | None = None,
) -> frames.Ended:
    """The last frame of a response. An answer cut off by its token limit is `incomplete`, as OpenAI calls it."""
    kind: type[frames.Ended]
    if isinstance(event, protocol.Finished):
        kind = frames.Incomplete if event.finish_reason == "length" else frames.Completed
    elif isinstance(event, protocol.Cancelled):
        kind = frames.Cancelled
    else:
        kind = frames.Failed
    return kind(
        response_id=response_id,
        seq=event.seq,
        finish_reason=event.finish_reason,
        conversation_id=conversation_id,
        message_id=message_id,
        usage=event.usage,
        timing=event.timing,
        error=problem(event),
    )


class Lagging(Exception):
    """There is no room in the outbox for what came next."""


@dataclass
class Narrator:
    """Tells the events of one response, in order, into an outbox."""

    outbox: Outbox
    response_id: str
    told: int = 0  # the last seq that a frame has covered
    seen: int = 0  # the last seq that came
    after: int = -1  # where to go on from the log: `told`, or -1 before the start has been told
    stream_id: str | None = None
    conversation_id: str | None = None
    message_id: str | None = None

    def tell(self, event: protocol.AnyEvent) -> bool:
        """True when this was the last one. Raises Lagging, and has told nothing of this event then."""
        if isinstance(event, protocol.Delta):
            parts = [part for part in event.parts if _says(part)]
            if parts:
                self._delta(1 if isinstance(event, Whole) else self.told + 1, event.seq, parts)
            self.seen = event.seq
            return False
        if isinstance(event, protocol.Started):
            self.outbox.put(
                frames.Created(
                    response_id=self.response_id,
                    prompt_tokens=event.prompt_tokens,
                    cached_tokens=event.cached_tokens,
                    shared_tokens=event.shared_tokens,
                    stream_id=self.stream_id,
                    conversation_id=self.conversation_id,
                ),
                response_id=self.response_id,
            )
            self.after = max(self.after, 0)
            return False
        if isinstance(event, protocol.Claimed):
            return False
        if self.seen > self.told:
            self._delta(self.told + 1, self.seen, ())
        last = ending(self.response_id, event, conversation_id=self.conversation_id, message_id=self.message_id)
        if self.stream_id is not None:
            last = msgspec.structs.replace(last, stream_id=self.stream_id)
        self.outbox.put(last, response_id=self.response_id)
        return True

    def _delta(self, first: int, seq: int, parts: Sequence[protocol.Part]) -> None:
        if not self.outbox.put_delta(self.response_id, first, seq, parts, self.stream_id):
            self.seen = self.told
            raise Lagging
        self.told = self.after = seq

    def lagged(self) -> frames.Lagged:
        return frames.Lagged(response_id=self.response_id, resume_after=self.after, stream_id=self.stream_id)


def _says(part: protocol.Part) -> bool:
    return bool(part.text or part.tool_calls or part.logprobs or part.prompt_logprobs or part.finish_reason)
