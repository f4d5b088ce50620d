"""What a client may send over the websocket: shapes and the types of their fields, each with what it is for.

The structs are what parses a frame (chatapp.api.frames) and what the published document is made of (asyncapi). What a
value means (is this text empty, does this conversation exist) is for the services behind.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import Meta

# Client-made ids come back in our answers; longer ones than this are somebody's mistake.
MAX_EVENT_ID = 128
TOPICS = ("conversations", "usage", "memory")

EventId = Annotated[
    str,
    Meta(
        max_length=MAX_EVENT_ID,
        description="Your own id of this frame. What answers it, or refuses it, carries it again.",
    ),
]
StreamId = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=MAX_EVENT_ID,
        description="The lane: a name of your choice. Responses of one lane come one after the other; those of"
        " different lanes at the same time. All frames of a response carry its lane.",
    ),
]
Topic = Annotated[Literal["conversations", "usage", "memory"], Meta(description="What to hear of.")]


class InputText(msgspec.Struct, frozen=True, tag_field="type", tag="text"):
    """A part of a message's content; text is the only kind there is."""

    text: str


class CalledFunction(msgspec.Struct, frozen=True):
    """A function that an answer has called."""

    name: str
    arguments: Annotated[str, Meta(description="A JSON object, as the answer wrote it.")]


class InputToolCall(msgspec.Struct, frozen=True):
    """A call that a former answer made, as its frames told it."""

    id: Annotated[str, Meta(description="The call_id.")]
    function: CalledFunction
    type: Literal["function"] = "function"


class InputMessage(msgspec.Struct, frozen=True, omit_defaults=True):
    """One message of a stateless request, as in OpenAI's chat completions."""

    role: Annotated[str, Meta(description="user, assistant, system, developer or tool.")]
    content: Annotated[
        str | list[InputText] | None,
        Meta(description="The text. Only an assistant's message that has tool_calls may lack one."),
    ] = None
    tool_calls: Annotated[
        list[InputToolCall] | None, Meta(description="Of an assistant's message: what it called.")
    ] = None
    tool_call_id: Annotated[
        str | None, Meta(description="Of a message of the role tool: the call that its content is the result of.")
    ] = None

    @property
    def text(self) -> str:
        return self.content if isinstance(self.content, str) else "".join(part.text for part in self.content or ())


class ClientFrame(msgspec.Struct, frozen=True, kw_only=True, tag_field="type"):
    event_id: EventId | None = None


class Create(ClientFrame, frozen=True, kw_only=True, tag="response.create"):
    """Ask. A text goes to a conversation, which the server keeps; a list of messages stands alone, and nothing of it
    is kept but what it used. A conversation is a tree in which nothing is overwritten: a question that names the
    parent_id of another is that one, edited; question_id and continue_id stand in the place of an input.
    """

    input: Annotated[
        str | list[InputMessage] | None,
        Meta(
            description="A text: the next message of a conversation, or the first one of a new one. A list of"
            " messages: a stateless call. System messages in it are your own instructions, behind your team's; the"
            " key needs the scope for them. Stateless calls are for /ws/v1 only."
        ),
    ] = None
    stream_id: StreamId | None = None
    conversation_id: Annotated[
        str | None, Meta(description="The conversation to go on with. Without it a new one begins.")
    ] = None
    parent_id: Annotated[
        str | None,
        Meta(
            description="The message that this one follows, to branch off there. Without it: the newest. `root`: none,"
            " so that it stands beside the conversation's first."
        ),
    ] = None
    question_id: Annotated[
        str | None,
        Meta(
            description="Instead of an input: a question of the conversation, to be answered once more beside the"
            " answers that it has."
        ),
    ] = None
    continue_id: Annotated[
        str | None,
        Meta(
            description="Instead of an input: an answer of the conversation that was cut at its limit, stopped or"
            " broken off, to go on right where it ends. The rest becomes a message behind it; read them as one."
        ),
    ] = None
    assistant_id: Annotated[
        str | None, Meta(description="Who answers in a new conversation or a stateless call; else the team's default.")
    ] = None
    file_ids: Annotated[
        list[str],
        Meta(description="Files of yours to attach to this message of a conversation; their text stands before it."),
    ] = []
    draft_id: Annotated[
        str | None, Meta(description="A prompt's draft to try out, by a stateless call of who may edit prompts.")
    ] = None
    model: Annotated[
        str | None, Meta(description="A model of your team, `default`, or `assistant:<slug>` in a stateless call.")
    ] = None
    params: Annotated[
        dict[str, Any],
        Meta(
            description="How to answer, under the names of the HTTP API: max_tokens, temperature, top_p, top_k, min_p,"
            " seed, stop, min_tokens, ignore_eos; n, logprobs, response_format and the others for stateless calls."
        ),
    ] = {}
    tools: Annotated[
        list[dict[str, Any]] | None,
        Meta(description="Functions that a stateless answer may call, as in OpenAI's chat completions."),
    ] = None
    tool_choice: Annotated[
        str | dict[str, Any] | None, Meta(description="auto, none, required, or the one function to call.")
    ] = None
    parallel_tool_calls: Annotated[bool | None, Meta(description="Whether an answer may call several at once.")] = None
    idempotency_key: Annotated[
        str | None,
        Meta(
            description="A new one for each question. Sent again with the same question, after a lost connection say,"
            " it leads to the response that is there already, told from its beginning."
        ),
    ] = None


class Cancel(ClientFrame, frozen=True, kw_only=True, tag="response.cancel"):
    """Stop a response, or all of a lane. The ending of what it stops answers it, for everyone who follows that."""

    response_id: Annotated[str | None, Meta(description="The response to stop.")] = None
    stream_id: Annotated[
        StreamId | None,
        Meta(
            description="Instead of a response: a lane of this socket. What runs in it is stopped; what waits in it"
            " is dropped, each with an error `cancelled`. An error `not_found` says that it is empty."
        ),
    ] = None


class Resume(ClientFrame, frozen=True, kw_only=True, tag="response.resume"):
    """Follow a response from behind `after`: on any socket, of any process, while it runs or after its end.

    On the socket that follows it already, it is told from there on instead, and never twice at once.
    """

    response_id: Annotated[str, Meta(description="A response of yours.")]
    after: Annotated[
        int, Meta(ge=-1, le=2**53, description="The last `seq` that you have; 0: its start; -1: nothing of it.")
    ] = -1
    stream_id: StreamId | None = None


class Subscribe(ClientFrame, frozen=True, kw_only=True, tag="subscribe"):
    """Hear of a topic from now on. `subscribed` answers it. Of memory one conversation at a time: another one takes its
    place.
    """

    topic: Topic
    conversation_id: Annotated[
        str | None,
        Meta(description="For memory: whose blocks. Without it: those that wait for a new conversation."),
    ] = None
    assistant_id: Annotated[
        str | None, Meta(description="For memory of a new conversation: who will answer; else the team's default.")
    ] = None


class Unsubscribe(ClientFrame, frozen=True, kw_only=True, tag="unsubscribe"):
    """Hear of it no more. `unsubscribed` answers it, also where nothing was subscribed."""

    topic: Topic


class Ping(ClientFrame, frozen=True, kw_only=True, tag="ping"):
    """Is anybody there? `pong` answers it, whatever else the socket does."""


AnyClientFrame: TypeAlias = Create | Cancel | Resume | Subscribe | Unsubscribe | Ping
