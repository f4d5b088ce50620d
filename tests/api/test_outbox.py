"""The outbox by itself: what merges, what waits, what is dropped."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from chatapp.api import frames, outbox
from chatapp.api.outbox import Outbox, Overflow
from engine.protocol import Logprob, Part, TokenLogprob, ToolCallPart


class Client:
    """Reads only when it is told to."""

    def __init__(self) -> None:
        self.read: list[dict[str, Any]] = []
        self.closed: int | None = None
        self.may_read = asyncio.Event()
        self.outbox = Outbox(self._send, self._close)
        self._task = asyncio.create_task(self.outbox.run())

    async def _send(self, text: str) -> None:
        await self.may_read.wait()
        self.read.append(json.loads(text))

    async def _close(self, code: int) -> None:
        self.closed = code

    async def all(self) -> list[dict[str, Any]]:
        self.may_read.set()
        self.outbox.close(1000)
        await self._task
        return self.read


def texts(read: list[dict[str, Any]], response: str) -> list[tuple[int, int, str]]:
    return [(f["first_seq"], f["seq"], f["delta"]) for f in read if f.get("response_id") == response and "delta" in f]


async def test_deltas_of_one_response_merge_while_the_client_does_not_read() -> None:
    client = Client()
    for seq in range(1, 101):
        assert client.outbox.put_delta("a", seq, seq, [Part(text=f"{seq} ")])
        assert client.outbox.put_delta("b", seq, seq, [Part(text="x")])
        if seq % 10 == 0:
            await asyncio.sleep(0)
    read = await client.all()
    for response, text in (("a", "".join(f"{seq} " for seq in range(1, 101))), ("b", "x" * 100)):
        told = texts(read, response)
        assert "".join(delta for _, _, delta in told) == text
        assert [first for first, _, _ in told] == [1, *(seq + 1 for _, seq, _ in told[:-1])]
        assert len(told) <= 3
    assert client.closed == 1000


async def test_only_what_follows_on_is_merged() -> None:
    """A response told from another place, as after a resume, is not glued to what waits."""
    client = Client()
    assert client.outbox.put_delta("a", 10, 12, [Part(text="late")])
    assert client.outbox.put_delta("a", 1, 1, [Part(text="early")])
    assert client.outbox.put_delta("a", 2, 2, [Part(text=" on")])
    assert texts(await client.all(), "a") == [(10, 12, "late"), (1, 2, "early on")]


async def test_what_is_forgotten_is_not_sent_and_makes_room() -> None:
    client = Client()
    client.outbox.put(frames.Pong(event_id="first"))
    await asyncio.sleep(0)
    assert client.outbox.put_delta("a", 1, 1, [Part(text="x" * outbox.ROOM_CHARS)])
    assert not client.outbox.put_delta("b", 1, 1, [Part(text="too much")]), "there is no room"
    waiting = asyncio.create_task(client.outbox.room())
    await asyncio.sleep(0.01)
    assert not waiting.done()
    client.outbox.forget("a")
    await asyncio.wait_for(waiting, 1)
    assert client.outbox.put_delta("b", 1, 1, [Part(text="goes on")])
    assert client.outbox.put_delta("a", 5, 5, [Part(text="anew")])
    read = await client.all()
    assert texts(read, "a") == [(5, 5, "anew")]
    assert texts(read, "b") == [(1, 1, "goes on")]


async def test_room_is_made_once_it_pays_to_read_the_log_again() -> None:
    """Not for every character that the client takes."""
    client = Client()
    client.outbox.put_delta("a", 1, 1, [Part(text="x" * outbox.MERGED_CHARS)])
    await asyncio.sleep(0)  # it is being sent now
    for seq in range(2, outbox.ROOM_CHARS // outbox.MERGED_CHARS + 1):
        assert client.outbox.put_delta("a", seq, seq, [Part(text="x" * outbox.MERGED_CHARS)])
    assert not client.outbox.put_delta("a", 5, 5, [Part(text="x")])
    client.may_read.set()
    await asyncio.wait_for(client.outbox.room(), 1)
    assert len(client.read) >= 2
    assert client.outbox.put_delta("a", 5, 5, [Part(text="x")])
    read = await client.all()
    assert [(first, seq) for first, seq, _ in texts(read, "a")] == [(n, n) for n in range(1, 6)]


async def test_a_frame_of_merged_text_stays_below_what_clients_take() -> None:
    """1 MiB is what many libraries take; a character may have six bytes in JSON."""
    client = Client()
    client.outbox.put(frames.Pong())
    await asyncio.sleep(0)
    seq = 0
    while client.outbox.put_delta("a", seq + 1, seq + 1, [Part(text="\x01" * 5000)]):
        seq += 1
    read = await client.all()
    assert "".join(delta for _, _, delta in texts(read, "a")) == "\x01" * 5000 * seq
    assert max(len(json.dumps(frame)) for frame in read) < 1024 * 1024


async def test_all_that_events_say_arrives_and_the_last_frame_of_a_range_says_so() -> None:
    client = Client()
    client.outbox.put(frames.Pong())
    await asyncio.sleep(0)
    call = [ToolCallPart(call=0, id="c1", name="look", arguments='{"a"')]
    likely = [TokenLogprob("x", -0.5, 7, top=[Logprob("y", -1.0)])]
    client.outbox.put_delta(
        "a", 1, 1, [Part(text="one", token_ids=[1], logprobs=likely), Part(index=1, text="two")], "s"
    )
    client.outbox.put_delta("a", 2, 2, [Part(index=1, tool_calls=call)], "s")
    client.outbox.put_delta("a", 3, 3, [Part(index=1, tool_calls=[ToolCallPart(arguments=":1}")])], "s")
    client.outbox.put_delta("a", 4, 5, [Part(finish_reason="stop"), Part(index=1, finish_reason="tool_calls")], "s")
    _, *told = await client.all()
    assert {(frame["first_seq"], frame["seq"], frame["stream_id"]) for frame in told} == {(1, 5, "s")}
    assert [frame.get("more", False) for frame in told] == [True] * (len(told) - 1) + [False]
    short = [(frame["type"].removeprefix("response."), frame["index"], frame.get("delta")) for frame in told]
    assert short == [
        ("output_text.delta", 0, "one"),
        ("output_text.delta", 1, "two"),
        ("output_item.added", 1, None),
        ("function_call_arguments.delta", 1, '{"a":1}'),
        ("output_text.delta", 1, ""),
    ]
    assert told[0]["logprobs"] == [{"token": "x", "logprob": -0.5, "id": 7, "top": [{"token": "y", "logprob": -1.0}]}]
    assert (told[0]["finish_reason"], told[4]["finish_reason"]) == ("stop", "tool_calls")
    assert told[2]["item"] == {"type": "function_call", "call_id": "c1", "name": "look"}


async def test_of_what_has_changed_twice_only_the_newest_is_sent() -> None:
    client = Client()
    client.outbox.put(frames.Pong())
    await asyncio.sleep(0)
    for number in range(outbox.ROOM_FRAMES * 2):
        client.outbox.put_latest("b" if number % 2 else "a", frames.Pong(event_id=str(number)))
    read = await client.all()
    assert [frame.get("event_id") for frame in read] == [
        None,
        str(outbox.ROOM_FRAMES * 2 - 2),
        str(outbox.ROOM_FRAMES * 2 - 1),
    ]


async def test_a_client_that_only_asks_overflows() -> None:
    client = Client()
    for _ in range(outbox.ROOM_FRAMES):
        client.outbox.put(frames.Pong())
    with pytest.raises(Overflow):
        client.outbox.put(frames.Pong())
    client.outbox.close(4429)
    client.may_read.set()
    read = await client.all()
    assert len(read) <= outbox.ROOM_FRAMES + 1
    assert client.closed == 4429
