"""A client of Octavo's websocket API: `Octavo`, and for asyncio `AsyncOctavo`, with the same names.

    from octavo_client import Octavo

    with Octavo("https://chat.example.org", api_key="octv_…") as octavo:
        for text in octavo.stream("Tell me a story.").texts():
            print(text, end="", flush=True)

Lost connections are made again, and answers go on where they were: no text is lost or comes twice.
"""

from octavo_client.aio import AsyncOctavo
from octavo_client.answer import Answer, Choice, ToolCall
from octavo_client.call import Event
from octavo_client.errors import (
    AccessDenied,
    AccessRevoked,
    AnswerTimeout,
    AuthenticationFailed,
    ClientClosed,
    ConnectionFailed,
    OctavoError,
    RequestRefused,
    ResponseFailed,
    ResponseLost,
    SessionEnded,
)
from octavo_client.frames import (
    Cancelled,
    Completed,
    ConversationDeleted,
    ConversationItem,
    ConversationUpdated,
    Ended,
    Failed,
    Incomplete,
    Limits,
    Queued,
    RateLimit,
    SessionCreated,
    Started,
    Subscribed,
    TextDelta,
    Timing,
    ToolCallBegun,
    ToolCallDelta,
    Usage,
    UsageUpdated,
)
from octavo_client.streams import AsyncConversation, AsyncStream, AsyncSubscription
from octavo_client.sync import Changes, Conversation, Octavo, Stream

__version__ = "0.1.0"

__all__ = [
    "AccessDenied",
    "AccessRevoked",
    "Answer",
    "AnswerTimeout",
    "AsyncConversation",
    "AsyncOctavo",
    "AsyncStream",
    "AsyncSubscription",
    "AuthenticationFailed",
    "Cancelled",
    "Changes",
    "Choice",
    "ClientClosed",
    "Completed",
    "ConnectionFailed",
    "Conversation",
    "ConversationDeleted",
    "ConversationItem",
    "ConversationUpdated",
    "Ended",
    "Event",
    "Failed",
    "Incomplete",
    "Limits",
    "Octavo",
    "OctavoError",
    "Queued",
    "RateLimit",
    "RequestRefused",
    "ResponseFailed",
    "ResponseLost",
    "SessionCreated",
    "SessionEnded",
    "Started",
    "Stream",
    "Subscribed",
    "TextDelta",
    "Timing",
    "ToolCall",
    "ToolCallBegun",
    "ToolCallDelta",
    "Usage",
    "UsageUpdated",
]
