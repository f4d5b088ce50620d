"""bench.transport cannot lie: its clock, its check for losses, its counts; and a tiny run of all of it."""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import threading
from array import array
from pathlib import Path
from typing import Any

import pytest
import redis
import websockets

from bench import transport
from bench.fake_engine import FakeEngine
from bench.listeners import Socket
from bench.said import ENDING, WIDTH, Heard, crc_of, now_us, token
from bench.targets import Results, verdicts
from engine import protocol
from engine.protocol import ChatMessage, Delta, Finished, Request, Started
from tests.conftest import ROOT

MODEL = "bench"


def words(*numbers: int, at_us: int = 1000) -> str:
    return "".join(token(number, at_us) for number in numbers)


# --- what a client has heard ------------------------------------------------------------------------------------------


def test_every_token_of_a_merged_frame_has_the_latency_of_its_own_step() -> None:
    heard = Heard()
    heard.frame(token(0, 1_000) + token(1, 51_000), 1, 2, 60_000)
    heard.frame(token(2, 101_000), 3, 3, 103_500)
    heard.end(ENDING, 3)
    assert heard.late_us.tolist() == [59_000, 9_000, 2_500]
    assert (heard.tokens, heard.frames, heard.problems) == (3, 2, [])


def test_the_clock_is_one_for_all_processes() -> None:
    said = subprocess.run(
        [sys.executable, "-c", "from bench.said import now_us; print(now_us())"], cwd=ROOT, capture_output=True
    )
    assert 0 < now_us() - int(said.stdout) < 60_000_000


@pytest.mark.parametrize(
    ("frames", "said"),
    [
        ([(0, 1, 1), (2, 3, 3)], "the frame of 3 to 3 came behind 1"),
        ([(0, 1, 1), (0, 1, 1)], "the frame of 1 to 1 came behind 1"),
        ([(0, 1, 1), (2, 2, 2)], "token 2 came in place of 1"),
        ([(0, 1, 2)], "the frame of 1 to 2 has 16 characters"),
    ],
)
def test_what_is_lost_told_twice_or_claimed_is_noticed(frames: list[tuple[int, int, int]], said: str) -> None:
    heard = Heard()
    for number, first_seq, seq in frames:
        heard.frame(words(number), first_seq, seq, now_us())
    assert said in heard.problems


def test_torn_text_an_early_end_and_a_cancelled_answer_are_noticed() -> None:
    torn, short, stopped = Heard(), Heard(), Heard()
    torn.frame(words(0)[:-1] + "x", 1, 1, now_us())
    short.frame(words(0), 1, 1, now_us())
    short.end(ENDING, 2)
    stopped.end("response.cancelled", 0)
    assert "no token" in torn.problems[0]
    assert short.problems == ["1 tokens came of 2"]
    assert stopped.problems == ["it ended as response.cancelled"]


def test_a_run_counts_answers_that_differ_from_what_was_said_and_those_that_are_missing() -> None:
    engine = {
        "steps": 100,
        "seconds": 5.0,
        "round trips": 110,
        "calls": 150,
        "late steps": 0,
        "said": {"a": 1, "b": 2},
    }
    answers: list[dict[str, Any]] = [
        {"id": "a", "tokens": 100, "frames": 100, "bytes": 1, "crc": 1, "problems": []},
        {"id": "b", "tokens": 100, "frames": 50, "bytes": 1, "crc": 3, "problems": []},
    ]
    load = transport.Load(sockets=3, seconds=5.0)
    found = transport.figures_of(load, [{"answers": answers}], array("q", [1000] * 98 + [90_000] * 2), engine)
    assert found["answers at fault"] == 2, "one with another text, one that did not come"
    assert (found["tokens written"], found["tokens that came"]) == (300, 200)
    assert (found["write to client p50, ms"], found["write to client p99, ms"]) == (1.0, 90.0)
    assert (found["pipelines a step"], found["tokens a frame"]) == (1.1, pytest.approx(200 / 150))
    assert transport.faults_of(answers[0], engine["said"]) == []
    assert transport.faults_of(answers[1], engine["said"]) == ["its text is not what was said"]


def test_the_targets_read_the_runs_figures() -> None:
    results = Results()
    results.carried = {
        "300 websocket": {"write to client p99, ms": 260.0, "pipelines a step": 1.1},
        "1,000 websocket": {"answers at fault": 1.0},
    }
    said = {line[0]: line[3] for line in verdicts(results)[1:]}
    assert said == {
        "300 sockets at 20 tok/s: write to client p99, ms": "missed",
        "300 sockets at 20 tok/s: pipelines a step, heartbeats included": "met",
        "1,000 sockets at 20 tok/s: answers at fault": "missed",
    }


def test_the_web_process_is_started_as_make_run_does() -> None:
    command = transport.program("web", OCTAVO_PYTHON="py", OCTAVO_BIND="127.0.0.1", PORT="81", OCTAVO_DATA="d")
    text = (ROOT / "supervisord.conf").read_text()
    assert command[0] == "py"
    assert command[-1] in text
    assert command[command.index("--port") + 1] == "81"


# --- the parts against real counterparts --------------------------------------------------------------------------


@pytest.mark.parametrize("drop", [0, 2])
async def test_a_client_reads_a_socket_and_notices_a_frame_that_is_dropped(drop: int) -> None:
    async def serve(socket: Any) -> None:
        await socket.send(json.dumps({"type": "session.created"}))
        assert json.loads(await socket.recv())["params"]["max_tokens"] == 6
        await socket.send(json.dumps({"type": "response.queued", "response_id": "g"}))
        await socket.send(json.dumps({"type": "response.created", "response_id": "g"}))
        for numbers in ([0], [1, 2], [3], [4, 5]):
            frame = {"type": "response.output_text.delta", "response_id": "g", "delta": words(*numbers)}
            await socket.send(json.dumps({**frame, "first_seq": numbers[0] + 1, "seq": numbers[-1] + 1}))
        await socket.send(json.dumps({"type": "response.incomplete", "response_id": "g", "finish_reason": ENDING}))
        await socket.wait_closed()

    async with websockets.serve(serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        options = argparse.Namespace(urls=[f"http://127.0.0.1:{port}"], keys=["k"], tokens=6, drop=drop, way="ws")
        client = Socket(0, options)
        await client.open()
        await client.ask()
        await asyncio.wait_for(client.hear(), 10)
    assert client.id == "g"
    if drop:
        assert "the frame of 5 to 6 came behind 3" in client.heard.problems
        assert "5 tokens came of 6" in client.heard.problems
    else:
        assert client.heard.problems == []
        assert client.heard.crc == crc_of(words(0, 1, 2, 3, 4, 5))


def test_the_fake_engine_tells_as_a_worker_does_and_a_step_is_one_pipeline(redis_url: str) -> None:
    client = redis.Redis.from_url(redis_url, protocol=2)
    client.flushall()
    engine = FakeEngine(redis_url, MODEL, capacity=8)
    engine.bus.start()
    try:
        while not client.zcard(protocol.WORKERS):
            engine.hear(0.02)
        for n in range(8):
            asked = Request(id=f"g{n}", tenant="t", model=MODEL, messages=[ChatMessage("user", "?")], salt="s")
            client.fcall(*protocol.enqueue(asked))
        late = threading.Event()
        timer = threading.Timer(20, late.set)
        timer.start()
        while len(engine.speakers) < 8 and not late.is_set():
            engine.hear(0.02)
        found = engine.speak(tokens=30, rate=50.0)
        while client.xlen(protocol.FINISHED) < 8:
            assert not late.wait(0.02), "the ends did not come"
        timer.cancel()
    finally:
        engine.bus.stop(2.0)
    assert found["steps"] == 29, "the last one is made of endings, and is not counted"
    # A heartbeat and a look for work come once a second.
    assert found["round trips"] <= found["steps"] + 2 * (found["seconds"] + 1)
    for n in range(8):
        entries: Any = client.xrange(protocol.generation_key(f"g{n}"))
        events = [protocol.decode_event(fields[b"event"]) for _, fields in entries]
        deltas = [event for event in events if isinstance(event, Delta)]
        assert isinstance(events[1], Started)
        assert isinstance(events[-1], Finished)
        assert [event.seq for event in deltas] == list(range(1, 31))
        assert all(len(event.parts[0].text) == WIDTH for event in deltas)
        assert crc_of("".join(event.parts[0].text for event in deltas)) == engine.ended[f"g{n}"]
    client.close()


# --- all of it ----------------------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_tiny_run_finds_all_that_was_said_and_the_one_frame_that_a_client_dropped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = tmp_path / "figures.json"
    arguments = ["--sockets", "6", "--seconds", "1", "--way", "ws", "--drop", "3", "--json", str(result)]
    assert transport.main(arguments) == 1
    assert "came behind" in capsys.readouterr().out
    (figures,) = json.loads(result.read_text()).values()
    assert figures["answers at fault"] == 1
    assert figures["tokens written"] == 6 * 20
    assert 6 * 20 - 20 < figures["tokens that came"] < 6 * 20
    assert 0 < figures["write to client p50, ms"] <= figures["write to client p99, ms"] < 10_000


@pytest.mark.long
@pytest.mark.timeout(300)
def test_the_customary_design_is_measured_the_same_way(tmp_path: Path) -> None:
    result = tmp_path / "figures.json"
    assert transport.main(["--sockets", "6", "--seconds", "1", "--way", "groups", "--json", str(result)]) == 0
    (figures,) = json.loads(result.read_text()).values()
    assert figures["tokens that came"] == figures["tokens written"] == 6 * 20
    assert figures["answers at fault"] == 0
