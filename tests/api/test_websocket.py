"""/ws/v1 as a client meets it: answers, numbers, Stop, resume, and what happens to those who go away."""

from __future__ import annotations

import itertools
import time
from contextlib import ExitStack
from typing import Any

import httpx
import pytest

from engine import protocol
from tests.api.conftest import DELTA, ENDS, Socket, hexed, rows, text_of
from tests.stack import Stack, wait_for

GREEDY = {"temperature": 0, "max_tokens": 24}
LONG = {"temperature": 0, "max_tokens": 2048, "ignore_eos": True}
MIDDLE = {"temperature": 0, "max_tokens": 120, "ignore_eos": True}
CAPITAL = "What is the capital of France?"


def recorded(stack: Stack, response_id: str) -> tuple[str, str, str]:
    """(state, status of the message, its text) once the database has them."""

    def ended() -> Any:
        return rows(
            stack,
            "SELECT g.state, m.status, m.text FROM chat_generation g JOIN chat_message m ON m.id = g.message_id"
            " WHERE g.id = ? AND g.ended_at IS NOT NULL",
            hexed(response_id),
        )

    return wait_for(ended)[0]  # type: ignore[no-any-return]


def test_the_first_frame_tells_the_limits(open_socket: Any) -> None:
    with open_socket() as socket:
        hello = socket.hello
        assert hello["type"] == "session.created"
        assert hello["limits"]["max_frame_bytes"] == 65536
        assert hello["limits"]["max_responses"] >= 1
        assert hello["heartbeat_s"] > 0
        assert hello["expires_at"] > time.time()
        socket.send(type="ping", event_id="p")
        assert socket.read() == {"type": "pong", "event_id": "p"}
        socket.send(type="ping", a_field_of_tomorrow=1)
        assert socket.read() == {"type": "pong"}


def test_an_answer_in_a_conversation_and_a_stateless_one_equal_the_http_answer(
    open_socket: Any, http: httpx.Client
) -> None:
    messages = [{"role": "user", "content": CAPITAL}]
    reply = http.post("/v1/chat/completions", json={"messages": messages, **GREEDY}).json()
    expected = reply["choices"][0]["message"]["content"]
    with open_socket() as socket:
        frames = socket.answer(input=CAPITAL, params=GREEDY, event_id="one")
        queued, created, *deltas, end = frames
        assert (queued["type"], queued["event_id"]) == ("response.queued", "one")
        assert queued["conversation_id"]
        assert queued["message_id"]
        assert queued["parent_id"]
        assert queued["position"] >= 0
        assert created["type"] == "response.created"
        assert created["prompt_tokens"] == reply["usage"]["prompt_tokens"]
        assert {frame["type"] for frame in deltas} == {DELTA}
        assert {frame["response_id"] for frame in frames} == {queued["response_id"]}
        assert text_of(frames) == expected
        assert (end["type"], end["finish_reason"]) == ("response.completed", "stop")
        assert end["usage"]["completion_tokens"] == reply["usage"]["completion_tokens"]
        assert end["timing"]["decode_s"] > 0
        assert "error" not in end

        frames = socket.answer(input=messages, params=GREEDY)
        assert text_of(frames) == expected
        assert "conversation_id" not in frames[0], "nothing of a stateless call is kept"
        parts = [{"role": "user", "content": [{"type": "text", "text": CAPITAL}]}]
        cut = socket.answer(input=parts, params={**GREEDY, "max_tokens": 2})
        assert expected.startswith(text_of(cut))
        assert (cut[-1]["type"], cut[-1]["finish_reason"]) == ("response.incomplete", "length")


def test_a_conversation_goes_on_and_finds_its_beginning_in_the_cache(open_socket: Any) -> None:
    with open_socket() as socket:
        first = socket.answer(input="My name is Ferdinand. " * 10, params=GREEDY)
        usage = first[-1]["usage"]
        second = socket.answer(input="What is my name?", conversation_id=first[0]["conversation_id"], params=GREEDY)
        assert second[-1]["usage"]["prompt_tokens"] > usage["prompt_tokens"] + usage["completion_tokens"]
        assert second[-1]["usage"]["cached_tokens"] >= usage["prompt_tokens"] - 16
        # Another branch from the first answer; then one from no message of this conversation.
        third = socket.answer(
            input="Say hello.", conversation_id=first[0]["conversation_id"], parent_id=first[0]["message_id"],
            params=GREEDY,
        )  # fmt: skip
        assert third[-1]["type"] in ENDS
        lost = socket.answer(
            input="x", conversation_id=first[0]["conversation_id"], parent_id=socket.hello["session_id"]
        )
        assert (lost[-1]["code"], lost[-1]["param"]) == ("not_found", "parent_id")


def test_a_conversation_answers_one_at_a_time_and_the_socket_stays(open_socket: Any) -> None:
    with open_socket() as socket:
        running = socket.create(input="Tell me a story.", params=LONG)
        socket.send(
            type="response.create", input="And another.", conversation_id=running["conversation_id"], event_id="second"
        )
        error = socket.read_until("error")[-1]
        assert (error["code"], error["event_id"], error["retryable"]) == ("conversation_busy", "second", True)
        socket.send(type="response.cancel", response_id=running["response_id"])
        assert socket.read_until(*ENDS)[-1]["type"] == "response.cancelled"
        again = socket.answer(input="Go on.", conversation_id=running["conversation_id"], params=GREEDY)
        assert again[-1]["type"] in ENDS


def test_stop_in_the_middle_frees_the_blocks_and_keeps_what_was_said(open_socket: Any, stack: Stack) -> None:
    """P3."""
    stack.wait_idle()
    with open_socket() as socket:
        response = socket.create(input="Tell me a very long story about the sea.", params=LONG)["response_id"]
        frames = socket.read_deltas(5)
        assert stack.running() == 1
        socket.send(type="response.cancel", response_id=response)
        frames += socket.read_until(*ENDS)
        assert frames[-1]["type"] == "response.cancelled"
        assert frames[-1]["usage"]["completion_tokens"] < 1000
        stack.wait_idle()
        text = text_of(frames)
        assert recorded(stack, response) == ("cancelled", "stopped", text)
        # A stopped answer stays stopped, however often and from wherever it is stopped and looked at again.
        socket.send(type="response.cancel", response_id=response)
        again = socket.resume(response)
        assert (again[-1]["type"], text_of(again)) == ("response.cancelled", text)
        assert stack.used_blocks() == 0
        assert recorded(stack, response)[2] == text


def test_stop_before_the_first_token_works(open_socket: Any, stack: Stack) -> None:
    """P3: while the prompt is being computed, or before that."""
    stack.wait_idle()
    long = " ".join(f"The number {n} comes after the number {n - 1}." for n in range(300))
    with open_socket() as socket:
        response = socket.create(input=long, params=LONG)["response_id"]
        socket.send(type="response.cancel", response_id=response)
        frames = socket.read_until(*ENDS)
        assert frames[-1]["type"] == "response.cancelled"
        assert [frame for frame in frames if frame["type"] == DELTA] == []
        stack.wait_idle()
        assert recorded(stack, response) == ("cancelled", "stopped", "")


def test_stop_while_queued_works(open_socket: Any, stack: Stack) -> None:
    """P3: the engine is full of the same team's other answers."""
    stack.wait_idle()
    with open_socket() as crowd, open_socket() as more, open_socket() as socket:
        for other in (crowd, more):
            for n in range(20):
                other.send(type="response.create", input=[{"role": "user", "content": f"Story {n}!"}], params=LONG)
        wait_for(lambda: stack.running() >= 32)
        queued = socket.create(input="Me too!", params=LONG)
        assert queued["position"] >= 1
        socket.send(type="response.cancel", response_id=queued["response_id"])
        frames = socket.read_until(*ENDS)
        assert frames[-1]["type"] == "response.cancelled"
        assert "response.created" not in {frame["type"] for frame in frames}
        assert recorded(stack, queued["response_id"]) == ("cancelled", "stopped", "")
    stack.wait_idle()  # C10: the crowd has gone, and with it what it had asked for, queued or running


def test_any_socket_resumes_an_answer_from_any_place_while_it_runs(open_socket: Any, stack: Stack) -> None:
    """P1: byte for byte, also from beyond what there is yet, and on the socket that has it already."""
    with open_socket() as first, ExitStack() as others:
        response = first.create(input="Tell me about the moon.", params=MIDDLE)["response_id"]
        frames = first.read_deltas(10)
        places = (-1, 0, 1, 5, 10, 40)
        sockets = [others.enter_context(open_socket()) for _ in places]
        for place, socket in zip(places, sockets, strict=True):
            socket.send(type="response.resume", response_id=response, after=place)
        frames += first.read_until(*ENDS)
        # A socket may merge events; the log has each of them.
        texts = {}
        for _, fields in stack.redis.xrange(protocol.generation_key(response)):  # type: ignore[union-attr]
            event = protocol.decode_event(fields[b"event"])
            if isinstance(event, protocol.Delta):
                texts[event.seq] = "".join(part.text for part in event.parts)
        assert text_of(frames) == "".join(texts.values())
        for place, socket in zip(places, sockets, strict=True):
            got = socket.read_until(*ENDS)
            rest = "".join(text for seq, text in texts.items() if seq > place)
            assert text_of(got, after=max(0, place)) == rest
            assert got[-1] == frames[-1]
            assert ("response.created" in {frame["type"] for frame in got}) == (place < 0)


def test_resume_on_the_same_socket_goes_on_from_the_new_place(open_socket: Any, stack: Stack) -> None:
    stack.wait_idle()
    with open_socket() as socket:
        for input_, conversation in (("Count.", True), ([{"role": "user", "content": "Count."}], False)):
            response = socket.create(input=input_, params={**MIDDLE, "max_tokens": 80})["response_id"]
            socket.read_deltas(5)
            socket.send(type="response.resume", response_id=response, after=-1)
            frames = socket.read_until("response.created") + socket.read_until(*ENDS)
            told = list(itertools.dropwhile(lambda frame: frame["type"] != "response.created", frames))
            assert told[-1]["usage"]["completion_tokens"] == 80, conversation
            again = socket.resume(response)
            assert text_of(told) == text_of(again)


@pytest.mark.long
def test_a_stateless_answer_that_was_resumed_keeps_its_lease(open_socket: Any) -> None:
    with open_socket() as socket:
        message = [{"role": "user", "content": "Tell me all about trees."}]
        response = socket.create(input=message, params=LONG)["response_id"]
        socket.read_deltas(1)
        socket.send(type="response.resume", response_id=response, after=1)
        until = time.monotonic() + protocol.LEASE_S + 2
        while time.monotonic() < until:
            frame = socket.read()
            assert frame["type"] not in ("response.cancelled", "response.failed"), frame
            if frame["type"] in ENDS:
                break
        else:
            socket.send(type="response.cancel", response_id=response)


def test_an_ended_answer_is_told_again_from_the_log_and_then_from_the_database(open_socket: Any, stack: Stack) -> None:
    with open_socket() as socket:
        frames = socket.answer(input=CAPITAL, params=GREEDY)
        response, end, text = frames[0]["response_id"], frames[-1], text_of(frames)
        last = end["seq"] - 1
    recorded(stack, response)
    with open_socket() as socket:
        for after in range(-1, last + 2):
            again = socket.resume(response, after)
            assert again[-1] == end
            assert text.endswith(text_of(again, after=min(max(after, 0), last)))
        assert text_of(socket.resume(response)) == text
        # What expires after an hour: the log.
        stack.redis.delete(protocol.generation_key(response), protocol.request_key(response))
        for after in (-1, 0, 1, last - 1):
            *begin, delta, ending = socket.resume(response, after)
            assert [frame["type"] for frame in begin] == (["response.created"] if after < 0 else [])
            assert (delta["first_seq"], delta["seq"], delta["delta"]) == (1, last, text)
            assert (ending["type"], ending["usage"], ending["seq"]) == (end["type"], end["usage"], end["seq"])
            assert (ending["message_id"], ending["timing"]) == (end["message_id"], end["timing"])
        for after in (last, last + 1, 2**53):
            assert [frame["type"] for frame in socket.resume(response, after)] == ["response.completed"]
        stateless = socket.answer(input=[{"role": "user", "content": CAPITAL}], params=GREEDY)[0]["response_id"]
        wait_for(lambda: rows(stack, "SELECT 1 FROM chat_generation WHERE id=? AND ended_at", hexed(stateless)))
        stack.redis.delete(protocol.generation_key(stateless), protocol.request_key(stateless))
        gone = socket.resume(stateless)[-1]
        assert (gone["code"], gone["response_id"]) == ("expired", stateless)


def test_who_goes_away_leaves_a_conversations_answer_running_and_ends_a_stateless_one(
    open_socket: Any, stack: Stack
) -> None:
    """C10 for the socket: before the first token, and after five."""
    for seen in (0, 5):
        stack.wait_idle()
        with open_socket() as socket:
            socket.create(input=[{"role": "user", "content": "Tell me a very long story."}], params=LONG)
            if seen:
                socket.read_deltas(seen)
        stack.wait_idle()
    with open_socket() as socket:
        response = socket.create(input="Tell me about rivers.", params={**MIDDLE, "max_tokens": 60})["response_id"]
        begin = text_of(socket.read_deltas(2))
    with open_socket() as socket:
        frames = socket.resume(response)
        assert (frames[-1]["type"], frames[-1]["usage"]["completion_tokens"]) == ("response.incomplete", 60)
        assert text_of(frames).startswith(begin)
    assert recorded(stack, response)[:2] == ("finished", "done")


def test_a_stateless_call_whose_socket_closes_at_once_is_not_left_running(open_socket: Any, stack: Stack) -> None:
    """C10: the socket goes while the request is still being written down."""
    stack.wait_idle()
    for _ in range(6):
        with open_socket() as socket:
            socket.send(type="response.create", input=[{"role": "user", "content": "A story!"}], params=LONG)
    started = time.monotonic()
    wait_for(lambda: stack.running() == 0 and unfinished(stack) == 0, 30)
    assert time.monotonic() - started < protocol.LEASE_S - 2, "only the lease has ended them"


def unfinished(stack: Stack) -> int:
    return int(rows(stack, "SELECT count(*) FROM chat_generation WHERE ended_at IS NULL")[0][0])


def test_64_starts_at_once_lose_no_first_event(open_socket: Any) -> None:
    """P7."""
    with ExitStack() as sockets:
        opened: list[Socket] = [sockets.enter_context(open_socket()) for _ in range(4)]
        for n in range(16):
            for socket in opened:
                message = [{"role": "user", "content": f"Say {n}."}]
                socket.send(type="response.create", input=message, params={**GREEDY, "max_tokens": 3}, event_id=str(n))
        for socket in opened:
            told: dict[str, list[dict[str, Any]]] = {}
            while sum(frames[-1]["type"] in ENDS for frames in told.values()) < 16:
                frame = socket.read()
                assert frame["type"] != "error", frame
                told.setdefault(frame["response_id"], []).append(frame)
            assert {frames[0]["event_id"] for frames in told.values()} == {str(n) for n in range(16)}
            for frames in told.values():
                kinds = [frame["type"] for frame in frames if frame["type"] != "response.queued"]
                assert kinds[0] == "response.created"
                assert text_of(frames), frames
                assert frames[-1]["usage"]["completion_tokens"] <= 3


def test_a_socket_refuses_more_responses_than_it_said_also_when_they_come_at_once(
    open_socket: Any, stack: Stack
) -> None:
    with open_socket() as socket:
        most = socket.hello["limits"]["max_responses"]
        for n in range(most + 5):
            message = [{"role": "user", "content": f"Story {n}!"}]
            socket.send(type="response.create", input=message, params=LONG, event_id=str(n))
        queued, refused = 0, 0
        while queued + refused < most + 5:
            frame = socket.read()
            queued += frame["type"] == "response.queued" and "event_id" in frame
            if frame["type"] == "error":
                refused += 1
                assert (frame["code"], frame["retryable"]) == ("too_many_responses", True)
        assert (queued, refused) == (most, 5)
        socket.send(type="ping", event_id="still here")
        socket.read_until("pong")
    stack.wait_idle()


def test_two_answers_run_on_one_socket(open_socket: Any) -> None:
    with open_socket() as socket:
        for word in ("red", "blue"):
            socket.send(type="response.create", input=f"Why is it {word}?", params=MIDDLE, event_id=word)
        told: dict[str, list[dict[str, Any]]] = {}
        while sum(frames[-1]["type"] in ENDS for frames in told.values()) < 2:
            frame = socket.read()
            told.setdefault(frame["response_id"], []).append(frame)
        red, blue = told.values()
        assert text_of(red) != text_of(blue)
        order = [frames[-1]["usage"]["completion_tokens"] for frames in (red, blue)]
        assert order == [120, 120]
        assert red[0]["conversation_id"] != blue[0]["conversation_id"]


@pytest.mark.parametrize("stateless", [False, True])
def test_an_idempotency_key_sent_twice_starts_one_answer(open_socket: Any, stateless: bool) -> None:
    input_: Any = [{"role": "user", "content": "Say a word."}] if stateless else "Say a word."
    frame = {"input": input_, "params": {**MIDDLE, "max_tokens": 60}, "idempotency_key": f"once-{stateless}"}
    with open_socket() as socket, open_socket() as other:
        first = socket.create(**frame, event_id="1")
        begin = socket.read_deltas(3)
        # Sent again on the same socket, it is told anew from its start: nothing twice, nothing missing.
        socket.send(type="response.create", **frame, event_id="2")
        before = socket.read_until("response.queued")
        frames = [before[-1], *socket.read_until(*ENDS)]
        assert frames[0]["response_id"] == first["response_id"]
        text = text_of(frames)
        assert text.startswith(text_of(begin))
        assert frames[-1]["usage"]["completion_tokens"] == 60
        # On another socket too, also when it has ended.
        third = other.answer(**frame)
        assert (third[0]["response_id"], text_of(third)) == (first["response_id"], text)
        mismatch = other.answer(**{**frame, "params": GREEDY})
        assert (mismatch[-1]["code"], mismatch[-1]["param"]) == ("idempotency_mismatch", "idempotency_key")


def test_a_retry_on_a_new_socket_outlives_the_old_one(open_socket: Any) -> None:
    """The old socket's end comes late and must not stop what the new one has taken over."""
    frame = {
        "input": [{"role": "user", "content": "Tell me about birds."}],
        "params": {**MIDDLE, "max_tokens": 150},
        "idempotency_key": "retried",
    }
    with open_socket() as new:
        with open_socket() as old:
            first = old.create(**frame)
            old.read_deltas(2)
            new.send(type="response.create", **frame)
            assert new.read_until("response.created")[0]["response_id"] == first["response_id"]
        frames = new.read_until(*ENDS)
        assert (frames[-1]["type"], frames[-1]["usage"]["completion_tokens"]) == ("response.incomplete", 150)
