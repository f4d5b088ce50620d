"""A web process that dies, and one that is told to end: sockets go on in another, and nothing is lost or repeated."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
import pytest
from octavo_client import AsyncOctavo, TextDelta
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from engine import protocol
from tests.api.conftest import ENDS, text_of
from tests.api.sockets import Voice, delta, until
from tests.chat.conftest import Team
from tests.outages.conftest import Switch, WebProcess, taken

pytestmark = pytest.mark.django_db(transaction=True)

WORDS = [f"{n} " for n in range(1, 81)]
# What the supervisor waits (supervisord.conf).
STOP_S = 10.0


def key(team: Team) -> dict[str, str]:
    return {"Authorization": f"Bearer {team.secret}"}


async def said(voice: Voice, taken: protocol.Taken, first: int, last: int, every_s: float = 0.01) -> None:
    """The words of these numbers, each a step of its own."""
    for seq in range(first, last + 1):
        await asyncio.to_thread(voice.say, taken, delta(seq, protocol.Part(text=WORDS[seq - 1])))
        await asyncio.sleep(every_s)


async def frames_until(socket: Any, *types: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    while not found or found[-1]["type"] not in types:
        found.append(json.loads(await asyncio.wait_for(socket.recv(), 10)))
    return found


async def left(socket: Any) -> AsyncIterator[str]:
    """What comes until it is closed."""
    with contextlib.suppress(ConnectionClosed):
        while True:
            yield await asyncio.wait_for(socket.recv(), 10)


async def test_clients_of_a_killed_process_go_on_in_another_without_a_word_lost_or_repeated(
    team: Team, voice: Voice, web: Callable[..., WebProcess], staying: WebProcess
) -> None:
    first = await asyncio.to_thread(web().ready)
    async with Switch(first.port, staying.port) as switch:
        async with AsyncOctavo(f"http://127.0.0.1:{switch.port}", api_key=team.secret) as octavo:
            streams = [octavo.stream(f"Count, {n}.") for n in range(4)]
            answers = [await taken(voice) for _ in streams]
            texts = [""] * len(streams)

            async def read(n: int) -> None:
                async for event in streams[n]:
                    if isinstance(event, TextDelta):
                        texts[n] += event.delta

            reading = [asyncio.create_task(read(n)) for n in range(len(streams))]
            saying = [asyncio.create_task(said(voice, one, 1, 80)) for one in answers]
            await until(lambda: all(texts))
            first.send(signal.SIGKILL)
            await asyncio.gather(*saying)
            for one in answers:
                await asyncio.to_thread(voice.finish, one, 81)
            await asyncio.wait_for(asyncio.gather(*reading), 30)
            assert texts == ["".join(WORDS)] * len(streams)
            assert [stream.answer.status for stream in streams] == ["completed"] * len(streams)
        assert switch.went == [first.port, staying.port]


async def test_a_process_told_to_end_says_so_closes_with_1001_and_its_answer_goes_on_elsewhere(
    team: Team, voice: Voice, web: Callable[..., WebProcess], staying: WebProcess
) -> None:
    leaving = await asyncio.to_thread(web().ready)
    address = f"ws://127.0.0.1:{leaving.port}/ws/v1"
    async with connect(address, additional_headers=key(team)) as socket:
        await socket.send(json.dumps({"type": "response.create", "input": "Count."}))
        response = (await frames_until(socket, "response.queued"))[-1]["response_id"]
        answer = await taken(voice)
        await said(voice, answer, 1, 10)
        frames = await frames_until(socket, "response.output_text.delta")
        began = time.monotonic()
        leaving.send(signal.SIGTERM)
        frames += await frames_until(socket, "session.expiring")
        assert 0 < frames[-1]["expires_at"] - time.time() < STOP_S
        # While it leaves it still tells what runs, and lets nobody in.
        assert await asyncio.to_thread(leaving.health, "/readyz") == 503
        assert await asyncio.to_thread(leaving.health) == 503
        with pytest.raises(InvalidStatus, match="503"):
            await connect(address, additional_headers=key(team))
        await said(voice, answer, 11, 20)
        frames += [json.loads(text) async for text in left(socket)]
        assert socket.close_code == 1001
    assert await asyncio.to_thread(leaving.popen.wait, STOP_S) == 0
    assert time.monotonic() - began < STOP_S
    told = [frame for frame in frames if frame["type"] == "response.output_text.delta"]
    assert told[-1]["seq"] == 20, "what came while it left was told"
    async with connect(f"ws://127.0.0.1:{staying.port}/ws/v1", additional_headers=key(team)) as socket:
        await socket.send(json.dumps({"type": "response.resume", "response_id": response, "after": 20}))
        await said(voice, answer, 21, 80)
        await asyncio.to_thread(voice.finish, answer, 81)
        rest = await frames_until(socket, *ENDS)
    assert text_of(told) + text_of(rest, after=20) == "".join(WORDS)


@pytest.mark.long
async def test_the_client_opens_its_next_connection_before_the_old_one_ends(
    team: Team, voice: Voice, web: Callable[..., WebProcess], staying: WebProcess
) -> None:
    leaving = await asyncio.to_thread(web().ready)
    async with Switch(leaving.port, staying.port) as switch:
        async with AsyncOctavo(f"http://127.0.0.1:{switch.port}", api_key=team.secret) as octavo:
            stream = octavo.stream("Count.")
            answer = await taken(voice)
            saying = asyncio.create_task(said(voice, answer, 1, 80, every_s=0.05))
            text = ""
            states = set()
            async for event in stream:
                if isinstance(event, TextDelta):
                    if not text:
                        leaving.send(signal.SIGTERM)
                    text += event.delta
                    states.add(octavo.state)
                    if text.endswith(WORDS[-1]):
                        await saying
                        await asyncio.to_thread(voice.finish, answer, 81)
            assert text == "".join(WORDS)
            assert states == {"open"}, "there was always a connection"
        assert switch.went == [leaving.port, staying.port]
    assert await asyncio.to_thread(leaving.popen.wait, STOP_S) == 0


async def test_requests_under_way_end_within_the_grace_time_and_streams_that_do_not_end_with_an_error(
    team: Team, voice: Voice, web: Callable[..., WebProcess]
) -> None:
    leaving = await asyncio.to_thread(web(OCTAVO_WEB_GRACE_S="2").ready)
    body = {"model": "default", "messages": [{"role": "user", "content": "Count."}]}
    url = f"{leaving.url}/v1/chat/completions"
    async with httpx.AsyncClient(headers=key(team), timeout=20) as http:

        async def streamed() -> str:
            lines = ""
            async with http.stream("POST", url, json={**body, "stream": True}) as reply:
                async for line in reply.aiter_lines():
                    lines += line + "\n"
            return lines

        whole = asyncio.create_task(http.post(url, json=body))
        quick = await taken(voice)
        endless = asyncio.create_task(streamed())
        slow = await taken(voice)
        late = asyncio.create_task(http.post(url, json=body))
        await taken(voice)
        await said(voice, slow, 1, 3)
        leaving.send(signal.SIGTERM)
        await asyncio.sleep(0.3)
        newcomer = await http.post(url, json={**body, "stream": True})
        assert (newcomer.status_code, newcomer.headers["retry-after"]) == (503, "1"), "not begun, to be cut in a second"
        assert newcomer.json()["error"]["code"] == "server_stopping"
        assert (await http.get(f"{leaving.url}/v1/models")).status_code == 200, "what is short is answered"
        voice.texts(quick, 1, "Done")
        await asyncio.to_thread(voice.finish, quick, 2)
        assert (await whole).json()["choices"][0]["message"]["content"] == "Done"
        lines = await endless
        assert '"content":"3 "' in lines
        assert '"code":"server_stopping"' in lines
        assert "[DONE]" not in lines
        refused = await late
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
        assert refused.json()["error"]["code"] == "server_stopping"
    assert await asyncio.to_thread(leaving.popen.wait, STOP_S) == 0
    # Nobody else can have these answers, so the engine is told to stop.
    assert voice.redis.hget(protocol.request_key(slow.id), "cancel") == b"1"


@pytest.mark.long
async def test_an_idle_process_ends_at_once_and_again_with_ctrl_c(team: Team, web: Callable[..., WebProcess]) -> None:
    for sig in (signal.SIGTERM, signal.SIGINT):
        idle = await asyncio.to_thread(web().ready)
        began = time.monotonic()
        idle.send(sig)
        assert await asyncio.to_thread(idle.popen.wait, STOP_S) == 0
        assert time.monotonic() - began < 3


# --- what comes to a process --------------------------------------------------------------------------------------


async def test_all_of_a_burst_are_answered_by_a_process_that_was_busy_when_they_came(
    team: Team, web: Callable[..., WebProcess]
) -> None:
    """P7: they wait to be accepted; where too few may, the kernel cuts the others off."""
    process = await asyncio.to_thread(web().ready)
    process.send(signal.SIGSTOP)
    opening = [asyncio.open_connection("127.0.0.1", process.port) for _ in range(200)]
    connections = await asyncio.wait_for(asyncio.gather(*opening), 5)
    for _, writer in connections:
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
    process.send(signal.SIGCONT)
    answers = await asyncio.wait_for(asyncio.gather(*(reader.readline() for reader, _ in connections)), 30)
    assert set(answers) == {b"HTTP/1.1 200 OK\r\n"}
    for _, writer in connections:
        writer.close()


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (b"\x81\xff" + (2 << 20).to_bytes(8, "big") + b"\0\0\0\0", 1009),
        (b"\xf1\x80\0\0\0\0", 1002),
        (b"\x81\x82\0\0\0\0\xff\xff", 1007),
    ],
    ids=["more than is read at all", "reserved bits", "text that is none"],
)
async def test_a_client_is_told_why_its_socket_ends_when_what_it_sent_cannot_be_read(
    team: Team, staying: WebProcess, sent: bytes, code: int
) -> None:
    async with connect(f"ws://127.0.0.1:{staying.port}/ws/v1", additional_headers=key(team)) as socket:
        await frames_until(socket, "session.created")
        socket.transport.write(sent)
        with pytest.raises(ConnectionClosed) as closed:
            await asyncio.wait_for(socket.recv(), 5)
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == code
