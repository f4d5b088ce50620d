"""The events of a stream: OpenAI's order, numbers without a gap, and the same ones from whatever they are told."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chatapp.responses import shapes
from chatapp.responses.narrator import Narrator, choice_of, pieces_of, retold
from chatapp.streaming.assembly import assembled
from engine import protocol
from engine.protocol import (
    Cancelled,
    Claimed,
    Delta,
    Failed,
    Finished,
    Logprob,
    Part,
    Refused,
    Started,
    TokenLogprob,
    ToolCallPart,
    Usage,
)

STARTED = Started(seq=0, prompt_tokens=7, cached_tokens=3)


def base(**fields: Any) -> shapes.Response:
    about = {"id": "resp_" + "a" * 32, "created_at": 1, "status": "in_progress", "background": False, "store": True}
    return shapes.Response(**{"model": "m", **about, **fields})


def told(*events: protocol.AnyEvent, **fields: Any) -> tuple[list[shapes.AnyEvent], shapes.Response]:
    narrator = Narrator(base(**fields))
    said = narrator.tell_all(events)
    assert [event.sequence_number for event in said] == list(range(len(said))), "from 0, without a gap"
    return said, narrator.response


def kinds(said: list[shapes.AnyEvent]) -> list[str]:
    return [shapes.kind_of(event).removeprefix("response.") for event in said]


def text(*pieces: str) -> list[protocol.AnyEvent]:
    return [Delta(seq=seq, parts=[Part(text=piece, token_ids=[1])]) for seq, piece in enumerate(pieces, start=1)]


def test_a_text_is_told_in_openais_order() -> None:
    said, response = told(STARTED, *text("Hel", "", "lo"), Finished(seq=4, finish_reason="stop"))
    assert kinds(said) == [
        "created", "in_progress", "output_item.added", "content_part.added", "output_text.delta", "output_text.delta",
        "output_text.done", "content_part.done", "output_item.done", "completed",
    ]  # fmt: skip
    assert response.status == "completed"
    (message,) = response.output
    assert isinstance(message, shapes.MessageItem)
    assert (message.text, message.status, message.id) == ("Hello", "completed", f"msg_{'a' * 32}_0")
    last = said[-1]
    assert isinstance(last, shapes.ResponseCompleted)
    assert last.response == response
    assert response.usage is not None
    assert (response.usage.input_tokens, response.usage.output_tokens) == (7, 3)


def test_in_the_background_it_waits_first() -> None:
    waiting = Narrator(base(status="queued", background=True))
    assert kinds(list(waiting.opening())) == ["created", "queued"]
    assert waiting.tell_all([Claimed(worker="w")]) == [], "taken, and not begun"
    assert waiting.response.status == "queued"
    assert kinds(waiting.tell_all([STARTED])) == ["in_progress"]
    assert waiting.response.status == "in_progress"
    said, response = told(Cancelled(seq=1), status="queued", background=True)
    assert kinds(said) == ["created", "queued", "in_progress", "cancelled"]
    assert (response.status, response.usage, response.error) == ("cancelled", None, None)


def test_calls_are_items_of_their_own_each_closed_before_the_next() -> None:
    def call(number: int, arguments: str, name: str = "") -> Delta:
        part = ToolCallPart(call=number, id=f"call_{number}" if name else "", name=name, arguments=arguments)
        return Delta(parts=[Part(tool_calls=[part])])

    said, response = told(
        STARTED, *text("Let me look."), call(0, '{"a"', "one"), call(0, ":1}"), call(1, "", "two"), call(1, "{}"),
        Finished(finish_reason="tool_calls"),
    )  # fmt: skip
    assert kinds(said)[2:] == [
        "output_item.added", "content_part.added", "output_text.delta",
        "output_item.added", "function_call_arguments.delta", "function_call_arguments.delta",
        "function_call_arguments.done", "output_item.done",
        "output_item.added", "function_call_arguments.delta",
        "output_text.done", "content_part.done", "output_item.done",
        "function_call_arguments.done", "output_item.done", "completed",
    ]  # fmt: skip
    calls = [item for item in response.output if isinstance(item, shapes.FunctionCallItem)]
    assert [(call.name, call.call_id, call.arguments) for call in calls] == [
        ("one", "call_0", '{"a":1}'),
        ("two", "call_1", "{}"),
    ]
    assert len({item.id for item in response.output}) == 3


@pytest.mark.parametrize(
    ("end", "status", "error", "item"),
    [
        (Finished(finish_reason="length"), "incomplete", None, "incomplete"),
        (Cancelled(), "cancelled", None, "incomplete"),
        (Failed(code="engine_died"), "failed", ("server_error", "engine_died"), "incomplete"),
        (Refused(code="context_length_exceeded", message="Too long."), "failed", ("context_length_exceeded",) * 2, ""),
    ],
)
def test_an_end_has_openais_status_and_says_what_is_not_whole(
    end: protocol.AnyTerminal, status: str, error: tuple[str, str] | None, item: str
) -> None:
    begun = text("Once") if item else []
    said, response = told(STARTED, *begun, end)
    assert (response.status, kinds(said)[-1]) == (status, status)
    assert (response.error and (response.error.code, response.error.type)) == error
    assert [found.status for found in response.output] == ([item] if item else [])
    assert response.completed_at is None
    details = response.incomplete_details
    assert (details.reason if details else None) == ("max_output_tokens" if status == "incomplete" else None)


def test_log_probabilities_come_with_the_text_that_their_tokens_made() -> None:
    tokens = [TokenLogprob(token=token, logprob=-0.5, top=[Logprob(token="x", logprob=-1.0)]) for token in "abc"]
    events = [
        Delta(parts=[Part(token_ids=[1], logprobs=tokens[:1])]),  # half a character
        Delta(parts=[Part(token_ids=[2], text="é", logprobs=tokens[1:2])]),
        Delta(parts=[Part(token_ids=[3], logprobs=tokens[2:])]),  # the end's own token
    ]
    said, response = told(STARTED, *events, Finished(finish_reason="stop"))
    (delta,) = [event for event in said if isinstance(event, shapes.OutputTextDelta)]
    (done,) = [event for event in said if isinstance(event, shapes.OutputTextDone)]
    assert [token.token for token in delta.logprobs] == ["a", "b"]
    assert [token.token for token in done.logprobs] == ["a", "b", "c"]
    assert done.logprobs[0].top_logprobs[0].bytes == [120]
    assert response.output[0].content[0].logprobs == done.logprobs  # type: ignore[union-attr]


# --- told again ---------------------------------------------------------------------------------------------------

TEXTS = st.text(st.sampled_from("ab\0é👋\n"), max_size=3)
TOKENS = st.lists(st.builds(TokenLogprob, token=TEXTS, logprob=st.just(-1.5), id=st.just(-1)), max_size=2)


@st.composite
def logs(draw: Any) -> list[protocol.AnyEvent]:
    """What a worker may say: text and calls in any order, tokens without text, several parts a step."""
    events: list[protocol.AnyEvent] = [Claimed(worker="w")]
    if draw(st.booleans()):
        events.append(STARTED)
        calls = 0
        for _ in range(draw(st.integers(0, 8))):
            parts = []
            for _ in range(draw(st.integers(1, 2))):
                made = []
                if draw(st.integers(0, 3)) == 0:
                    made.append(ToolCallPart(call=calls, id=f"c{calls}", name="f", arguments=draw(TEXTS)))
                    calls += 1
                elif calls and draw(st.booleans()):
                    made.append(ToolCallPart(call=calls - 1, arguments=draw(TEXTS)))
                parts.append(
                    Part(
                        index=draw(st.sampled_from([0, 0, 0, 1])) if not made else 0,
                        text=draw(TEXTS),
                        token_ids=[1],
                        logprobs=draw(TOKENS),
                        tool_calls=made,
                    )
                )
            events.append(Delta(parts=parts))
        usage = Usage(prompt_tokens=7, cached_tokens=3, completion_tokens=5)
    else:
        usage = Usage()
    events.append(
        draw(
            st.sampled_from(
                [
                    Finished(finish_reason="stop", usage=usage),
                    Finished(finish_reason="length", usage=usage),
                    Cancelled(usage=usage),
                    Failed(code="x", message="y", usage=usage),
                ]
            )
        )
    )
    return events


@settings(deadline=None)  # the machine may be busy
@given(log=logs(), background=st.booleans())
def test_what_was_kept_tells_the_same_events_as_the_log_did(log: list[protocol.AnyEvent], background: bool) -> None:
    """The numbers of a resumed stream are those of the first one, from the log and after it has expired."""
    fields = {"background": background, "status": "queued" if background else "in_progress"}
    first, response = told(*log, **fields)
    choice = assembled(log).choice()
    kept = json.loads(json.dumps({"output": msgspec.to_builtins(response.output), "pieces": pieces_of(choice)}))
    output = msgspec.convert(kept["output"], list[shapes.OutputItem])
    end: Any = log[-1]
    usage = end.usage
    started = Started(prompt_tokens=usage.prompt_tokens, cached_tokens=usage.cached_tokens)
    calls_only = not any(isinstance(item, shapes.MessageItem) for item in output)
    again, same = told(*retold(choice_of(output, kept["pieces"]), started, end), **fields)
    assert again == first
    assert same == response
    assert "\0" not in str(kept), "databases refuse it"
    assert calls_only or "".join(
        event.delta for event in first if isinstance(event, shapes.OutputTextDelta)
    ) == choice.text.replace("\0", "\ufffd")
