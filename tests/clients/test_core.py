"""What the client's core does about each kind of trouble, with a clock that the test sets."""

from __future__ import annotations

import json
from typing import Any

import pytest
from octavo_client import (
    AccessDenied,
    AccessRevoked,
    AnswerTimeout,
    AuthenticationFailed,
    ConnectionFailed,
    RequestRefused,
    ResponseFailed,
    ResponseLost,
    SessionEnded,
    TextDelta,
)
from octavo_client.call import Call
from octavo_client.core import FIRST_WAIT_S, LONGEST_WAIT_S, Core, Open

from tests.clients.world import World

HI = [{"role": "user", "content": "Hi"}]


def words(*texts: str) -> list[Any]:
    return [{0: [("text", text)]} for text in texts]


def creates(world: World) -> list[dict[str, Any]]:
    return [frame for frame in world.sent if frame["type"] == "response.create"]


def resumes(world: World) -> list[dict[str, Any]]:
    return [frame for frame in world.sent if frame["type"] == "response.resume"]


def begun(world: World, *texts: str, said: int = 1, text: Any = "Hi", **fields: Any) -> Call:
    """A response of which some has arrived."""
    world.script = words(*texts)
    call = world.ask(text, **fields)
    world.deliver()
    response = world.responses[max(world.responses)]
    world.say(response, said)
    world.tell(world.wire, response)
    world.deliver()
    return call


def test_a_request_that_was_not_acknowledged_is_sent_again_under_the_same_key() -> None:
    world = World()
    world.script = words("a")
    call = world.ask("Hi")
    world.deliver(most=1)  # session.created, upon which it is sent
    world.cut()
    world.wait(1.0)
    world.deliver()
    first, second = creates(world)
    assert first["idempotency_key"] == second["idempotency_key"]
    assert len(world.responses) == 1
    world.settle()
    assert (call.answer.text, call.answer.status, call.answer.conversation_id) == ("a", "completed", "c1")


def test_a_running_response_is_resumed_behind_its_last_number() -> None:
    world = World()
    call = begun(world, "a", "b", "c", said=2)
    world.cut()
    assert call.answer.text == "ab"
    world.wait(1.0)
    world.deliver()
    assert [(frame["response_id"], frame["after"]) for frame in resumes(world)] == [("r1", 2)]
    world.settle()
    assert call.answer.text == "abc"


def test_attempts_to_connect_come_less_often_and_by_chance() -> None:
    waits = []
    world = World()
    world.refuses = True
    world.core.connect(world.now)
    world.pump()
    for _ in range(8):
        attempts = len(world.opened)
        start = world.now
        while len(world.opened) == attempts:
            world.wait(0.25)
        waits.append(world.now - start)
    assert waits == [FIRST_WAIT_S * 2**n for n in range(5)] + [LONGEST_WAIT_S] * 3
    chances = iter([0.0, 0.5])
    core = Core(jitter=lambda: next(chances))
    core.connect(0.0)
    core.lost(1, 0.0)
    assert core.deadline() == 0.0
    core.tick(0.0)
    core.lost(2, 0.0)
    assert core.deadline() == 0.5 * FIRST_WAIT_S * 2


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (4401, AuthenticationFailed),
        (4403, AccessDenied),
        (4440, AccessRevoked),
    ],
)
def test_a_close_for_good_ends_everything_with_what_the_server_said(code: int, kind: type[SessionEnded]) -> None:
    world = World()
    call = begun(world, "a", "b")
    world.wire.incoming.append({"type": "error", "code": "why", "message": "Because.", "retryable": False})
    world.deliver()
    world.cut(code=code)
    assert type(call.error) is kind
    assert (call.error.code, call.error.message) == ("why", "Because.")
    world.wait(60.0)
    assert len(world.opened) == 1
    with pytest.raises(kind):
        world.ask("More")


@pytest.mark.parametrize("code", [1000, 1001, 1006, 1011, 4400, 4408, 4413, 4429])
def test_any_other_close_is_followed_by_another_connection(code: int) -> None:
    world = World()
    begun(world, "a", "b")
    world.cut(code=code)
    world.wait(1.0)
    assert world.core.state == "connecting"
    assert len(world.opened) == 2


def test_a_silent_connection_is_asked_and_then_given_up() -> None:
    world = World()
    world.hello = {"heartbeat_s": 10}
    world.core.connect(world.now)
    world.pump()
    world.deliver()
    world.wait(10.0)
    assert world.sent == [{"type": "ping"}]
    world.deliver()  # its pong
    world.wait(10.0)
    assert world.sent == [{"type": "ping"}] * 2
    world.wait(7.0)
    assert world.opened == [1]
    world.wait(2.0)
    assert world.opened == [1, 2]


def test_a_connection_that_says_nothing_when_it_opens_is_given_up() -> None:
    world = World()
    world.core.connect(world.now)
    world.pump()
    world.wait(17.0)
    assert world.opened == [1, 2]
    assert world.sent == []


def test_without_a_connection_for_long_everything_fails_with_the_reason() -> None:
    world = World(give_up_s=60.0)
    call = begun(world, "a", "b")
    world.refuses = True
    world.cut()
    world.wait(59.0)
    assert not call.ended
    world.wait(2.0)
    assert isinstance(call.error, ConnectionFailed)
    assert "refused" in call.error.message
    assert world.core.deadline() is None


def test_a_connection_that_will_expire_is_replaced_before_and_nothing_is_missed() -> None:
    world = World()
    call = begun(world, "a", "b", "c")
    old = world.wire
    old.incoming.append({"type": "session.expiring", "expires_at": 1})
    world.deliver(old)
    new = world.wire
    assert (new.number, old.number in world.wires) == (2, True)
    world.say(world.responses["r1"])
    world.tell(old, world.responses["r1"])
    world.deliver(old)  # it still speaks
    assert call.answer.text == "ab"
    world.deliver(new)
    assert resumes(world)[-1]["after"] == 2
    assert list(world.wires) == [2], "the old one is closed once nothing is followed on it"
    world.settle()
    assert call.answer.text == "abc"
    assert len(world.opened) == 2


def test_a_stateless_answer_stays_on_the_expiring_connection_that_it_would_end_with() -> None:
    world = World()
    call = begun(world, "a", "b", "c", text=HI)
    old = world.wire
    old.incoming.append({"type": "session.expiring", "expires_at": 1})
    world.deliver(old)
    world.deliver(world.wire)
    assert resumes(world) == []
    response = world.responses["r1"]
    world.say(response, 2)
    world.tell(old, response)
    world.deliver(old)
    assert (call.answer.text, call.answer.status) == ("abc", "completed")
    assert list(world.wires) == [2]


def test_a_stateless_answer_that_nobody_has_read_begins_anew_when_its_connection_breaks() -> None:
    world = World()
    call = begun(world, "a", "b", text=HI)
    call.events.clear()
    world.cut()
    world.settle()
    first, second = creates(world)
    assert first["idempotency_key"] != second["idempotency_key"]
    assert (call.answer.text, call.answer.status, call.answer.response_id) == ("ab", "completed", "r2")
    assert "".join(event.delta for event in call.events if isinstance(event, TextDelta)) == "ab"


def test_a_stateless_answer_that_was_read_in_part_is_lost_with_its_connection_and_says_so() -> None:
    world = World()
    call = begun(world, "a", "b", text=HI)
    while call.next_event() is not None:
        pass
    world.cut()
    world.settle()
    assert isinstance(call.error, ResponseLost)
    assert call.error.retryable
    assert call.error.answer is not None
    assert call.error.answer.text == "a"
    assert len(creates(world)) == 1


def test_a_refusal_for_now_is_tried_again_when_the_server_says_and_not_for_ever() -> None:
    world = World(max_retries=2)
    world.script = words("a")
    busy = {"code": "queue_full", "message": "Full.", "retryable": True, "retry_after_ms": 3000}
    world.refusal = busy
    call = world.ask("Hi")
    world.deliver()
    world.wait(2.9)
    assert len(creates(world)) == 1
    world.wait(0.2)
    assert len(creates(world)) == 2
    assert len({frame["idempotency_key"] for frame in creates(world)}) == 1
    world.settle()
    assert call.answer.text == "a"

    call = world.ask("Again")
    for _ in range(3):
        creates(world)
        world.wire.incoming.clear()
        world.wire.incoming.append({"type": "error", "event_id": call.event_id, **busy})
        world.deliver()
        world.wait(3.1)
    assert isinstance(call.error, RequestRefused)
    assert (call.error.code, call.error.retryable, call.error.retry_after_s) == ("queue_full", True, 3.0)


def test_a_server_without_room_for_a_socket_is_left_alone_for_as_long_as_it_says() -> None:
    core = Core(jitter=lambda: 1.0)
    core.connect(0.0)
    core.opened(1, 0.0)
    full = {"type": "error", "code": "overloaded", "message": "Full.", "retryable": True, "retry_after_ms": 9000}
    core.received(1, json.dumps(full), 0.0)
    core.lost(1, 0.0, code=1013)
    core.actions()
    core.tick(8.9)
    assert core.actions() == []
    core.tick(9.1)
    assert core.actions() == [Open(2)]
    core.lost(2, 10.0)
    core.tick(11.1)
    assert core.actions() == [Open(3)], "said once, it counts once"


def test_a_refusal_for_good_names_the_field() -> None:
    world = World()
    world.refusal = {"code": "unknown_parameter", "message": "No.", "param": "warmth", "retryable": False}
    call = world.ask("Hi", params={"warmth": 1})
    world.deliver()
    assert isinstance(call.error, RequestRefused)
    assert (call.error.code, call.error.param) == ("unknown_parameter", "warmth")
    assert str(call.error) == "No. [unknown_parameter, warmth]"


def test_a_failed_answer_raises_with_what_had_come_of_it() -> None:
    world = World()
    call = begun(world, "a", "b")
    problem = {"code": "interrupted", "message": "The engine stopped.", "retryable": True}
    world.wire.incoming.append({"type": "response.failed", "response_id": "r1", "seq": 2, "error": problem})
    world.deliver()
    assert isinstance(call.error, ResponseFailed)
    assert call.error.retryable
    assert call.error.answer is call.answer
    assert (call.answer.text, call.answer.status) == ("a", "failed")


def test_an_answer_that_takes_too_long_is_cancelled() -> None:
    world = World()
    call = begun(world, "a", "b", timeout_s=30.0)
    world.wait(31.0)
    assert isinstance(call.error, AnswerTimeout)
    assert isinstance(call.error, TimeoutError)
    assert world.sent[-1] == {"type": "response.cancel", "response_id": "r1"}
    world.settle()
    assert world.core.calls == []

    unsent = World()
    unsent.refuses = True
    call = unsent.ask("Hi", timeout_s=5.0)
    unsent.wait(6.0)
    assert isinstance(call.error, AnswerTimeout)
    unsent.refuses = False
    unsent.wait(60.0)
    unsent.deliver()
    assert creates(unsent) == []


def test_a_stop_before_the_server_knows_of_the_question_reaches_it_as_soon_as_it_does() -> None:
    world = World()
    world.script = words("a", "b")
    call = world.ask("Hi")
    world.deliver(most=1)
    world.core.cancel(call, world.now)
    assert [frame["type"] for frame in world.sent] == ["response.create"]
    world.deliver()
    world.settle()
    assert [frame["type"] for frame in world.sent] == ["response.create", "response.cancel"]
    assert call.answer.status == "cancelled"

    never_sent = World()
    never_sent.refuses = True
    call = never_sent.ask("Hi")
    never_sent.core.cancel(call, never_sent.now)
    assert (call.ended, call.answer.status, never_sent.core.calls) == (True, "cancelled", [])


def test_a_stop_survives_a_lost_connection() -> None:
    world = World()
    call = begun(world, "a", "b")
    world.cut()
    world.core.cancel(call, world.now)
    world.wait(1.0)
    world.deliver()
    assert [frame["type"] for frame in world.sent[-2:]] == ["response.cancel", "response.resume"]
    world.settle()
    assert call.answer.status == "cancelled"
    assert call.answer.text == "a"


def test_some_seconds_without_an_event_resume_the_answer_then_less_and_less_often() -> None:
    world = World()
    call = begun(world, "a", "b", "c")
    at = []
    for second in range(1, 120):
        world.wait(1.0)
        world.deliver()
        at += [second] * (len(resumes(world)) - len(at))
    assert at == [15, 45, 105]
    assert call.answer.text == "a"


def test_no_more_responses_run_on_a_socket_than_it_allows_and_the_rest_follow() -> None:
    world = World()
    world.hello = {"limits": {"max_responses": 2}}
    world.script = words("a")
    calls = [world.ask(str(n)) for n in range(5)]
    world.deliver()
    assert len(creates(world)) == 2
    world.settle()
    assert [call.answer.text for call in calls] == ["a"] * 5
    assert [frame["input"] for frame in creates(world)] == ["0", "1", "2", "3", "4"]


def test_a_request_too_large_for_a_frame_is_refused_here_and_the_socket_stays() -> None:
    world = World()
    world.hello = {"limits": {"max_responses": 9, "max_frame_bytes": 1000}}
    call = world.ask("x" * 1000)
    world.deliver()
    assert isinstance(call.error, RequestRefused)
    assert call.error.code == "frame_too_large"
    assert world.sent == []
    assert world.core.state == "open"


@pytest.mark.parametrize("code", [4400, 4413])
def test_a_request_over_which_connections_are_closed_fails_in_the_end_and_harms_no_other(code: int) -> None:
    world = World(max_retries=2)
    running = begun(world, "a", "b", "c", said=2)
    world.unreadable = "what the server cannot read"
    call = world.ask(world.unreadable)
    for attempt in range(3):
        assert call.error is None, attempt
        world.wait(1.0)
        world.deliver()
        assert [frame["input"] for frame in creates(world)].count(world.unreadable) == attempt + 1
        world.cut(code=code)
    assert isinstance(call.error, RequestRefused)
    assert (call.error.code, call.error.message) == ("why", "Because.")
    world.wait(1.0)
    world.settle()
    assert running.answer.text == "abc"


def test_what_a_newer_server_says_is_passed_over_and_its_numbers_leave_no_gap() -> None:
    world = World()
    call = begun(world, "a", "b", "c")
    told = {"response_id": "r1", "first_seq": 2, "seq": 2}
    world.wire.incoming.extend(
        [
            {"type": "response.smell.delta", "index": 0, "delta": "roses", **told},
            {"type": "weather.updated", "sunny": True},
            {"type": "response.output_text.delta", "index": 0, "first_seq": 3, "seq": 3, "response_id": "r1",
             "delta": "c", "mood": "glad"},
            {"type": "response.completed", "response_id": "r1", "seq": 4, "applause": 3},
        ]
    )  # fmt: skip
    world.deliver()
    for junk in ("", "nonsense", "[1]", '{"type": 3}', '{"no": "type"}', b"\xff\x00"):
        world.core.received(1, junk, world.now)
    assert resumes(world) == []
    assert (call.answer.text, call.answer.status) == ("ac", "completed")


def test_a_server_that_tells_another_text_than_before_is_not_believed() -> None:
    world = World()
    call = begun(world, "abc", "d")
    told = {"type": "response.output_text.delta", "response_id": "r1", "index": 0, "first_seq": 1, "seq": 2}
    world.wire.incoming.append({**told, "delta": "xyz and more"})
    world.deliver()
    assert isinstance(call.error, ResponseLost)
    assert call.error.code == "mismatch"


def test_a_hole_that_never_closes_is_given_up() -> None:
    world = World()
    call = begun(world, "a", "b")
    told = {"type": "response.output_text.delta", "response_id": "r1", "index": 0, "delta": "c"}
    for _ in range(20):
        # Told anew from where it has been told already, and then beyond the hole.
        world.wire.incoming.clear()
        world.wire.incoming.append({**told, "first_seq": 1, "seq": 1, "delta": "a"})
        world.wire.incoming.append({**told, "first_seq": 9, "seq": 9})
        world.deliver()
    assert isinstance(call.error, ResponseLost)
    assert len(resumes(world)) <= 6


def test_what_was_still_on_its_way_when_the_rest_was_asked_for_is_no_hole() -> None:
    world = World()
    call = begun(world, *"abcdefghijkl")
    told = {"type": "response.output_text.delta", "response_id": "r1", "index": 0}
    wire = world.wire
    for seq, text in enumerate("cdefghijkl", start=3):  # the second one was lost
        world.core.received(wire.number, json.dumps({**told, "first_seq": seq, "seq": seq, "delta": text}), world.now)
    world.pump()
    assert [frame["after"] for frame in resumes(world)] == [1]
    world.settle()
    assert call.answer.text == "abcdefghijkl"


def test_a_connection_that_breaks_between_two_choices_of_one_step_loses_neither_and_repeats_neither() -> None:
    world = World()
    world.script = [{0: [("text", "a")], 1: [("text", "x")]}, {0: [("text", "b")], 1: [("text", "y")]}]
    call = world.ask("Hi")
    world.deliver()
    response = world.responses["r1"]
    world.say(response)
    world.tell(world.wire, response)
    world.wire.incoming.appendleft(world.wire.incoming[0])  # one comes twice
    world.deliver()
    world.say(response)
    world.tell(world.wire, response)
    world.deliver(most=1)
    assert call.answer.texts == ["ab", "x"]
    world.cut()
    world.settle()
    assert [frame["after"] for frame in resumes(world)] == [1]
    assert call.answer.texts == ["ab", "xy"]
    told = [(event.index, event.delta) for event in call.events if isinstance(event, TextDelta)]
    assert told == [(0, "a"), (1, "x"), (0, "b"), (1, "y")]


def test_what_was_subscribed_to_is_subscribed_to_on_every_connection() -> None:
    world = World()
    readers = [world.core.subscribe("conversations", world.now) for _ in range(2)]
    world.pump()
    world.deliver()
    asked = [frame for frame in world.sent if frame["type"] == "subscribe"]
    assert [frame["event_id"] for frame in asked] == [reader.event_id for reader in readers]
    for frame in asked:
        world.wire.incoming.append({"type": "subscribed", "topic": "conversations", "event_id": frame["event_id"]})
    item = {"id": "c1", "title": "T", "updated_at": "2026-01-01T00:00:00Z", "running": True}
    world.wire.incoming.append({"type": "conversation.updated", "conversation": item})
    world.wire.incoming.append({"type": "usage.updated", "response_id": "r", "usage": {}})
    world.deliver()
    for reader in readers:
        assert [type(event).__name__ for event in reader.events] == ["Subscribed", "ConversationUpdated"]
    world.cut()
    world.wait(1.0)
    world.deliver()
    assert len([frame for frame in world.sent if frame["type"] == "subscribe"]) == 4
    for reader in readers:
        world.core.topics.remove(reader)
    world.pump()
    assert [frame["type"] for frame in world.sent].count("unsubscribe") == 1
    refused = world.core.subscribe("weather", world.now)
    world.pump()
    told = {"type": "error", "event_id": refused.event_id, "code": "invalid_frame", "message": "No.", "param": "topic"}
    world.wire.incoming.append(told)
    world.deliver()
    assert isinstance(refused.error, RequestRefused)
    assert refused.error.param == "topic"


def test_a_step_whose_last_part_never_came_is_asked_for_again() -> None:
    world = World()
    world.script = [{0: [("text", "a")], 1: [("text", "x")]}, {0: [("text", "b")]}]
    call = world.ask("Hi")
    world.deliver()
    response = world.responses["r1"]
    world.say(response)
    world.tell(world.wire, response)
    world.wire.incoming.pop()  # the second choice's
    world.say(response)
    world.tell(world.wire, response)
    world.deliver()
    assert [frame["after"] for frame in resumes(world)] == [0]
    world.settle()
    assert call.answer.texts == ["ab", "x"]


def test_a_stateless_answer_does_not_begin_anew_for_ever() -> None:
    world = World()
    call = begun(world, "a", "b", text=HI)
    for _ in range(10):
        if call.ended:
            break
        world.cut()
        world.wait(20.0)
        for _ in range(3):
            for response in world.responses.values():
                world.tell(world.wire, response)
            world.deliver()
    assert isinstance(call.error, ResponseLost)
    assert len(creates(world)) == 4
