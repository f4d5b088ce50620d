"""Each function of the library alone, in every state of a generation, on a real server."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Any

import pytest
import redis

from engine import protocol
from engine.protocol import Cancelled, Failed, Finished, Interrupted, Refused, Started, Taken, TimedOut, Told
from tests.wire.conftest import MODEL, Wire, a_request, delta

STARTED = Started(seq=0, prompt_tokens=5, cached_tokens=2)


# --- the states, and how a generation gets there ------------------------------------------------------------------


def unknown(wire: Wire) -> str:
    return "nobody"


def queued(wire: Wire) -> str:
    wire.enqueue(request := a_request())
    return request.id


def taken(wire: Wire) -> str:
    return wire.running()


def started(wire: Wire) -> str:
    generation = wire.running()
    assert wire.tell(generation, STARTED) == Told("ok")
    assert wire.tell(generation, delta(1)) == Told("ok")
    return generation


def cancelling(wire: Wire) -> str:
    generation = started(wire)
    assert wire.cancel(generation) == "cancelling"
    return generation


def orphaned(wire: Wire) -> str:
    generation = started(wire)
    wire.silence("w1")
    return generation


def finished(wire: Wire) -> str:
    generation = started(wire)
    assert wire.finish(generation, Finished(seq=2, finish_reason="stop")) == Told("ok")
    return generation


def cancelled(wire: Wire) -> str:
    generation = queued(wire)
    assert wire.cancel(generation) == "cancelled"
    return generation


State = Callable[[Wire], str]
ENDED = [finished, cancelled]
ALL = [unknown, queued, taken, started, cancelling, orphaned, *ENDED]


def table(*rows: tuple[State, Any]) -> Any:
    return pytest.mark.parametrize(("state", "expected"), rows, ids=[row[0].__name__ for row in rows])


# --- what each call does in each state ----------------------------------------------------------------------------


@table(
    (unknown, "ok"),
    (queued, "known"),
    (taken, "known"),
    (started, "known"),
    (cancelling, "known"),
    (orphaned, "known"),
    (finished, "known"),
    (cancelled, "known"),
)
def test_enqueue_queues_only_what_is_unknown(wire: Wire, state: State, expected: str) -> None:
    generation = state(wire)
    before = wire.state(generation), wire.kinds(generation)
    assert wire.enqueue(a_request(id=generation)).outcome == expected
    if expected == "known":
        assert (wire.state(generation), wire.kinds(generation)) == before
    else:
        assert wire.state(generation) == "queued"


@table(
    (unknown, "stale"),
    (queued, "stale"),
    (taken, "behind -1"),
    (started, "ok"),
    (cancelling, "cancelled"),
    (orphaned, "ok"),
    (finished, "stale"),
    (cancelled, "stale"),
)
def test_tell_logs_the_next_event_of_the_owner_only(wire: Wire, state: State, expected: str) -> None:
    generation = state(wire)
    before = wire.kinds(generation)
    told = wire.tell(generation, delta(2))
    assert f"{told.outcome} {told.last}" == (expected if " " in expected else f"{expected} -1")
    logged = ["1-3 delta"] if expected in ("ok", "cancelled") else []
    assert wire.kinds(generation) == before + logged


@table(
    (unknown, "stale"),
    (queued, "stale"),
    (taken, "behind"),
    (started, "ok"),
    (cancelling, "ok"),
    (orphaned, "ok"),
    (finished, "ok"),  # said again
    (cancelled, "stale"),
)
def test_finish_ends_what_the_owner_runs(wire: Wire, state: State, expected: str) -> None:
    generation = state(wire)
    before = wire.kinds(generation)
    assert wire.finish(generation, Finished(seq=2)).outcome == expected
    if expected == "ok":
        assert wire.kinds(generation) == ["1-0 claimed", "1-1 started", "1-2 delta", "1-3 finished"]
        assert wire.finished() == [(generation, "finished")]
        assert f"octavo:requests:{MODEL}:t" not in wire.key_names()
        assert "octavo:held:w1" not in wire.key_names()
    else:
        assert wire.kinds(generation) == before


@table(
    (unknown, "cancelled"),
    (queued, "cancelled"),
    (taken, "cancelling"),
    (started, "cancelling"),
    (cancelling, "cancelling"),
    (orphaned, "cancelled"),
    (finished, "finished"),
    (cancelled, "cancelled"),
)
def test_cancel_ends_it_or_tells_its_owner(wire: Wire, state: State, expected: str) -> None:
    generation = state(wire)
    assert wire.cancel(generation) == expected
    assert wire.state(generation) == ("running" if expected == "cancelling" else expected)
    if expected == "cancelling":
        assert wire.beat() == {generation: "cancelled"}
    else:
        assert wire.finished() == [(generation, expected)]
        assert not {f"octavo:requests:{MODEL}:t", f"octavo:backlog:{MODEL}", "octavo:held:w1"} & wire.key_names()


@pytest.mark.parametrize(
    ("state", "log"),
    [
        (unknown, ["1-1 cancelled"]),
        (queued, ["1-1 cancelled"]),
        (orphaned, ["1-0 claimed", "1-1 started", "1-2 delta", "2-3 cancelled"]),
    ],
)
def test_a_cancelled_log_ends_with_the_next_number_of_the_next_attempt(
    wire: Wire, state: State, log: list[str]
) -> None:
    generation = state(wire)
    wire.cancel(generation)
    assert wire.kinds(generation) == log
    assert wire.log(generation)[-1][1].seq == int(log[-1].split()[0].split("-")[1]) - 1


@table(
    (unknown, "gone"),
    (queued, "gone"),
    (taken, "owned"),
    (started, "owned"),
    (cancelling, "owned"),
    (orphaned, "taken"),
    (finished, "gone"),
    (cancelled, "gone"),
)
def test_claim_takes_over_from_the_dead_only(wire: Wire, state: State, expected: str) -> None:
    generation = state(wire)
    wire.beat("w2")
    claimed = wire.claim(generation)
    if expected != "taken":
        assert claimed == expected
        return
    assert isinstance(claimed, Taken)
    assert (claimed.id, claimed.attempt, claimed.seq) == (generation, 2, 1)
    assert protocol.decode_request(claimed.payload).id == generation
    assert wire.kinds(generation)[-1] == "2-0 claimed"
    assert wire.beat("w2") == {generation: "run"}
    assert wire.beat("w1") == {}


@table(
    (unknown, "unknown"),
    (queued, "timeout"),
    (taken, "timeout"),
    (started, "timeout"),
    (cancelling, "timeout"),
    (orphaned, "timeout"),
    (finished, "finished"),
    (cancelled, "cancelled"),
)
def test_end_ends_whatever_has_not_ended(wire: Wire, state: State, expected: str) -> None:
    generation = state(wire)
    event = TimedOut(code="deadline", message="Too late.", retryable=True)
    assert wire.call(protocol.end(generation, event)).decode() == expected
    if expected == "timeout":
        *_, (_, last) = log = wire.log(generation)
        assert isinstance(last, TimedOut)
        assert (last.code, last.message, last.retryable) == ("deadline", "Too late.", True)
        assert last.seq == max((e.seq for _, e in log[:-1]), default=-1) + 1
        assert wire.tell(generation, delta(2)).outcome == "stale"
        assert wire.beat() == {}


@table(
    (unknown, "unknown"),
    (queued, "queued"),
    (taken, "running"),
    (started, "running"),
    (cancelling, "running"),
    (orphaned, "running"),
    (finished, "finished"),
    (cancelled, "cancelled"),
)
def test_renew_answers_with_the_state(wire: Wire, state: State, expected: str) -> None:
    generation = state(wire)
    assert wire.call(protocol.renew(generation)).decode() == expected
    assert wire.state(generation) == ("" if expected == "unknown" else expected)


# --- enqueue ------------------------------------------------------------------------------------------------------


def test_a_request_that_was_cancelled_before_it_came_is_never_run(wire: Wire) -> None:
    wire.cancel("g")
    assert wire.enqueue(a_request(id="g")) == protocol.Enqueued("known", "cancelled", 0)
    wire.beat()
    assert wire.take() is None


def test_a_full_queue_says_so_and_queues_nothing(wire: Wire) -> None:
    for position in (1, 2, 3):
        assert wire.enqueue(a_request(), max_queued=3) == protocol.Enqueued("ok", "queued", position)
    request = a_request()
    assert wire.enqueue(request, max_queued=3) == protocol.Enqueued("full", "queued", 3)
    assert wire.state(request.id) == ""
    assert wire.enqueue(a_request("u"), max_queued=3).outcome == "ok", "another tenant has its own queue"
    wire.beat()
    wire.take()
    assert wire.enqueue(request, max_queued=3).outcome == "ok", "what runs does not wait"


def test_the_bytes_that_wait_are_bounded_too_and_come_back(wire: Wire) -> None:
    request = a_request()
    size = len(protocol.encode(request))
    assert wire.enqueue(request, max_bytes=size).outcome == "ok"
    assert wire.enqueue(a_request(), max_bytes=size).outcome == "full"
    wire.cancel(request.id)
    assert f"octavo:queued_bytes:{MODEL}" not in wire.key_names()
    assert wire.enqueue(a_request(), max_bytes=size + 9).outcome == "ok"


def test_the_place_in_the_queue_counts_what_waits_before_it(wire: Wire) -> None:
    ids = [queued(wire) for _ in range(4)]
    wire.beat()
    wire.take()
    wire.cancel(ids[1])
    assert [wire.call(protocol.place(i)) for i in ids] == [0, 0, 1, 2]


def test_workers_are_hinted_when_a_tenant_begins_to_wait(wire: Wire) -> None:
    for _ in range(3):
        queued(wire)
    hints: Any = wire.redis.xrange(protocol.control_key(MODEL))
    assert [fields for _, fields in hints] == [{b"kind": b"enqueued"}]


# --- take ---------------------------------------------------------------------------------------------------------


def test_take_hands_over_the_whole_request_with_owner_attempt_and_log(wire: Wire) -> None:
    request = a_request()
    wire.enqueue(request)
    wire.beat()
    got = wire.take()
    assert protocol.decode_request(got.payload) == request
    assert (got.id, got.attempt, got.seq) == (request.id, 1, -1)
    assert abs(got.now_ms - time.time() * 1000) < 5000
    ((entry_id, claimed),) = wire.log(request.id)
    assert entry_id == "1-0"
    assert claimed == protocol.Claimed(worker="w1", attempt=1)
    assert wire.beat() == {request.id: "run"}
    assert wire.take() is None


def test_take_serves_the_tenant_with_the_least_service_first(wire: Wire) -> None:
    wire.beat()
    for _ in range(12):
        wire.enqueue(a_request("a"))
    for _ in range(4):
        wire.enqueue(a_request("b"))
    order = []
    for _ in range(8):
        got = wire.take()
        tenant = protocol.decode_request(got.payload).tenant
        order.append(tenant)
        # b's prompts turn out to be three times as long
        wire.tell(got.id, Started(seq=0, prompt_tokens=300 if tenant == "b" else 100, cached_tokens=0))
        wire.finish(got.id, Finished(seq=1))
    assert sorted(order[:2]) == ["a", "b"]
    assert order.count("b") == 2
    assert abs(wire.service("a") - wire.service("b")) <= 300


def test_service_between_two_tenants_stays_within_a_bound_over_many_turns(wire: Wire) -> None:
    wire.beat()
    for _ in range(60):
        for tenant in "ab":
            wire.enqueue(a_request(tenant))
    gaps = []
    for turn in range(100):
        got = wire.take()
        tenant = protocol.decode_request(got.payload).tenant
        wire.tell(got.id, Started(seq=0, prompt_tokens=40 + 7 * (turn % 5), cached_tokens=0))
        wire.finish(got.id, Finished(seq=1))
        gaps.append(abs(wire.service("a") - wire.service("b")))
    assert max(gaps) <= 68
    assert max(gaps[50:]) <= max(gaps[:50]) + 1, "it does not grow with time"


def test_a_heavier_tenant_gets_its_multiple(wire: Wire) -> None:
    wire.beat()
    for _ in range(40):
        wire.enqueue(a_request("a", weight=3.0))
        wire.enqueue(a_request("b"))
    served = {"a": 0, "b": 0}
    for _ in range(32):
        got = wire.take()
        served[protocol.decode_request(got.payload).tenant] += 1
        wire.tell(got.id, Started(seq=0, prompt_tokens=30, cached_tokens=0))
        wire.finish(got.id, Finished(seq=1))
    assert 22 <= served["a"] <= 26


def test_a_tenant_that_was_idle_does_not_get_back_what_it_missed(wire: Wire) -> None:
    def serve_next() -> str:
        got = wire.take()
        wire.tell(got.id, Started(seq=0, prompt_tokens=1000, cached_tokens=0))
        wire.finish(got.id, Finished(seq=1))
        return protocol.decode_request(got.payload).tenant

    wire.beat()
    for _ in range(20):
        wire.enqueue(a_request("a"))
    assert [serve_next() for _ in range(10)] == ["a"] * 10
    for _ in range(10):
        wire.enqueue(a_request("b"))
    order = [serve_next() for _ in range(10)]
    assert 4 <= order.count("a") <= 6, order


def test_the_estimate_is_charged_at_take_and_corrected_at_started(wire: Wire) -> None:
    request = a_request(messages=[protocol.ChatMessage("user", "x" * 400)])
    wire.enqueue(request)
    wire.beat()
    wire.take()
    assert wire.service("t") == protocol.estimated_tokens(request) == 101
    wire.tell(request.id, Started(seq=0, prompt_tokens=90, cached_tokens=60))
    assert wire.service("t") == 30
    wire.tell(request.id, delta(1))
    wire.tell(request.id, delta(1))
    assert wire.service("t") == 31, "saying it again costs nothing"


def test_what_is_refused_before_it_started_costs_nothing(wire: Wire) -> None:
    generation = taken(wire)
    assert wire.service("t") > 0
    assert wire.finish(generation, Refused(seq=0, code="context_length_exceeded", message="too long")).outcome == "ok"
    assert wire.service("t") == 0


def test_without_room_only_a_tenant_that_is_not_served_here_gets_in(wire: Wire) -> None:
    wire.beat()
    wire.enqueue(a_request("a"))
    wire.enqueue(a_request("b"))
    assert wire.take(room=0, running=("a", "b")) is None
    assert protocol.decode_request(wire.take(room=0, running=("a",)).payload).tenant == "b"
    assert wire.take(room=0, running=("a", "b")) is None


def test_a_warm_tenant_goes_first_for_200_ms_at_most(wire: Wire) -> None:
    wire.beat()
    wire.redis.hset(protocol.service_key(MODEL), "warm", 50)
    cold = [a_request("cold") for _ in range(2)]
    for request in cold:
        wire.enqueue(request)
    for _ in range(3):
        wire.enqueue(a_request("warm"))
    assert protocol.decode_request(wire.take(warm=("warm",)).payload).tenant == "warm"
    time.sleep(0.25)
    assert wire.take(warm=("warm",)).id == cold[0].id


def test_a_cold_tenant_does_not_wait_when_nobody_is_warm(wire: Wire) -> None:
    wire.beat()
    wire.enqueue(request := a_request("cold"))
    assert wire.take(warm=("warm",)).id == request.id


def test_expired_and_abandoned_heads_end_on_the_way(wire: Wire) -> None:
    wire.beat()
    late = a_request(deadline_ms=int(time.time() * 1000) - 1)
    left = a_request(leased=True)
    live = a_request(leased=True, deadline_ms=int(time.time() * 1000) + 60_000)
    for request in (late, left, live):
        wire.enqueue(request)
    wire.redis.hincrby(protocol.request_key(left.id), "lease_ms", -int(protocol.LEASE_S * 1000) - 1)
    assert wire.take().id == live.id
    assert wire.finished() == [(late.id, "timeout"), (left.id, "cancelled")]
    assert wire.kinds(late.id) == ["1-1 timeout"]
    assert wire.kinds(left.id) == ["1-1 cancelled"]


def test_a_queue_of_expired_requests_leaves_nothing_behind(wire: Wire) -> None:
    wire.beat()
    for _ in range(3):
        wire.enqueue(a_request(deadline_ms=1))
    assert wire.take() is None
    assert (
        not {f"octavo:requests:{MODEL}:t", f"octavo:backlog:{MODEL}", f"octavo:queued_bytes:{MODEL}"} & wire.key_names()
    )


# --- tell, finish -------------------------------------------------------------------------------------------------


def test_several_events_of_several_generations_go_in_one_call(wire: Wire) -> None:
    one, two, gone = wire.running("a"), wire.running("b"), wire.running("c")
    wire.call(protocol.end(gone, Interrupted()))
    tells = [protocol.Tell(i, 1, event, 1) for i in (one, gone, two) for event in (STARTED, delta(1), delta(2))]
    replies = protocol.parse_told(wire.call(protocol.tell("w1", tells)))
    assert [r.outcome for r in replies] == ["ok"] * 3 + ["stale"] * 3 + ["ok"] * 3
    assert [e.seq for _, e in wire.log(one)] == [e.seq for _, e in wire.log(two)] == [-1, 0, 1, 2]


def test_saying_an_event_again_logs_it_once(wire: Wire) -> None:
    generation = started(wire)
    for _ in range(2):
        assert wire.tell(generation, STARTED) == Told("ok")
        assert wire.tell(generation, delta(2)) == Told("ok")
    assert wire.kinds(generation) == ["1-0 claimed", "1-1 started", "1-2 delta", "1-3 delta"]


def test_a_gap_is_refused_with_the_last_number_that_is_there(wire: Wire) -> None:
    generation = started(wire)
    assert wire.tell(generation, delta(5)) == Told("behind", 1)
    assert wire.finish(generation, Finished(seq=9)) == Told("behind", 1)


def test_an_ending_cannot_overwrite_what_was_said(wire: Wire) -> None:
    generation = started(wire)
    with pytest.raises(redis.exceptions.ResponseError, match="behind its log"):
        wire.finish(generation, Finished(seq=1))
    assert wire.state(generation) == "running"


@pytest.mark.parametrize(
    "event",
    [
        Finished(seq=2, finish_reason="length", usage=protocol.Usage(prompt_tokens=5), timing=protocol.Timing()),
        Refused(seq=2, code="c", param="messages", message="Überlang"),
        Cancelled(seq=2),
        TimedOut(seq=2),
        Interrupted(seq=2),
        Failed(seq=2, code="engine_died", message="m", retryable=True),
    ],
)
def test_every_terminal_event_arrives_as_it_was_said(wire: Wire, event: Any) -> None:
    generation = started(wire)
    assert wire.finish(generation, event) == Told("ok")
    assert wire.log(generation)[-1] == ("1-3", event)
    assert wire.finished() == [(generation, event.__struct_config__.tag)]


# --- attempts, workers --------------------------------------------------------------------------------------------


def test_a_woken_stale_worker_is_fenced_off(wire: Wire) -> None:
    generation = orphaned(wire)
    wire.beat("w2")
    assert wire.orphans("w2") == [generation]
    assert isinstance(wire.claim(generation, "w2"), Taken)
    wire.beat("w1")  # it wakes up
    assert wire.tell(generation, delta(2)).outcome == "stale"
    assert wire.finish(generation, Finished(seq=2)).outcome == "stale"
    assert wire.claim(generation, "w1") == "owned"
    assert wire.tell(generation, delta(2), attempt=2, worker="w2") == Told("ok")
    assert wire.finish(generation, Finished(seq=3), attempt=2, worker="w2") == Told("ok")
    assert [e.seq for _, e in wire.log(generation)] == [-1, 0, 1, -1, 2, 3]
    assert wire.finished() == [(generation, "finished")]


def test_of_two_claimers_one_gets_it(wire: Wire) -> None:
    generation = orphaned(wire)
    for worker in ("w2", "w3"):
        wire.beat(worker)
    assert wire.orphans("w2") == wire.orphans("w3") == [generation]
    assert isinstance(wire.claim(generation, "w2"), Taken)
    assert wire.claim(generation, "w3") == "owned"


def test_a_worker_can_claim_what_it_holds_without_knowing(wire: Wire) -> None:
    generation = taken(wire)
    claimed = wire.claim(generation, "w1")
    assert isinstance(claimed, Taken)
    assert (claimed.attempt, claimed.seq) == (2, -1)
    assert wire.beat("w1") == {generation: "run"}
    assert wire.tell(generation, STARTED, attempt=1).outcome == "stale", "also of its owner"
    assert wire.finish(generation, Finished(seq=0), attempt=1).outcome == "stale"
    assert wire.tell(generation, STARTED, attempt=2) == Told("ok")
    assert wire.beat("w1") == {generation: "run"}


def test_a_claim_moves_the_queue_entry_and_forgets_the_dead_consumer(wire: Wire) -> None:
    generation = orphaned(wire)
    wire.beat("w2")
    wire.claim(generation, "w2")
    consumers: Any = wire.redis.xinfo_consumers(f"octavo:requests:{MODEL}:t", "workers")
    assert [(c["name"], c["pending"]) for c in consumers] == [(b"w2", 1)]


def test_a_claim_after_redis_restarted_ends_what_had_started(wire: Wire) -> None:
    generation = orphaned(wire)
    wire.redis.hset(protocol.request_key(generation), "run_id", "another")
    wire.beat("w2")
    assert wire.claim(generation, "w2") == "interrupted"
    event = wire.log(generation)[-1][1]
    assert isinstance(event, Interrupted)
    assert (event.seq, event.code, event.retryable) == (2, "redis_restarted", True)
    assert wire.finished() == [(generation, "interrupted")]


def test_a_worker_that_holds_work_and_makes_no_step_for_20_s_is_taken_for_dead(wire: Wire) -> None:
    generation = started(wire)
    wire.beat("w2")
    wire.beat("w1", steps=7)
    assert wire.orphans("w2") == []
    wire.redis.hincrby(protocol.worker_key("w1"), "stepped_ms", -20_001)
    wire.beat("w1", steps=7)
    assert wire.orphans("w2") == [generation]
    wire.beat("w1", steps=8)
    assert wire.orphans("w2") == []


def test_an_idle_worker_may_stand_still(wire: Wire) -> None:
    wire.beat("w1")
    wire.redis.hincrby(protocol.worker_key("w1"), "stepped_ms", -60_000)
    wire.beat("w1")
    wire.enqueue(a_request())
    wire.take("w1")
    wire.beat("w2")
    assert wire.orphans("w2") == []


def test_orphans_of_another_model_are_left_to_its_workers(wire: Wire) -> None:
    orphaned(wire)
    assert wire.call(protocol.orphans("w2", "other")) == []


def test_a_dead_worker_is_forgotten_once_it_holds_nothing(wire: Wire) -> None:
    generation = orphaned(wire)
    wire.silence("w1", 60_000)
    wire.beat("w2")
    wire.orphans("w2")
    assert "octavo:worker:w1" in wire.key_names()
    wire.claim(generation, "w2")
    wire.orphans("w2")
    assert "octavo:worker:w1" not in wire.key_names()
    assert wire.redis.zrange(protocol.WORKERS, 0, -1) == [b"w2"]


def test_what_a_retired_worker_left_is_found_at_once(wire: Wire) -> None:
    generation = taken(wire)
    wire.call(protocol.retire("w1"))
    wire.beat("w2")
    assert wire.orphans("w2") == [generation]


def test_an_expired_lease_or_deadline_reaches_the_owner_by_its_heartbeat(wire: Wire) -> None:
    left = wire.running(leased=True)
    late = wire.running(deadline_ms=int(time.time() * 1000) + 60_000)
    assert wire.beat() == {left: "run", late: "run"}
    wire.redis.hincrby(protocol.request_key(left), "lease_ms", -int(protocol.LEASE_S * 1000) - 1)
    wire.redis.hset(protocol.request_key(late), "deadline_ms", 1)
    assert wire.beat() == {left: "cancelled", late: "timeout"}


def test_a_renewed_lease_holds(wire: Wire) -> None:
    generation = wire.running(leased=True)
    wire.redis.hincrby(protocol.request_key(generation), "lease_ms", -int(protocol.LEASE_S * 1000) + 100)
    wire.call(protocol.renew(generation))
    time.sleep(0.2)
    assert wire.beat() == {generation: "run"}


def test_everything_is_gone_once_it_is_recorded_and_has_expired(wire: Wire) -> None:
    generation = finished(wire)
    wire.redis.xgroup_create(protocol.FINISHED, protocol.RECORDER_GROUP, "0")
    ((_, ((entry, _),)),) = wire.redis.xreadgroup(protocol.RECORDER_GROUP, "r", {protocol.FINISHED: ">"})  # type: ignore[misc]
    for _ in range(2):
        wire.call(protocol.recorded(entry.decode(), generation, 1))
    assert wire.finished() == []
    time.sleep(1.1)
    assert not [key for key in wire.key_names() if generation in key or ":held:" in key or ":requests:" in key]


# --- one vocabulary -----------------------------------------------------------------------------------------------


def test_the_library_and_the_protocol_agree_on_times_and_names() -> None:
    source = protocol.LIBRARY_SOURCE.read_text()
    values = dict(re.findall(r"local (\w+) = (\S+)", source))
    assert source.startswith(f"#!lua name={protocol.LIBRARY}\n")
    assert values["PREFIX"] == f"'{protocol.LIBRARY}_'"
    assert int(values["STALE_MS"]) == protocol.STALE_AFTER_S * 1000
    assert int(values["STALLED_MS"]) == protocol.STALLED_AFTER_S * 1000
    assert int(values["LEASE_MS"]) == protocol.LEASE_S * 1000


def test_the_library_uses_the_keys_of_the_protocol(wire: Wire) -> None:
    generation = started(wire)
    queued(wire)
    assert {
        protocol.request_key(generation),
        protocol.generation_key(generation),
        protocol.requests_key(MODEL, "t"),
        protocol.backlog_key(MODEL),
        protocol.service_key(MODEL),
        protocol.held_key("w1"),
        protocol.worker_key("w1"),
        protocol.control_key(MODEL),
        protocol.WORKERS,
    } <= wire.key_names()


def test_the_library_can_be_loaded_again_under_running_work(wire: Wire) -> None:
    generation = started(wire)
    wire.redis.function_load(protocol.LIBRARY_SOURCE.read_text(), replace=True)
    assert wire.tell(generation, delta(2)) == Told("ok")
