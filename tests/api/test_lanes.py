"""Several answers at once on a socket: what is ordered, what is not, and what waits."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from chatapp.api import lanes
from chatapp.chat.models import Generation
from tests.api.conftest import ENDS, text_of
from tests.api.sockets import Voice, line, until, voice
from tests.chat.conftest import Team, server, strangers, team

__all__ = ["server", "strangers", "team", "voice"]
pytestmark = pytest.mark.django_db(transaction=True)


async def rows() -> int:
    return await asyncio.to_thread(Generation.objects.count)


async def test_a_lane_is_answered_in_order_and_lanes_do_not_wait_for_each_other(team: Team, voice: Voice) -> None:
    async with line(team.secret) as socket:
        for number, lane in enumerate(["a", "a", "b", "a"]):
            await socket.send(type="response.create", input=f"{lane}{number}", stream_id=lane, event_id=str(number))
        frames = await socket.read_until("response.queued", event_id="2")
        queued = {frame["event_id"]: frame for frame in frames if "event_id" in frame}
        while "0" not in queued:
            queued["0"] = (await socket.read_until("response.queued", event_id="0"))[-1]
        assert set(queued) == {"0", "2"}
        assert await socket.quiet(), "the others of lane a have not been asked"
        assert await rows() == 2
        taken = {one.id: one for one in (voice.start(), voice.start())}
        first, other = taken[queued["0"]["response_id"]], taken[queued["2"]["response_id"]]
        # The second lane ends first; the first lane goes on by itself.
        voice.texts(other, 1, "from b")
        voice.finish(other, 2)
        frames = await socket.ended(other.id)
        assert text_of([frame for frame in frames if frame["response_id"] == other.id]) == "from b"
        assert await socket.quiet()
        voice.texts(first, 1, "one")
        voice.finish(first, 2)
        ended = await socket.ended(first.id)
        assert {frame["stream_id"] for frame in ended} == {"a"}
        order = []
        for _ in range(2):
            queued_next = (await socket.read_until("response.queued"))[-1]
            order.append(queued_next["event_id"])
            voice.answer("next")
            frames = await socket.ended(queued_next["response_id"])
            assert {frame["stream_id"] for frame in frames} == {"a"}
        assert order == ["1", "3"]


async def test_without_a_lane_responses_run_at_once_and_carry_none(team: Team, voice: Voice) -> None:
    async with line(team.secret) as socket:
        ids = {(await socket.create(input=f"Question {n}?"))["response_id"] for n in range(3)}
        assert {voice.start().id for _ in range(3)} == ids
        frames = [await socket.read() for _ in range(3)]
        assert {frame["type"] for frame in frames} == {"response.created"}
        assert all("stream_id" not in frame for frame in socket.heard)


async def test_stop_and_errors_of_a_lane_end_their_own_response_only(team: Team, voice: Voice) -> None:
    async with line(team.secret) as socket:
        running = await socket.create(input="A story.", stream_id="a")
        other = await socket.create(input="Another.", stream_id="b")
        taken = {one.id: one for one in (voice.start(), voice.start())}
        await socket.send(type="response.create", input="", stream_id="a", event_id="empty")
        await socket.send(type="response.create", input="Next.", stream_id="a", event_id="next")
        await socket.send(type="response.cancel", response_id=running["response_id"])
        assert (await until(lambda: voice.redis.hget(f"octavo:request:{running['response_id']}", "cancel"))) is not None
        voice.end_as_told(taken[running["response_id"]], 1)
        await socket.ended(running["response_id"])
        error = (await socket.read_until("error"))[-1]
        assert (error["event_id"], error["code"], error["stream_id"]) == ("empty", "empty", "a")
        following = (await socket.read_until("response.queued"))[-1]
        assert following["event_id"] == "next", "what was wrong before it does not hold it up"
        voice.answer("done")
        await socket.ended(following["response_id"])
        voice.texts(taken[other["response_id"]], 1, "still here")
        voice.finish(taken[other["response_id"]], 2)
        frames = await socket.ended(other["response_id"])
        assert frames[-1]["type"] == "response.completed"


async def test_a_whole_lane_can_be_stopped(team: Team, voice: Voice) -> None:
    async with line(team.secret) as socket:
        running = await socket.create(input="A story.", stream_id="a")
        for number in range(3):
            await socket.send(type="response.create", input="More.", stream_id="a", event_id=str(number))
        await socket.send(type="response.cancel", stream_id="a")
        frames = [await socket.read() for _ in range(4)]
        errors = {frame["event_id"]: frame for frame in frames if frame["type"] == "error"}
        assert set(errors) == {"0", "1", "2"}
        assert {(frame["code"], frame["stream_id"], frame["retryable"]) for frame in errors.values()} == {
            ("cancelled", "a", False)
        }
        (end,) = (frame for frame in frames if frame["type"] != "error")
        assert (end["type"], end["response_id"]) == ("response.cancelled", running["response_id"])
        assert await rows() == 1, "what waited was never asked"
        await socket.send(type="response.cancel", stream_id="nobody's", event_id="x")
        error = (await socket.read_until("error"))[-1]
        assert (error["code"], error["param"], error["event_id"]) == ("not_found", "stream_id", "x")
        again = await socket.create(input="And now?", stream_id="a")
        voice.answer("Here.")
        assert (await socket.ended(again["response_id"]))[-1]["type"] == "response.completed"


async def test_what_may_wait_is_bounded_and_everything_else_goes_on(
    team: Team, voice: Voice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lanes, "MOST_WAITING", 3)
    async with line(team.secret) as socket:
        assert socket.hello["limits"]["max_waiting"] >= 3
        running = await socket.create(input="One.", stream_id="a")
        for number in range(5):
            await socket.send(type="response.create", input="More.", stream_id="a", event_id=str(number))
        errors = [await socket.read() for _ in range(2)]
        assert [(frame["event_id"], frame["code"], frame["retryable"]) for frame in errors] == [
            ("3", "too_many_waiting", True),
            ("4", "too_many_waiting", True),
        ]
        assert all(frame["stream_id"] == "a" for frame in errors)
        other = await socket.create(input="Another lane.", stream_id="b")
        await socket.send(type="response.cancel", response_id=other["response_id"])
        await socket.ended(other["response_id"])
        await socket.send(type="response.cancel", response_id=running["response_id"])
        await socket.ended(running["response_id"])
        await socket.read_until("response.queued", event_id="0")


async def test_a_response_that_is_resumed_on_its_own_socket_keeps_its_place_in_its_lane(
    team: Team, voice: Voice
) -> None:
    async with line(team.secret) as socket:
        first = await socket.create(input="One.", stream_id="a")
        await socket.send(type="response.create", input="Two.", stream_id="a", event_id="two")
        taken = voice.start()
        voice.texts(taken, 1, "some", " text")
        await socket.read_until("response.output_text.delta")
        for _ in range(2):
            await socket.send(type="response.resume", response_id=first["response_id"], after=-1)
            frames = await socket.read_until("response.created")
            assert frames[-1]["stream_id"] == "a"
        while True:
            delta = (await socket.read_until("response.output_text.delta"))[-1]
            if delta["seq"] == 2:
                break
        assert await socket.quiet(), "the second one still waits"
        voice.finish(taken, 3)
        await socket.ended(first["response_id"])
        await socket.read_until("response.queued", event_id="two")


async def test_a_resumed_response_can_be_given_a_lane_that_others_then_wait_in(team: Team, voice: Voice) -> None:
    async with line(team.secret) as socket:
        response = (await socket.create(input="One."))["response_id"]
    taken = voice.start()
    voice.texts(taken, 1, "one", " two")
    async with line(team.secret) as socket:
        await socket.send(type="response.resume", response_id=response, after=1, stream_id="x")
        told = await socket.read()
        assert (told["delta"], told["first_seq"], told["stream_id"]) == (" two", 2, "x")
        await socket.send(type="response.create", input="Two.", stream_id="x", event_id="two")
        assert await socket.quiet()
        voice.finish(taken, 3)
        await socket.ended(response)
        await socket.read_until("response.queued", event_id="two")


async def test_what_waits_in_a_lane_is_not_asked_once_its_socket_has_gone(team: Team, voice: Voice) -> None:
    async with line(team.secret) as socket:
        await socket.create(input="One.", stream_id="a")
        await socket.send(type="response.create", input="Two.", stream_id="a")
        await socket.quiet()
    voice.answer("Done.")
    await asyncio.sleep(0.1)
    assert await rows() == 1


@pytest.mark.parametrize(
    ("frame", "param"),
    [
        ({"type": "response.create", "input": "x", "stream_id": ""}, "stream_id"),
        ({"type": "response.create", "input": "x", "stream_id": "x" * 129}, "stream_id"),
        ({"type": "response.create", "input": "x", "stream_id": 5}, "stream_id"),
        ({"type": "response.cancel", "stream_id": ""}, "stream_id"),
        ({"type": "response.cancel"}, "response_id"),
        ({"type": "response.resume", "response_id": "x", "stream_id": []}, "stream_id"),
        ({"type": "subscribe", "topic": "everything"}, "topic"),
        ({"type": "subscribe"}, "topic"),
        ({"type": "response.create", "input": "x", "tools": [{"type": "function"}]}, "tools"),
        ({"type": "response.create", "input": "x", "tools": "all"}, "tools"),
        ({"type": "response.create", "input": [{"role": "tool"}]}, "input[0].content"),
        ({"type": "response.create", "input": [{"role": "user", "content": "x", "tool_calls": [{"id": "1"}]}]},
         "input[0].tool_calls[0].function"),
    ],
)  # fmt: skip
async def test_what_makes_no_sense_of_a_lane_a_topic_or_a_tool_is_said_by_its_field(
    team: Team, frame: dict[str, Any], param: str
) -> None:
    async with line(team.secret) as socket:
        await socket.send(**frame, event_id="e")
        error = await socket.read()
        assert (error["type"], error["param"], error["event_id"]) == ("error", param, "e"), error
        assert await socket.quiet()


async def test_every_end_of_every_lane_leaves_nothing_behind(team: Team, voice: Voice) -> None:
    """A hundred lanes, one after the other, on one socket."""
    async with line(team.secret) as socket:
        for number in range(100):
            await socket.send(type="response.create", input="", stream_id=f"lane {number}")
            assert (await socket.read())["code"] == "empty"
        queued = await socket.create(input="Hello.", stream_id="last")
        voice.answer("Hello.")
        frames = await socket.ended(queued["response_id"])
        assert frames[-1]["type"] in ENDS
