"""An example or two of every frame, for the published document and the reference page. The tests parse each of them."""

from __future__ import annotations

from typing import Any

from chatapp.api import server_frames as s
from engine.protocol import Logprob, Memory, MemoryRun, Timing, TokenLogprob, Usage

RESPONSE = "0199c1f2-7f3a-7c1e-9b57-2f4a6d0e8c11"
CONVERSATION = "0199c1f2-7f38-7d02-8a64-91b3c5d7e2f0"
QUESTION = "0199c1f2-7f39-7a45-b1c8-3e5f7092a4b6"
ANSWER = "0199c1f2-7f39-7e90-92d3-5c6b7a8f9012"
OTHER = "0199c1f3-0b21-7b9f-8e44-6a1d2c3b4f50"

_WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city, now.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}

# By the type of the frame: what the example shows, and the frame.
CLIENT: dict[str, list[tuple[str, dict[str, Any]]]] = {
    "response.create": [
        (
            "Begin a conversation",
            {
                "type": "response.create",
                "event_id": "q1",
                "input": "What is a prefix cache?",
                "params": {"max_tokens": 200, "temperature": 0.3},
                "idempotency_key": "5f0c2b1e",
            },
        ),
        (
            "Go on in it, in a lane",
            {
                "type": "response.create",
                "event_id": "q2",
                "stream_id": "chat",
                "conversation_id": CONVERSATION,
                "input": "And what does it cost?",
            },
        ),
        (
            "Edit its first question: the two stand side by side",
            {
                "type": "response.create",
                "conversation_id": CONVERSATION,
                "parent_id": "root",
                "input": "What is a prefix cache, in one sentence?",
            },
        ),
        (
            "Have a question answered once more",
            {"type": "response.create", "conversation_id": CONVERSATION, "question_id": QUESTION},
        ),
        (
            "Go on with an answer that was cut",
            {"type": "response.create", "conversation_id": CONVERSATION, "continue_id": ANSWER},
        ),
        (
            "A stateless call with a tool",
            {
                "type": "response.create",
                "event_id": "q3",
                "input": [
                    {"role": "system", "content": "Answer in one sentence."},
                    {"role": "user", "content": "Do I need an umbrella in Oslo?"},
                ],
                "tools": [_WEATHER],
                "tool_choice": "auto",
            },
        ),
        (
            "Its continuation, with what the tool gave",
            {
                "type": "response.create",
                "event_id": "q4",
                "input": [
                    {"role": "user", "content": "Do I need an umbrella in Oslo?"},
                    {
                        "role": "assistant",
                        "content": None,
                        "tool_calls": [
                            {
                                "id": "call_7d1f",
                                "type": "function",
                                "function": {"name": "get_weather", "arguments": '{"city": "Oslo"}'},
                            }
                        ],
                    },
                    {"role": "tool", "tool_call_id": "call_7d1f", "content": "Rain until the evening."},
                ],
                "tools": [_WEATHER],
            },
        ),
        (
            "JSON in a form of your own, three times, with log probabilities",
            {
                "type": "response.create",
                "input": [{"role": "user", "content": "Invent a person."}],
                "params": {
                    "n": 3,
                    "max_tokens": 200,
                    "logprobs": 2,
                    "response_format": {
                        "type": "json_schema",
                        "json_schema": {
                            "name": "person",
                            "schema": {"type": "object", "properties": {"name": {"type": "string"}}},
                        },
                    },
                },
            },
        ),
    ],
    "response.cancel": [
        ("Stop a response", {"type": "response.cancel", "event_id": "s1", "response_id": RESPONSE}),
        ("Stop a lane", {"type": "response.cancel", "event_id": "s2", "stream_id": "chat"}),
    ],
    "response.resume": [
        (
            "Go on after a lost connection",
            {"type": "response.resume", "event_id": "r1", "response_id": RESPONSE, "after": 41},
        )
    ],
    "subscribe": [
        ("Keep a list up to date", {"type": "subscribe", "event_id": "t1", "topic": "conversations"}),
        (
            "Watch a conversation's memory",
            {"type": "subscribe", "event_id": "t3", "topic": "memory", "conversation_id": CONVERSATION},
        ),
    ],
    "unsubscribe": [("Enough of it", {"type": "unsubscribe", "event_id": "t2", "topic": "conversations"})],
    "ping": [("Is anybody there?", {"type": "ping", "event_id": "p1"})],
}

_USAGE = Usage(prompt_tokens=612, cached_tokens=540, completion_tokens=42)
_TIMING = Timing(queue_s=0.02, prefill_s=0.11, decode_s=1.8)

SERVER: list[tuple[str, s.ServerFrame]] = [
    (
        "The first frame",
        s.SessionCreated(
            session_id="3b8f0c1d-6e52-4f7a-9a0b-1c2d3e4f5061",
            limits=s.Limits(
                max_responses=32,
                max_waiting=32,
                frames_per_second=100,
                frames_at_once=1000,
                plan={"requests_per_minute": 600, "output_tokens": 4096},
            ),
            heartbeat_s=25.0,
            expires_at=1796040000,
        ),
    ),
    ("A minute before its end", s.SessionExpiring(expires_at=1796040000)),
    (
        "Accepted",
        s.Queued(
            response_id=RESPONSE,
            position=1,
            event_id="q1",
            conversation_id=CONVERSATION,
            message_id=ANSWER,
            parent_id=QUESTION,
            model="smollm2-135m-instruct",
        ),
    ),
    ("Later: it has moved up", s.Queued(response_id=OTHER, position=2, stream_id="chat")),
    (
        "A model has begun",
        s.Created(response_id=RESPONSE, prompt_tokens=612, cached_tokens=540, conversation_id=CONVERSATION),
    ),
    ("Text", s.TextDelta(response_id=RESPONSE, index=0, first_seq=1, seq=4, delta="A prefix cache keeps")),
    (
        "The second of two choices ends, with a log probability",
        s.TextDelta(
            response_id=OTHER,
            index=1,
            first_seq=5,
            seq=5,
            delta="!",
            finish_reason="stop",
            logprobs=[TokenLogprob("!", -0.1, 0, top=[Logprob("!", -0.1, 0), Logprob(".", -2.4, 13)])],
        ),
    ),
    (
        "A call begins",
        s.ItemAdded(
            response_id=OTHER,
            index=0,
            first_seq=1,
            seq=9,
            more=True,
            call=0,
            item=s.FunctionCall(call_id="call_7d1f", name="get_weather"),
        ),
    ),
    (
        "Its arguments",
        s.ArgumentsDelta(response_id=OTHER, index=0, first_seq=1, seq=9, call=0, delta='{"city": "Oslo"}'),
    ),
    ("You read too slowly", s.Lagged(response_id=RESPONSE, resume_after=41)),
    (
        "The end",
        s.Completed(
            response_id=RESPONSE,
            seq=43,
            finish_reason="stop",
            conversation_id=CONVERSATION,
            message_id=ANSWER,
            usage=_USAGE,
            timing=_TIMING,
        ),
    ),
    (
        "Cut off",
        s.Incomplete(response_id=OTHER, seq=201, finish_reason="length", usage=_USAGE, timing=_TIMING),
    ),
    ("Stopped", s.Cancelled(response_id=RESPONSE, seq=20, conversation_id=CONVERSATION, usage=_USAGE)),
    (
        "Failed",
        s.Failed(
            response_id=RESPONSE,
            seq=20,
            error=s.ResponseError(
                code="engine_fault", message="The engine failed while it worked on this. Try again.", retryable=True
            ),
        ),
    ),
    (
        "What is left of this minute",
        s.RateLimitsUpdated(rate_limits=[s.RateLimit(name="requests", limit=600, remaining=599, reset_seconds=59.2)]),
    ),
    (
        "A refusal",
        s.Error(
            event_id="q2",
            code="conversation_busy",
            message="This conversation is being answered; wait for the end or stop it.",
            param="conversation_id",
            retryable=True,
        ),
    ),
    ("An answer", s.Pong(event_id="p1")),
    ("It begins", s.Subscribed(topic="conversations", event_id="t1")),
    ("It has ended", s.Unsubscribed(topic="conversations", event_id="t2")),
    (
        "A conversation has changed",
        s.ConversationUpdated(
            conversation=s.ConversationItem(
                id=CONVERSATION,
                title="What is a prefix cache?",
                updated_at="2026-11-30T08:15:02.114000+00:00",
                running=True,
                starred_at="2026-11-30T08:14:20.007000+00:00",
                tags=["caches", "to read"],
            )
        ),
    ),
    ("One is gone", s.ConversationDeleted(conversation_id=CONVERSATION)),
    (
        "What a response used",
        s.UsageUpdated(response_id=RESPONSE, model="smollm2-135m-instruct", usage=_USAGE),
    ),
    (
        "The memory of a conversation that is being answered",
        s.MemoryUpdated(
            conversation_id=CONVERSATION,
            memory=Memory(
                worker="engine-1204-9f31c2",
                at_ms=1796026502114,
                state="answering",
                block_size=16,
                block_bytes=368640,
                runs=[
                    MemoryRun("team", chats=6, pinned=True, since=1796020000, blocks=11),
                    MemoryRun("kept", since=1796026400, blocks=4),
                    MemoryRun("own", since=1796026500, blocks=3),
                ],
                tokens=279,
                length=280,
                cached=245,
                response=RESPONSE,
                seq=31,
            ),
        ),
    ),
]
