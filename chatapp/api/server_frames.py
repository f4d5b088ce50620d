"""What the server sends over the websocket: shapes, each field with what it is for.

Optional fields that are not set are left out. Clients must ignore fields and types of frames that they do not know.
"""

from __future__ import annotations

from typing import Annotated, TypeAlias

import msgspec
from msgspec import Meta

from chatapp.api.client_frames import MAX_EVENT_ID
from engine.protocol import Logprob as Logprob
from engine.protocol import Memory, Timing, TokenLogprob, Usage

MAX_FRAME_BYTES = 64 * 1024

ResponseId = Annotated[str, Meta(description="The response that this is of.")]
EventIdOf = Annotated[str | None, Meta(description="The event_id of the frame that this answers.")]
Lane = Annotated[str | None, Meta(description="The lane of the response, where it has one.")]
Index = Annotated[int, Meta(description="Which of the n choices, from 0.")]
FirstSeq = Annotated[int, Meta(description="The first event that this covers: the last one that came before, plus 1.")]
Seq = Annotated[int, Meta(description="The last event that this covers. The place to resume from.")]
More = Annotated[
    bool,
    Meta(
        description="More frames cover the same events and follow at once: apply them together with the one that is"
        " without it, and resume from before them if that one does not come."
    ),
]
Epoch = Annotated[int, Meta(description="Seconds of the Unix epoch.")]


class ServerFrame(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", omit_defaults=True):
    pass


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """The socket's own limits, and under `plan` those of the one who asks, where there are."""

    max_frame_bytes: Annotated[int, Meta(description="The longest frame that a client may send.")] = MAX_FRAME_BYTES
    max_responses: Annotated[int, Meta(description="Responses that one socket follows at a time.")]
    max_waiting: Annotated[int, Meta(description="response.create frames that may wait in the lanes of one socket.")]
    max_id_characters: Annotated[int, Meta(description="The longest event_id or stream_id.")] = MAX_EVENT_ID
    frames_per_second: Annotated[int, Meta(description="How many frames a client may send, in the long run.")]
    frames_at_once: Annotated[int, Meta(description="How many it may send at once.")]
    plan: Annotated[
        dict[str, int | float], Meta(description="The team's plan, and this person's or key's own lower limits.")
    ] = {}


class SessionCreated(ServerFrame, frozen=True, kw_only=True, tag="session.created"):
    """The first frame of every socket that may go on."""

    session_id: Annotated[
        str,
        Meta(description="An id of this socket, for questions about it: each frame is logged as this id/its number."),
    ]
    limits: Limits
    heartbeat_s: Annotated[
        float, Meta(description="Send a ping when nothing has come for so long, and reconnect when nothing answers.")
    ]
    expires_at: Annotated[int, Meta(description="When the server will end this socket, in seconds of the Unix epoch.")]


class SessionExpiring(ServerFrame, frozen=True, kw_only=True, tag="session.expiring"):
    """The server will end this socket at `expires_at`: open another, and resume there what runs."""

    expires_at: Epoch


class Queued(ServerFrame, frozen=True, kw_only=True, tag="response.queued"):
    """The question is accepted; from here on the response has an id and goes on without this socket, if it belongs to a
    conversation. It comes again, with no more than the position, whenever that has changed."""

    response_id: ResponseId
    position: Annotated[int, Meta(description="In your team's own queue, from 1; 0: it does not wait.")]
    event_id: EventIdOf = None
    stream_id: Lane = None
    conversation_id: Annotated[str | None, Meta(description="The conversation, where it is in one.")] = None
    message_id: Annotated[str | None, Meta(description="The message that the answer will be.")] = None
    parent_id: Annotated[
        str | None,
        Meta(description="The message before the answer: what the question has become, or the answer that goes on."),
    ] = None
    model: Annotated[str | None, Meta(description="The model that answers.")] = None


class Created(ServerFrame, frozen=True, kw_only=True, tag="response.created"):
    """A model has begun with it: event 0 of the response."""

    response_id: ResponseId
    prompt_tokens: Annotated[int, Meta(description="All of the prompt, your team's instructions included.")]
    cached_tokens: Annotated[int, Meta(description="Those of them that did not have to be computed.")]
    shared_tokens: Annotated[
        int, Meta(description="Those of the cached ones that your team's chats share: its instructions.")
    ] = 0
    stream_id: Lane = None
    conversation_id: str | None = None


class Delta(ServerFrame, frozen=True, kw_only=True):
    """`first_seq` to `seq`: the events that this covers, of the whole response."""

    response_id: ResponseId
    index: Index
    first_seq: FirstSeq
    seq: Seq
    more: More = False
    stream_id: Lane = None


class TextDelta(Delta, frozen=True, kw_only=True, tag="response.output_text.delta"):
    """More of the text of a choice. One that begins at `first_seq` 1 where later events were expected holds all of the
    text so far, and replaces what you have: the database has it in one piece."""

    delta: Annotated[str, Meta(description="What to add to the text; may be empty.")]
    finish_reason: Annotated[
        str | None, Meta(description="Why this choice has ended, in its last one: stop, length or tool_calls.")
    ] = None
    logprobs: Annotated[
        list[TokenLogprob] | None, Meta(description="One for each token, where params.logprobs asks for them.")
    ] = None
    prompt_logprobs: Annotated[
        list[TokenLogprob] | None,
        Meta(description="Of the prompt's tokens from the second on, where params.prompt_logprobs asks for them."),
    ] = None


class FunctionCall(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="function_call"):
    """A call that an answer has begun."""

    call_id: Annotated[str, Meta(description="What the message of the role tool names as tool_call_id.")]
    name: Annotated[str, Meta(description="The function.")]


class ItemAdded(Delta, frozen=True, kw_only=True, tag="response.output_item.added"):
    """A choice has begun to call a function. Its arguments follow."""

    call: Annotated[int, Meta(description="Which call of the choice, from 0.")]
    item: FunctionCall


class ArgumentsDelta(Delta, frozen=True, kw_only=True, tag="response.function_call_arguments.delta"):
    """More of the arguments of a call. Together they are a JSON object, once the choice has ended by tool_calls."""

    call: Annotated[int, Meta(description="Which call of the choice, from 0.")]
    delta: Annotated[str, Meta(description="What to add to the arguments.")]


class Lagged(ServerFrame, frozen=True, kw_only=True, tag="lagged"):
    """This socket is read too slowly to keep up with the response. Nothing is lost: it goes on by itself behind
    `resume_after`, from the log, once there is room. A client need not do anything."""

    response_id: ResponseId
    resume_after: Annotated[int, Meta(description="The last event that is on its way to you; -1: none.")]
    stream_id: Lane = None


class ResponseError(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What went wrong with a response."""

    code: Annotated[str, Meta(description="For programs.")]
    message: Annotated[str, Meta(description="For people.")]
    param: Annotated[str | None, Meta(description="The field at fault.")] = None
    retryable: Annotated[bool, Meta(description="Asking again may help.")] = False


class Ended(ServerFrame, frozen=True, kw_only=True):
    """How a response ended; its last frame."""

    response_id: ResponseId
    seq: Annotated[int, Meta(description="The last event of the response: one more than that of its last delta.")]
    finish_reason: Annotated[str | None, Meta(description="Of the first choice: stop, length or tool_calls.")] = None
    stream_id: Lane = None
    conversation_id: str | None = None
    message_id: Annotated[str | None, Meta(description="The message that the answer has become.")] = None
    usage: Usage | None = None
    timing: Timing | None = None
    error: ResponseError | None = None


class Completed(Ended, frozen=True, kw_only=True, tag="response.completed"):
    """It came to its own end."""


class Incomplete(Ended, frozen=True, kw_only=True, tag="response.incomplete"):
    """It was cut off at its limit of tokens."""


class Cancelled(Ended, frozen=True, kw_only=True, tag="response.cancelled"):
    """Somebody stopped it; what it had said until then stays."""


class Failed(Ended, frozen=True, kw_only=True, tag="response.failed"):
    """It could not be answered, or not to the end: `error` says why."""


class RateLimit(msgspec.Struct, frozen=True, kw_only=True):
    """How a limit by the minute stands."""

    name: Annotated[str, Meta(description="requests or tokens.")]
    limit: Annotated[int, Meta(description="How many a minute.")]
    remaining: Annotated[int, Meta(description="How many are left now.")]
    reset_seconds: Annotated[float, Meta(description="Until all of them are there again.")]


class RateLimitsUpdated(ServerFrame, frozen=True, kw_only=True, tag="rate_limits.updated"):
    """After each question, and with each refusal for a rate, where something is limited by the minute."""

    rate_limits: list[RateLimit]


class Error(ServerFrame, frozen=True, kw_only=True, tag="error"):
    """What could not be done. The socket stays open, unless a close follows at once."""

    code: Annotated[str, Meta(description="For programs.")]
    message: Annotated[str, Meta(description="For people.")]
    event_id: EventIdOf = None
    response_id: Annotated[str | None, Meta(description="The response that it concerns.")] = None
    stream_id: Lane = None
    param: Annotated[str | None, Meta(description="The field at fault.")] = None
    retryable: Annotated[bool, Meta(description="The same frame may be sent again.")]
    retry_after_ms: Annotated[int | None, Meta(description="And when.")] = None


class Pong(ServerFrame, frozen=True, kw_only=True, tag="pong"):
    """The answer to a ping."""

    event_id: EventIdOf = None


class Subscribed(ServerFrame, frozen=True, kw_only=True, tag="subscribed"):
    """From here on changes of the topic are told. Load what you show of it now: what happened before was not. It comes
    again, without event_id, whenever something may have been missed."""

    topic: str
    event_id: EventIdOf = None


class Unsubscribed(ServerFrame, frozen=True, kw_only=True, tag="unsubscribed"):
    """Nothing more of the topic is told."""

    topic: str
    event_id: EventIdOf = None


class ConversationItem(msgspec.Struct, frozen=True, kw_only=True):
    """A conversation as lists show it."""

    id: str
    title: str
    updated_at: Annotated[str, Meta(description="ISO 8601.")]
    running: Annotated[bool, Meta(description="It is being answered.")]
    starred_at: Annotated[str | None, Meta(description="ISO 8601; null: it is not starred.")] = None
    archived_at: Annotated[str | None, Meta(description="ISO 8601; null: it is in the list.")] = None
    tags: Annotated[list[str], Meta(description="By name.")] = msgspec.field(default_factory=list)


class ConversationUpdated(ServerFrame, frozen=True, kw_only=True, tag="conversation.updated"):
    """Topic conversations: one of yours is new, was asked something, has been answered, has another title or other
    tags, was starred or archived, or has been asked back after it was deleted."""

    conversation: ConversationItem


class ConversationDeleted(ServerFrame, frozen=True, kw_only=True, tag="conversation.deleted"):
    """Topic conversations: somebody has deleted it."""

    conversation_id: str


class UsageUpdated(ServerFrame, frozen=True, kw_only=True, tag="usage.updated"):
    """Topic usage: a response of yours has ended, wherever it was asked for, and this is what it used."""

    response_id: ResponseId
    model: str
    usage: Usage


class MemoryUpdated(ServerFrame, frozen=True, kw_only=True, tag="memory.updated"):
    """Topic memory: the blocks of the engine's memory that the conversation has now. Four times a second at most, and
    only when something has changed."""

    conversation_id: Annotated[str | None, Meta(description="Whose; left out for a new conversation.")] = None
    memory: Annotated[
        Memory | None, Meta(description="Left out while no engine answers: what you have is what was.")
    ] = None


AnyServerFrame: TypeAlias = (
    SessionCreated
    | SessionExpiring
    | Queued
    | Created
    | TextDelta
    | ItemAdded
    | ArgumentsDelta
    | Lagged
    | Completed
    | Incomplete
    | Cancelled
    | Failed
    | RateLimitsUpdated
    | Error
    | Pong
    | Subscribed
    | Unsubscribed
    | ConversationUpdated
    | ConversationDeleted
    | UsageUpdated
    | MemoryUpdated
)
