"""Whatever a network does, an answer is what it would have been without: the core against a server in memory."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from octavo_client.call import Call
from octavo_client.frames import Queued, Started, TextDelta, ToolCallBegun, ToolCallDelta

from tests.clients.world import Event, World

# Few letters, so that what is told again is easily mistaken for what is new.
pieces = st.text("ab🌊", max_size=3)


@st.composite
def parts(draw: st.DrawFn) -> list[tuple[Any, ...]]:
    return [("text", draw(pieces))]


@st.composite
def scripts(draw: st.DrawFn) -> list[Event]:
    """What is said, event by event: texts of up to three choices, and a tool call at the end of the first."""
    choices = draw(st.integers(1, 3))
    events = draw(
        st.lists(st.dictionaries(st.integers(0, choices - 1), parts(), max_size=choices), min_size=1, max_size=14)
    )
    if draw(st.booleans()):
        events.append({0: [("call", 0, "look_up"), ("arguments", 0, '{"q"')]})
        events.append({0: [("arguments", 0, ': "ab"}')]})
    return events


def texts_of(script: list[Event]) -> dict[int, str]:
    texts: dict[int, str] = {0: ""}
    for event in script:
        for index, said in event.items():
            texts[index] = texts.get(index, "") + "".join(part[1] for part in said if part[0] == "text")
    return texts


def spoken(texts: dict[int, str]) -> dict[int, str]:
    """Without choices that say nothing."""
    return {index: text for index, text in texts.items() if text}


def what_came(call: Call) -> tuple[dict[int, str], str, list[type]]:
    """The texts that the events of a stream add up to, the tool's arguments, and the kinds of events."""
    texts: dict[int, str] = {0: ""}
    arguments = ""
    kinds = []
    while (event := call.next_event()) is not None:
        kinds.append(type(event))
        if isinstance(event, TextDelta):
            texts[event.index] = texts.get(event.index, "") + event.delta
        elif isinstance(event, ToolCallDelta):
            arguments += event.delta
    return texts, arguments, kinds


steps = st.lists(
    st.one_of(
        st.tuples(st.just("say"), st.integers(1, 4)),
        st.tuples(st.just("tell"), st.integers(1, 4)),
        st.tuples(st.just("deliver"), st.integers(1, 4)),
        st.tuples(st.just("cut"), st.sampled_from([1006, 1001, 1011, 4429])),
        st.tuples(st.just("wait"), st.sampled_from([0.1, 1.0, 20.0])),
        st.tuples(st.just("repeat"), st.just(0)),
        st.tuples(st.just("lose"), st.just(0)),
        st.tuples(st.just("expiring"), st.just(0)),
        st.tuples(st.just("refuse"), st.integers(0, 1)),
        st.tuples(st.just("lagged"), st.just(0)),
    ),
    max_size=40,
)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(script=scripts(), trouble=steps, several=st.booleans())
def test_the_text_is_what_it_would_have_been_wherever_connections_break(
    script: list[Event], trouble: list[tuple[str, int]], several: bool
) -> None:
    world = World(give_up_s=1e9)
    world.script = script
    calls = [world.ask("Hi")] + ([world.ask("And you?")] if several else [])
    for what, amount in trouble:
        responses = list(world.responses.values())
        if what == "say":
            for response in responses:
                world.say(response, amount)
        elif what == "wait":
            world.wait(float(amount))
        elif what == "refuse":
            world.refuses = bool(amount)
        elif world.wires:
            wire = world.wire
            if what == "tell":
                for response in responses:
                    world.tell(wire, response, amount)
            elif what == "deliver":
                world.deliver(wire, amount)
            elif what == "cut":
                world.cut(wire, amount)
            elif what == "repeat" and wire.incoming and "first_seq" in wire.incoming[0]:
                wire.incoming.appendleft(wire.incoming[0])
            elif what == "lose" and wire.incoming and "first_seq" in wire.incoming[0]:
                lost = wire.incoming[0]["first_seq"]  # a server that forgets forgets a whole step
                while wire.incoming and wire.incoming[0].get("first_seq") == lost:
                    wire.incoming.popleft()
            elif what == "expiring":
                wire.incoming.append({"type": "session.expiring", "expires_at": 1})
            elif what == "lagged":
                for response in responses:
                    wire.incoming.append({"type": "lagged", "response_id": response.id, "resume_after": 0})
    world.settle()
    assert len(world.responses) == len(calls), "a request was sent again as another one"
    expected = spoken(texts_of(script))
    wanted = '{"q": "ab"}' if any(part[0] == "call" for said in script[-2:] for part in said.get(0, ())) else ""
    for call in calls:
        assert call.ended
        assert call.error is None
        assert spoken({choice.index: choice.text for choice in call.answer.choices}) == expected
        assert "".join(tool.arguments for tool in call.answer.tool_calls) == wanted
        texts, arguments, kinds = what_came(call)
        assert spoken(texts) == expected
        assert arguments == wanted
        assert kinds.count(Started) == 1
        assert kinds.index(Started) > kinds.index(Queued)
        assert kinds.count(ToolCallBegun) == bool(wanted)


@settings(max_examples=100, deadline=None)
@given(events=st.lists(pieces, min_size=1, max_size=14), cuts=st.lists(st.integers(1, 5), max_size=5))
def test_a_log_that_has_expired_meanwhile_tells_all_in_one_piece_and_only_the_rest_is_new(
    events: list[str], cuts: list[int]
) -> None:
    world = World(give_up_s=1e9)
    world.script = [{0: [("text", piece)]} for piece in events]
    call = world.ask("Hi")
    world.deliver()
    response = world.responses["r1"]
    for cut in cuts:
        world.say(response, cut)
        world.tell(world.wire, response, cut)
        world.deliver()
        world.cut()
        world.wait(20.0)
        world.deliver()
    response.expired = True
    world.settle()
    texts, _, _ = what_came(call)
    assert texts[0] == call.answer.text == "".join(events)
