"""A real worker over a real engine and a real server: answers, Stop in every state, faults, lost tails."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from chatapp.errors import Overloaded
from chatapp.streaming import cancel, connection, finished, prompts, submit, workers
from chatapp.streaming.follow import follower
from engine import protocol
from engine.grammar_spec import GrammarSpec
from engine.llm_engine import LLMEngine
from engine.occupancy_wire import STATE, USED, Head, Table, decode_head
from engine.protocol import Cancelled, Delta, Failed, Finished, Refused, Started, SystemText, TimedOut
from engine.runner import Runner
from engine.sampling_params import SamplingParams
from tests.wire.conftest import (
    MODEL,
    InProcess,
    Wire,
    a_question,
    a_request,
    answer_of,
    settings_url,
    text_of,
    tokens_of,
    until,
)

pytestmark = pytest.mark.usefixtures("closing")
Serve: TypeAlias = Callable[..., InProcess]


async def first_tokens(generation_id: str, count: int = 5) -> None:
    """Return once so many tokens have been told."""
    async for event in follower().follow(generation_id):
        if event.seq >= count:
            return


def assert_contiguous(wire: Wire, generation_id: str) -> None:
    numbers = [event.seq for _, event in wire.log(generation_id) if not isinstance(event, protocol.Claimed)]
    assert numbers == list(range(len(numbers)))


async def test_16_answers_equal_those_of_the_engine_alone(wire: Wire, serve: Serve) -> None:
    served = serve()
    requests = [a_question(f"t{n % 4}", text=f"Question {n}: the quick brown fox?", tokens=20 + n) for n in range(16)]
    for request in requests:
        submit.enqueue(request)
    answers = await asyncio.gather(*(answer_of(request.id) for request in requests))
    assert served.stop() == 0
    for request, events in zip(requests, answers, strict=True):
        (alone,) = served.engine.generate([request.messages], request.params)
        assert tokens_of(events) == alone.token_ids
        assert text_of(events) == alone.text
        last = events[-1]
        assert isinstance(last, Finished)
        assert (last.finish_reason, last.seq) == ("length", len(alone.token_ids) + 1)
        assert last.usage is not None
        assert (last.usage.prompt_tokens, last.usage.completion_tokens) == (alone.prompt_tokens, len(alone.token_ids))
        assert last.timing is not None
        assert last.timing.decode_s > 0
        assert_contiguous(wire, request.id)


async def test_the_first_event_comes_within_tens_of_milliseconds_from_an_idle_worker(wire: Wire, serve: Serve) -> None:
    serve()
    await until(workers.live)
    delays = []
    for _ in range(12):
        request = a_question(tokens=1)
        started = time.monotonic()
        await asyncio.to_thread(submit.enqueue, request)
        await anext(follower().follow(request.id))
        delays.append(time.monotonic() - started)
        await asyncio.sleep(0.05)
    # Without the hint it would be half a second on average.
    assert sorted(delays)[6] < 0.1


async def test_a_step_of_16_answers_costs_about_one_round_trip(wire: Wire, serve: Serve) -> None:
    served = serve()
    requests = [a_question(tokens=100) for _ in range(16)]
    for request in requests:
        submit.enqueue(request)
    await asyncio.gather(*(answer_of(request.id) for request in requests))
    trips = served.worker.bus.round_trips
    assert trips <= served.engine.steps + 16 + 16 + 20, f"{trips} round trips in {served.engine.steps} steps"


# --- Stop, in every state (P3, C10) -------------------------------------------------------------------------------


async def test_stop_in_the_middle_of_an_answer_frees_its_blocks_and_leaves_the_others_alone(
    wire: Wire, serve: Serve
) -> None:
    """P3, C10."""
    served = serve(max_num_seqs=4)
    other, stopped = a_question(tokens=300, text="Go on."), a_question("u", tokens=4000)
    for request in (other, stopped):
        submit.enqueue(request)
    await first_tokens(stopped.id)
    assert cancel.cancel(stopped.id) == "cancelling"
    events = await asyncio.wait_for(answer_of(stopped.id), 10)
    last = events[-1]
    assert isinstance(last, Cancelled)
    assert last.usage is not None
    assert 5 <= last.usage.completion_tokens == len(tokens_of(events)) < 1000
    assert_contiguous(wire, stopped.id)
    assert cancel.cancel(stopped.id) == "cancelled", "a stopped answer stays stopped"
    assert isinstance((await answer_of(other.id))[-1], Finished)
    await until(lambda: not any(served.engine.pool.refs))
    assert "octavo:held:" + served.worker.id not in wire.key_names()


async def test_stop_while_queued_never_reaches_the_engine(wire: Wire, serve: Serve) -> None:
    """C10, P3."""
    served = serve(max_num_seqs=1, token_budget=64)
    running, waiting = a_question(tokens=4000), a_question(tokens=10)
    for request in (running, waiting):
        submit.enqueue(request)
    await first_tokens(running.id)
    assert workers.queue_position(waiting.id) == 1
    assert cancel.cancel(waiting.id) == "cancelled"
    assert [type(event) for event in await answer_of(waiting.id)] == [Cancelled]
    cancel.cancel(running.id)
    assert isinstance((await answer_of(running.id))[-1], Cancelled)
    assert served.engine.counters()["prompt_tokens"] < 200


async def test_stop_during_prefill_comes_before_the_first_token(wire: Wire, serve: Serve) -> None:
    """C10, P3."""
    served = serve(max_num_seqs=1, token_budget=1, num_blocks=512)
    request = a_question(text="the quick brown fox " * 300, tokens=50)
    submit.enqueue(request)
    events = follower().follow(request.id)
    first = await anext(events)
    assert isinstance(first, Started)
    assert cancel.cancel(request.id) == "cancelling"
    rest = [event async for event in events]
    assert [type(event) for event in rest] == [Cancelled]
    assert served.engine.steps < first.prompt_tokens
    await until(lambda: not any(served.engine.pool.refs))


async def test_stop_before_the_prompt_is_rendered_ends_it(wire: Wire, serve: Serve) -> None:
    served = serve()
    await until(workers.live)
    held = asyncio.Event()
    loop = asyncio.get_running_loop()
    # The one thread that renders is busy for a moment.
    served.worker._tokenizers.submit(time.sleep, 0.5).add_done_callback(lambda _: loop.call_soon_threadsafe(held.set))
    request = a_question(tokens=50)
    submit.enqueue(request)
    await until(lambda: wire.state(request.id) == "running")
    await asyncio.sleep(0.05)
    cancel.cancel(request.id)
    assert [type(event) for event in await answer_of(request.id)] == [Cancelled]
    assert not held.is_set(), "it did not wait for the prompt"
    await held.wait()
    await asyncio.sleep(0.1)
    assert served.engine.steps == 0


async def test_stop_reaches_the_worker_even_without_the_hint(wire: Wire, serve: Serve) -> None:
    serve()
    request = a_question(tokens=4000)
    submit.enqueue(request)
    await first_tokens(request.id)
    wire.redis.hset(protocol.request_key(request.id), "cancel", "1")
    assert isinstance((await asyncio.wait_for(answer_of(request.id), 5))[-1], Cancelled)


async def test_an_unrenewed_lease_ends_a_running_call(wire: Wire, serve: Serve) -> None:
    """C10: the process that carried the caller is gone."""
    serve()
    request = a_question(tokens=8000, leased=True)
    submit.enqueue(request)
    await first_tokens(request.id)
    wire.redis.hincrby(protocol.request_key(request.id), "lease_ms", -int(protocol.LEASE_S * 1000) - 1)
    assert isinstance((await asyncio.wait_for(answer_of(request.id), 5))[-1], Cancelled)


async def test_a_running_request_past_its_deadline_ends_as_timeout(wire: Wire, serve: Serve) -> None:
    serve()
    await until(workers.live)
    request = a_question(tokens=8000, deadline_ms=int(time.time() * 1000) + 800)
    submit.enqueue(request)
    events = await asyncio.wait_for(answer_of(request.id), 10)
    assert isinstance(events[-1], TimedOut)
    assert len(tokens_of(events)) > 10


# --- what cannot run ----------------------------------------------------------------------------------------------


async def test_a_prompt_longer_than_the_context_is_refused_with_both_numbers(wire: Wire, serve: Serve) -> None:
    served = serve(max_model_len=64)
    request = a_question(text="word " * 200)
    submit.enqueue(request)
    (event,) = await answer_of(request.id)
    assert isinstance(event, Refused)
    assert (event.code, event.param, event.retryable) == ("context_length_exceeded", "messages", False)
    prompt = len(served.engine.tokenizer.render_chat([], request.messages, "")[0])
    assert event.message is not None
    assert f"{prompt} tokens" in event.message
    assert "63" in event.message
    assert wire.service("t") == 0


async def test_the_bounds_that_a_request_brings_get_to_the_engine(wire: Wire, serve: Serve) -> None:
    serve()
    for bound in ({"max_prompt_tokens": 3}, {"kv_share": 1e-9}):
        request = a_question(text="Who are you? " * 30, **bound)
        submit.enqueue(request)
        event = (await answer_of(request.id))[-1]
        assert isinstance(event, Refused)
        assert event.code == "context_length_exceeded"
    request = a_question(tokens=3)
    submit.enqueue(request)
    assert isinstance((await answer_of(request.id))[-1], Finished)


async def test_a_request_that_cannot_be_read_is_refused_and_the_next_one_runs(wire: Wire, serve: Serve) -> None:
    serve()
    good, bad = a_question(), a_question()
    call = list(protocol.enqueue(bad))
    call[call.index(protocol.encode(bad))] = b'{"id": 7}'
    wire.call(tuple(call))
    submit.enqueue(good)
    (event,) = await answer_of(bad.id)
    assert isinstance(event, Refused)
    assert event.code == "invalid_request"
    assert isinstance((await answer_of(good.id))[-1], Finished)


async def test_an_answer_keeps_to_the_grammar_that_came_over_the_wire(wire: Wire, serve: Serve) -> None:
    serve()
    request = a_request(params=SamplingParams(grammar=GrammarSpec("choice", '["yes", "no, never"]')))
    submit.enqueue(request)
    events = await answer_of(request.id)
    assert text_of(events) in ("yes", "no, never")
    assert isinstance(events[-1], Finished)
    assert events[-1].finish_reason == "stop"


async def test_a_grammar_that_takes_for_ever_is_refused_and_meanwhile_other_prompts_are_not_kept_waiting(
    wire: Wire, serve: Serve
) -> None:
    serve()
    patterns = json.dumps({"type": "string", "allOf": [{"pattern": f"a{i}"} for i in range(48)]})
    hostile = a_request("hostile", params=SamplingParams(grammar=GrammarSpec("json_schema", patterns)))
    submit.enqueue(hostile)
    question = a_question(tokens=4)
    submit.enqueue(question)
    assert isinstance((await answer_of(question.id))[-1], Finished)
    assert not any(isinstance(event, Refused) for _, event in wire.log(hostile.id))
    (event,) = await answer_of(hostile.id)
    assert isinstance(event, Refused)
    assert (event.code, event.param, event.retryable) == ("invalid_grammar", "response_format", False)
    assert event.message is not None
    assert "too long" in event.message


# --- tenants ------------------------------------------------------------------------------------------------------


async def test_a_new_tenant_gets_in_although_another_fills_the_worker(wire: Wire, serve: Serve) -> None:
    """The wire's share of C16: the head of a tenant that runs nothing is taken without room."""
    serve(max_num_seqs=2, token_budget=64)
    crowd = [a_question("a", tokens=2000) for _ in range(6)]
    for request in crowd:
        submit.enqueue(request)
    await first_tokens(crowd[0].id)
    late = a_question("b", tokens=3)
    submit.enqueue(late)
    assert isinstance((await asyncio.wait_for(answer_of(late.id), 20))[-1], Finished)
    assert wire.state(crowd[-1].id) == "queued"
    for request in crowd:
        cancel.cancel(request.id)
    await until(lambda: all(wire.state(request.id) == "cancelled" for request in crowd))


async def test_a_published_prompt_is_pinned_and_shared_by_its_tenant_only(wire: Wire, serve: Serve) -> None:
    served = serve()
    system = [protocol.SystemText("You are a helpful assistant of the house. " * 6, "salt of a")]

    async def cached(tenant: str, salt: str, text: str) -> int:
        parts = [protocol.SystemText(system[0].text, salt)]
        request = a_question(tenant, text=text, tokens=4, system=parts, prompt_version="v1")
        submit.enqueue(request)
        started = (await answer_of(request.id))[0]
        assert isinstance(started, Started)
        return started.cached_tokens

    assert await cached("a", "salt of a", "one") == 0
    assert await cached("a", "salt of a", "two") > 30
    assert await cached("b", "salt of b", "one") == 0
    assert served.engine.pool.pinned()


async def test_a_prompt_is_computed_as_it_is_published_and_the_one_before_it_is_let_go(
    wire: Wire, serve: Serve
) -> None:
    served = serve()
    await until(workers.live)
    texts = {version: f"You are the {version} assistant of this house. " * 6 for version in ("first", "second")}
    pinned = []
    for version, text in texts.items():
        await asyncio.sleep(0.2)  # the worker hears of what is published from its start on
        prompts.announce(protocol.PublishedPrompt(tenant="a", version=version, system=[SystemText(text, "salt of a")]))
        await until(
            lambda version=version: served.worker.prompts.pinned == {"a": version} and not served.engine.has_work()
        )
        pinned.append(set(served.engine.pool.pinned()))
    assert pinned[0]
    assert not pinned[0] & pinned[1]
    system = [SystemText(texts["second"], "salt of a")]
    request = a_question("a", text="one", tokens=4, system=system, prompt_version="second")
    submit.enqueue(request)
    started = next(event for event in await answer_of(request.id) if isinstance(event, Started))
    assert started.cached_tokens > 30


async def test_a_prompt_that_cannot_be_read_or_fits_nowhere_harms_nobody(wire: Wire, serve: Serve) -> None:
    serve(num_blocks=8)
    await until(workers.live)
    await asyncio.sleep(0.2)
    connection.sync_redis().set(protocol.published_key("odd"), b"{no json")
    for version in ("odd", "gone"):
        connection.sync_redis().xadd(protocol.control_key(MODEL), {"kind": "published", "id": version})
    prompts.announce(protocol.PublishedPrompt(tenant="a", version="v", system=[SystemText("word " * 3000, "salt")]))
    request = a_question("a", tokens=4)
    submit.enqueue(request)
    assert isinstance((await answer_of(request.id))[-1], Finished)


# --- faults -------------------------------------------------------------------------------------------------------


class FaultyRunner:
    """The real runner until its n-th step, which fails as a device does."""

    def __init__(self, inner: Runner, fails_at: int) -> None:
        self._inner = inner
        self._left = fails_at

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def launch(self, batch: Any, behind: Any) -> Any:
        self._left -= 1
        if self._left < 0:
            raise RuntimeError("device-side assert")
        return self._inner.launch(batch, behind)


def faulty(config: Any) -> LLMEngine:
    from engine.tokenizer import Tokenizer

    return LLMEngine(config, runner=FaultyRunner(Runner.load(config), 40), tokenizer=Tokenizer.load(config.model))


async def test_a_failing_step_ends_every_stream_with_an_error_within_a_second(wire: Wire, serve: Serve) -> None:
    """C12."""
    served = serve(runner=faulty, max_num_seqs=4)
    requests = [a_question(tokens=200) for _ in range(6)]
    for request in requests:
        submit.enqueue(request)
    await until(lambda: served.engine.steps >= 30)
    started = time.monotonic()
    taken = [request for request in requests if wire.state(request.id) != "queued"]
    answers = await asyncio.wait_for(asyncio.gather(*(answer_of(request.id) for request in taken)), 10)
    assert len(taken) == 4
    assert time.monotonic() - started < 2
    for events in answers:
        last = events[-1]
        assert isinstance(last, Failed)
        assert (last.code, last.retryable) == ("engine_fault", True)
        assert last.message
        assert "device-side" not in last.message
    assert served.join() == 1, "the supervisor starts a new process"
    assert workers.live() == []
    waiting = [request for request in requests if request not in taken]
    assert [wire.state(request.id) for request in waiting] == ["queued", "queued"], "they wait for another worker"
    serve()
    answers = await asyncio.gather(*(answer_of(request.id) for request in waiting))
    assert all(isinstance(events[-1], Finished) for events in answers)


async def test_what_a_failing_step_was_not_for_goes_on_in_the_next_worker(wire: Wire, serve: Serve) -> None:
    """In a pool too small for all four, some wait, preempted, as the step fails."""
    served = serve(runner=faulty, max_num_seqs=4, num_blocks=7)
    requests = [a_question(f"t{n}", tokens=60) for n in range(4)]
    for request in requests:
        submit.enqueue(request)
    assert await asyncio.to_thread(served.join) == 1
    left = [request for request in requests if wire.state(request.id) == "running"]
    assert 0 < len(left) < 4
    assert all(wire.state(request.id) == "failed" for request in requests if request not in left)
    serve()
    for request in left:
        events = await asyncio.wait_for(answer_of(request.id), 20)
        assert isinstance(events[-1], Finished)
        assert len(tokens_of(events)) == 60
        assert_contiguous(wire, request.id)


class LostTail:
    """What a server knew of a generation at one moment, and knows again after it lost what came later."""

    def __init__(self, wire: Wire, generation_id: str, worker: str) -> None:
        self._redis = wire.redis
        self._keys = [protocol.generation_key(generation_id), protocol.request_key(generation_id)]
        self._keys += [protocol.requests_key(MODEL, "t"), protocol.held_key(worker)]
        pipe = self._redis.pipeline()
        for key in self._keys:
            pipe.dump(key)
        self._dumps = pipe.execute()

    def come_back(self) -> None:
        pipe = self._redis.pipeline()
        for key, dump in zip(self._keys, self._dumps, strict=True):
            pipe.restore(key, 0, dump, replace=True)
        pipe.execute()


async def test_what_redis_lost_of_a_log_is_said_again(wire: Wire, serve: Serve) -> None:
    """Redis comes back without its last second while its worker lives: no hole, no repetition."""
    served = serve()
    request = a_question(tokens=1000)
    submit.enqueue(request)
    await first_tokens(request.id, 5)
    tail = LostTail(wire, request.id, served.worker.id)
    await first_tokens(request.id, 60)
    tail.come_back()
    events = await answer_of(request.id)
    assert isinstance(events[-1], Finished)
    assert_contiguous(wire, request.id)
    assert served.stop() == 0
    (alone,) = served.engine.generate([request.messages], request.params)
    assert text_of(events) == alone.text


async def test_an_end_that_redis_lost_is_said_again(wire: Wire, serve: Serve) -> None:
    served = serve()
    request = a_question(tokens=200)
    submit.enqueue(request)
    await first_tokens(request.id, 5)
    tail = LostTail(wire, request.id, served.worker.id)
    before = await answer_of(request.id)
    tail.come_back()
    await until(lambda: wire.state(request.id) == "finished", 5)
    assert await answer_of(request.id) == before
    assert protocol.held_key(served.worker.id) not in wire.key_names()


async def test_a_take_whose_reply_was_lost_is_run_all_the_same(wire: Wire, serve: Serve) -> None:
    served = serve(max_num_seqs=1, token_budget=64)
    await until(workers.live)
    request = a_request()
    # In one transaction, so that the worker's own Take comes too late.
    pipe = wire.redis.pipeline()
    question = a_question(id=request.id)
    pipe.fcall(*protocol.enqueue(question))
    pipe.fcall(*protocol.take(served.worker.id, MODEL, 1, ()))
    pipe.execute()
    events = await asyncio.wait_for(answer_of(request.id), 10)
    assert isinstance(events[-1], Finished)
    assert wire.kinds(request.id)[:2] == ["1-0 claimed", "2-0 claimed"]


async def test_a_generation_that_was_ended_from_outside_is_dropped(wire: Wire, serve: Serve) -> None:
    served = serve()
    request = a_question(tokens=8000)
    submit.enqueue(request)
    await first_tokens(request.id)
    assert finished.end(request.id, protocol.Interrupted(code="c", message="m")) == "interrupted"
    await until(lambda: not any(served.engine.pool.refs), 5)
    assert isinstance((await answer_of(request.id))[-1], protocol.Interrupted)
    assert_contiguous(wire, request.id)


async def test_unacknowledged_events_survive_lost_connections(wire: Wire, serve: Serve) -> None:
    served = serve()
    request = a_question(tokens=1500)
    submit.enqueue(request)
    reading = asyncio.create_task(answer_of(request.id))
    while not reading.done():
        wire.redis.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        await asyncio.sleep(0.25)
    events = await reading
    assert isinstance(events[-1], Finished)
    assert_contiguous(wire, request.id)
    served.stop()
    (alone,) = served.engine.generate([request.messages], request.params)
    assert text_of(events) == alone.text


async def test_an_answer_outlasts_a_redis_without_memory(wire: Wire, serve: Serve) -> None:
    """Nothing new gets in, the worker stays alive, and once there is memory again the answer is whole, also for
    those who began to read when nothing could be written."""
    served = serve()
    request, waiting = a_question(tokens=1500), a_question("u", tokens=1500)
    for one in (request, waiting):
        submit.enqueue(one)
        await first_tokens(one.id)
    wire.redis.config_set("maxmemory", "100kb")
    await asyncio.sleep(0.25)  # a look at the memory counts for 0.2 s
    try:
        with pytest.raises(Overloaded):
            submit.enqueue(a_question())
        reading = [asyncio.create_task(answer_of(request.id))]
        await asyncio.sleep(0.3)
        reading.append(asyncio.create_task(answer_of(waiting.id)))  # its reader cannot be woken up
        for _ in range(42):
            await asyncio.sleep(0.1)
            assert workers.live()
        assert wire.state(request.id) == "running"
    finally:
        wire.redis.config_set("maxmemory", "0")
    events, others = await asyncio.wait_for(asyncio.gather(*reading), 20)
    assert isinstance(events[-1], Finished)
    assert isinstance(others[-1], Finished)
    assert_contiguous(wire, request.id)
    served.stop()
    (alone,) = served.engine.generate([request.messages], request.params)
    assert text_of(events) == alone.text


async def test_an_answer_outlasts_a_redis_that_writes_nothing(
    wire: Wire, serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    """As where its disk is full (MISCONF), which is said in the same way as that too few replicas are there."""
    served = serve()
    request, waiting = a_question(tokens=1500), a_question("u", tokens=1500)
    for one in (request, waiting):
        submit.enqueue(one)
        await first_tokens(one.id)
    wire.redis.config_set("min-replicas-to-write", "1")
    try:
        reading = [asyncio.create_task(answer_of(request.id))]
        await asyncio.sleep(0.3)
        reading.append(asyncio.create_task(answer_of(waiting.id)))  # its reader cannot be woken up
        await asyncio.sleep(2.5)
        assert served.status is None, "the worker has ended"
    finally:
        wire.redis.config_set("min-replicas-to-write", "0")
    for events in await asyncio.wait_for(asyncio.gather(*reading), 30):
        assert isinstance(events[-1], Finished)
    assert_contiguous(wire, request.id)
    assert not [record for record in caplog.records if record.name == "asyncio"], "a task failed, unseen"


# --- stopping, looking --------------------------------------------------------------------------------------------


async def test_a_stopped_worker_finishes_what_runs_and_takes_nothing_new(wire: Wire, serve: Serve) -> None:
    served = serve(grace_s=20, max_num_seqs=1, token_budget=64)
    running, waiting = a_question(tokens=300), a_question()
    for request in (running, waiting):
        submit.enqueue(request)
    await first_tokens(running.id)
    served.worker.stop()
    assert isinstance((await answer_of(running.id))[-1], Finished)
    assert await asyncio.to_thread(served.join) == 0
    assert wire.state(waiting.id) == "queued"
    assert workers.live() == []


async def test_after_the_grace_what_still_runs_is_left_to_the_next_worker(wire: Wire, serve: Serve) -> None:
    """At once: whoever stops in order is not waited for as if it were dead."""
    served = serve(grace_s=0.3)
    request = a_question(tokens=1000)
    submit.enqueue(request)
    await first_tokens(request.id)
    served.worker.stop()
    assert await asyncio.to_thread(served.join) == 0
    assert wire.state(request.id) == "running"
    left = [kind for kind in wire.kinds(request.id) if not kind.endswith("claimed")]
    assert len(left) < 1000, "it was in the middle of it"
    began = time.monotonic()
    serve()
    await until(lambda: len(wire.log(request.id)) > len(left) + 2)
    assert time.monotonic() - began < protocol.STALE_AFTER_S + 5
    events = await answer_of(request.id)
    assert isinstance(events[-1], Finished)
    assert len(tokens_of(events)) == 1000
    assert_contiguous(wire, request.id)
    assert [kind for kind in wire.kinds(request.id) if "claimed" in kind] == ["1-0 claimed", "2-0 claimed"]


async def test_the_block_table_is_shown_while_it_changes_and_when_all_is_done(wire: Wire, serve: Serve) -> None:
    served = serve()
    request = a_question("tenant-x", tokens=1500)
    submit.enqueue(request)
    await first_tokens(request.id)
    key = protocol.occupancy_key(served.worker.id)

    def frames() -> list[Head]:
        return [decode_head(fields[b"head"]) for _, fields in wire.redis.xrange(key)]

    await until(lambda: len(frames()) > 2 and not frames()[-1].figures.running)
    table = Table()
    busy = 0
    for _, fields in wire.redis.xrange(key):
        table.apply(decode_head(fields[b"head"]), fields[b"cells"])
        used = [block for block, a in enumerate(table.columns[0]) if a & STATE == USED]
        assert {block for row in table.rows.values() for block in row.blocks} == set(used)
        assert {table.tenants[(table.columns[1][block] & 0xFFFF) - 1] for block in used} <= {"tenant-x"}
        assert [row.id for row in table.rows.values()] in ([], [request.id])
        busy += bool(table.rows)
    assert busy > 1
    assert not table.rows, "the last one shows that all is free"
    assert len(table.columns[0]) == served.engine.num_blocks
    heads = frames()
    assert [(head.number, head.base) for head in heads] == [(n, n - 1) for n in range(1, len(heads) + 1)]
    intervals = [b.at_ms - a.at_ms for a, b in pairwise(heads[:-1])]
    assert all(interval >= 190 for interval in intervals[1:]), intervals


async def test_live_says_what_a_worker_serves_and_when_it_stalls(wire: Wire, serve: Serve) -> None:
    served = serve()
    (details,) = await until(workers.live)
    assert (details.id, details.model, details.healthy) == (served.worker.id, MODEL, True)
    assert (details.context, details.num_blocks, details.block_size) == (served.engine.context, 1024, 16)
    assert workers.live("another") == []
    wire.beat("w9")
    wire.redis.sadd(protocol.held_key("w9"), "g")
    wire.redis.hset(protocol.worker_key("w9"), "stepped_ms", 1)
    assert {w.id: w.healthy for w in workers.live()} == {served.worker.id: True, "w9": False}


async def test_nothing_is_left_in_redis_once_all_is_recorded(wire: Wire, serve: Serve) -> None:
    served = serve()
    await until(workers.live)
    requests = [a_question(f"t{n % 3}", tokens=5 + n) for n in range(8)]
    for request in requests:
        submit.enqueue(request)
    cancel.cancel(requests[3].id)
    cancel.cancel("never enqueued")
    await asyncio.gather(*(answer_of(request.id) for request in requests))
    entries = [entry for _ in range(9) for entry in finished.read("r", block_s=0.05)]
    assert {entry.generation_id for entry in entries} == {*(request.id for request in requests), "never enqueued"}
    for entry in entries:
        assert finished.known(entry.generation_id)
        assert isinstance(finished.read_log(entry.generation_id)[-1], protocol.Terminal)
        finished.ack(entry, ttl_s=1)
    assert served.stop() == 0
    await asyncio.sleep(1.3)
    kept = {key for key in wire.key_names() if ":wake:" not in key}
    history = {protocol.occupancy_key(served.worker.id), protocol.line_key(served.worker.id)}
    # Streams and sums of all, which server this is and which build of the functions it has; nothing of any request.
    stays = {protocol.FINISHED, protocol.SERVER, protocol.LIBRARY_KEY}
    assert kept - history == stays | {protocol.control_key(MODEL), protocol.service_key(MODEL)}
    assert all(3500 < wire.redis.ttl(key) <= 3600 for key in history & kept), "it goes by itself"


async def test_a_recorder_that_died_leaves_its_entries_to_the_next(wire: Wire) -> None:
    for _ in range(3):
        wire.cancel(a_request().id)
    got = finished.read("r1", count=2, block_s=0.05)
    assert len(got) == 2
    assert finished.takeover("r2", idle_s=60) == []
    assert finished.takeover("r2", idle_s=0) == got
    assert finished.deliveries(got[0]) == 2
    finished.set_aside(got[0], "it cannot be recorded")
    finished.ack(got[1])
    assert len(finished.read("r2", block_s=0.05)) == 1
    assert finished.takeover("r3", idle_s=0) != []
    aside: Any = wire.redis.xrange(finished.ASIDE)
    assert [fields[b"id"].decode() for _, fields in aside] == [got[0].generation_id]


async def test_a_full_queue_is_told_to_the_caller(wire: Wire) -> None:
    assert [submit.enqueue(a_request(), max_queued=2) for _ in range(2)] == [1, 2]
    with pytest.raises(submit.QueueFull, match="2 requests of this tenant are waiting") as full:
        submit.enqueue(a_request(), max_queued=2)
    assert full.value.retry_after_s > 0


async def test_the_library_comes_back_by_itself(wire: Wire, serve: Serve) -> None:
    serve()
    await until(workers.live)
    wire.redis.function_flush()
    request = a_question()
    submit.enqueue(request)
    wire.redis.function_flush()
    assert isinstance((await asyncio.wait_for(answer_of(request.id), 10))[-1], Finished)
    assert settings_url().startswith("unix://")
    assert [type(e) for e in await answer_of(request.id)].count(Delta) == 24


async def test_a_restarted_worker_answers_a_published_prompt_from_the_disk(
    wire: Wire, serve: Serve, tmp_path: Path
) -> None:
    """Its first request has the prompt's tokens cached, and the same answer."""
    system = [
        SystemText("You answer for a shop that sells tents, boots and stoves. Be brief. " * 4, "the shop's secret")
    ]
    answers, started = [], []
    for _ in range(2):
        served = serve(prompt_store=str(tmp_path / "prompts"))
        request = a_question("shop", system=system, prompt_version="v1")
        submit.enqueue(request)
        events = await answer_of(request.id)
        answers.append(tokens_of(events))
        started.append(next(event for event in events if isinstance(event, Started)))
        assert served.worker.prompts.pinned == {"shop": "v1"}
        assert await asyncio.to_thread(served.stop) == 0
        served.engine.prompts.store.flush()
    assert answers[0] == answers[1]
    assert started[0].cached_tokens == 0
    assert started[1].cached_tokens > started[1].prompt_tokens // 2


# --- answers that go on -------------------------------------------------------------------------------------------

GREEDY = SamplingParams(max_tokens=24, temperature=0.0, ignore_eos=True)


async def test_an_answer_goes_on_right_where_it_was_out_of_the_cache(wire: Wire, serve: Serve) -> None:
    served = serve()
    system = [SystemText("You answer for Acme, briefly and kindly, whatever is asked. " * 3, "acme")]
    question = protocol.ChatMessage("user", "Tell me of the quick brown fox.")
    first = a_request(messages=[question], system=system, params=GREEDY)
    submit.enqueue(first)
    said = await answer_of(first.id)
    so_far = protocol.ChatMessage("assistant", text_of(said))
    second = a_request(messages=[question, so_far], system=system, params=GREEDY, continues=True)
    submit.enqueue(second)
    rest = await answer_of(second.id)
    assert served.stop() == 0
    tokenizer = served.engine.tokenizer
    asked, regions = tokenizer.render_chat(system, [question], "s")
    prompt = [*asked, *tokenizer.encode(so_far.content)]
    started, ended = rest[0], rest[-1]
    assert isinstance(started, Started)
    assert started.prompt_tokens == len(prompt)
    assert started.cached_tokens >= len(asked) - 1, "nothing of the question is computed anew"
    assert started.shared_tokens == regions[0].end, "the team's instructions are the shared part"
    assert isinstance(ended, Finished)
    assert ended.usage is not None
    assert ended.usage.shared_tokens == regions[0].end
    (alone,) = served.engine.generate([prompt], GREEDY)
    assert tokens_of(rest) == alone.token_ids


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": [protocol.ChatMessage("user", "Hello")]}, "messages"),
        ({"messages": [protocol.ChatMessage("user", "Hello"), protocol.ChatMessage("assistant")]}, "messages"),
        ({"params": SamplingParams(grammar=GrammarSpec("json_object"))}, "response_format"),
    ],
    ids=["no answer", "an answer without text", "a form"],
)
async def test_what_cannot_go_on_is_refused_in_words(
    fields: dict[str, Any], param: str, wire: Wire, serve: Serve
) -> None:
    serve()
    messages = [protocol.ChatMessage("user", "Hello"), protocol.ChatMessage("assistant", "Hello, ")]
    request = a_request(**{"messages": messages, **fields}, continues=True)
    submit.enqueue(request)
    event = (await answer_of(request.id))[-1]
    assert isinstance(event, Refused)
    assert (event.code, event.param) == ("invalid_request", param)
    assert event.message
