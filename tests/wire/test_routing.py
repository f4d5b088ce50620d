"""Which of several workers gets a request: the functions alone, then real workers."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import redis

from chatapp.streaming import forgetting, prompts, submit, workers
from chatapp.streaming.draining import drain
from engine import protocol
from engine.protocol import Claimed, Finished, Request, Started, SystemText, Taken
from tests.wire.conftest import MODEL, InProcess, Process, Wire, a_question, a_request, answer_of, until
from tests.wire.test_worker import first_tokens

pytestmark = pytest.mark.usefixtures("closing")
KEPT_MS = protocol.KEPT_S * 1000


def ask(
    wire: Wire, worker: str, room: int = 8, running: tuple[str, ...] = (), warm: tuple[str, ...] | None = None
) -> Any:
    """What a worker gets, or for how many ms the nearest head is kept for another, or None."""
    reply: Any = wire.call(protocol.take(worker, MODEL, room, running, warm))
    return protocol.parse_taken(reply) or reply


def alive(wire: Wire, *names: str, **said: Any) -> None:
    """Idle workers that have asked for work, and got none."""
    for name in names:
        wire.beat(name)
        assert ask(wire, name, **said) is None


def age(wire: Wire, request: Request, by_ms: int) -> None:
    wire.redis.hincrby(protocol.request_key(request.id), "queued_ms", -by_ms)


def hints(wire: Wire) -> list[str]:
    entries: Any = wire.redis.xrange(protocol.control_key(MODEL))
    return [fields.get(b"worker", b"").decode() for _, fields in entries if fields[b"kind"] == b"enqueued"]


# --- the functions ------------------------------------------------------------------------------------------------


def test_a_head_is_kept_for_the_worker_that_holds_its_tenants_prompt(wire: Wire) -> None:
    alive(wire, "cold", "colder")
    alive(wire, "warm", warm=("t",))
    for _ in range(3):
        wire.enqueue(a_request("t"))
    assert hints(wire) == ["warm"] * 3, "it alone is told"
    assert 0 < ask(wire, "cold") <= KEPT_MS
    assert 0 < ask(wire, "colder") <= KEPT_MS
    assert isinstance(ask(wire, "warm"), Taken)
    wire.enqueue(a_request("t"))
    assert hints(wire) == ["warm"] * 4, "what it said of warmth holds until it says something else"


def test_a_head_that_the_warm_worker_does_not_take_is_anybodys_after_200_ms(wire: Wire) -> None:
    alive(wire, "cold")
    alive(wire, "warm", warm=("t",))
    wire.enqueue(request := a_request("t"))
    age(wire, request, 150)
    left = ask(wire, "cold")
    assert 0 < left <= 50
    time.sleep(left / 1000)
    assert ask(wire, "cold").id == request.id


def test_what_is_kept_for_another_does_not_hold_up_the_next_tenant(wire: Wire) -> None:
    alive(wire, "cold")
    alive(wire, "warm", warm=("a", "b"))
    wire.enqueue(a_request("a"))
    wire.redis.hset(protocol.rooms_key(MODEL), "warm", 0)  # it has as much as it can run
    wire.redis.hset(protocol.rooms_key(MODEL), "cold", 9)
    wire.enqueue(other := a_request("b"))
    wire.redis.hset(protocol.rooms_key(MODEL), "warm", 5)
    assert ask(wire, "cold").id == other.id
    assert ask(wire, "cold") > 0


def test_a_head_past_its_time_goes_before_those_of_warm_tenants_that_had_more(wire: Wire) -> None:
    wire.redis.hset(protocol.service_key(MODEL), "rich", 50)
    alive(wire, "w1", warm=("rich",))
    wire.enqueue(poor := a_request("poor"))
    wire.enqueue(a_request("rich"))
    young = ask(wire, "w1")
    assert protocol.decode_request(young.payload).tenant == "rich", "the order is bent for the warm prompt"
    wire.enqueue(a_request("rich"))
    age(wire, poor, 200)
    assert ask(wire, "w1").id == poor.id, "but no longer than that"


def test_service_is_shared_evenly_although_each_worker_is_warm_for_one_tenant(wire: Wire) -> None:
    """With heads that are past their time the order is that of service alone, whoever is warm for whom."""
    alive(wire, "w1", warm=("a",))
    alive(wire, "w2", warm=("b",))
    for _ in range(40):
        for tenant in "ab":
            wire.enqueue(request := a_request(tenant))
            age(wire, request, 300)
    gaps = []
    for turn in range(60):
        worker, warm = ("w1", "a") if turn % 3 else ("w2", "b")  # one of them is twice as fast
        got = ask(wire, worker, warm=(warm,))
        wire.tell(got.id, Started(seq=0, prompt_tokens=50 + turn % 7, cached_tokens=0), worker=worker)
        wire.finish(got.id, Finished(seq=1), worker=worker)
        gaps.append(abs(wire.service("a") - wire.service("b")))
    assert max(gaps) <= 57, "the cost of one request"
    assert max(gaps[30:]) <= max(gaps[:30]) + 1, "it does not grow with time"


def test_a_warm_worker_without_room_keeps_nobody_waiting(wire: Wire) -> None:
    alive(wire, "cold")
    alive(wire, "warm", room=0, warm=("t",))
    wire.enqueue(request := a_request("t"))
    assert hints(wire) == ["cold"]
    assert ask(wire, "cold").id == request.id


def test_a_worker_that_has_filled_up_since_lets_go_of_what_was_kept_for_it(wire: Wire) -> None:
    alive(wire, "cold")
    alive(wire, "warm", warm=("t",))
    wire.enqueue(request := a_request("t"))
    assert ask(wire, "warm", room=0, running=("t",), warm=("t",)) is None
    assert ask(wire, "cold").id == request.id


def test_a_warm_prompt_is_worth_four_requests_and_no_more(wire: Wire) -> None:
    alive(wire, "warm", warm=("t", "u"), room=4)
    alive(wire, "cold", room=8)
    wire.redis.hset(protocol.rooms_key(MODEL), "cold", 7)
    wire.enqueue(a_request("t"))
    assert hints(wire) == ["warm"]
    wire.redis.hset(protocol.rooms_key(MODEL), mapping={"warm": 3, "cold": 8})
    wire.enqueue(a_request("u"))
    assert hints(wire) == ["warm", "cold"]


def test_among_equals_a_tenant_stays_together_and_tenants_spread(wire: Wire) -> None:
    names = [f"w{n}" for n in range(4)]
    alive(wire, *names)
    found = []
    for number in range(60):
        wire.redis.hset(protocol.rooms_key(MODEL), mapping=dict.fromkeys(names, 8))
        wire.enqueue(a_request(f"t{number % 30}"))
        found = hints(wire)
    assert found[:30] == found[30:]
    assert all(4 <= count <= 32 for count in Counter(found).values()), Counter(found)
    assert len(Counter(found)) == 4


@pytest.mark.parametrize("fate", ["drained", "silent", "stalled", "gone"])
def test_nothing_is_kept_for_a_worker_that_will_not_come(wire: Wire, fate: str) -> None:
    alive(wire, "cold")
    alive(wire, "warm", warm=("t",))
    wire.enqueue(before := a_request("t"))
    if fate == "drained":
        drain("warm")
    elif fate == "silent":
        wire.silence("warm")
    elif fate == "stalled":
        wire.redis.sadd(protocol.held_key("warm"), "g")
        wire.redis.hincrby(protocol.worker_key("warm"), "stepped_ms", -20_001)
    else:
        wire.call(protocol.retire("warm"))
    assert ask(wire, "cold").id == before.id, "what was kept for it is anybody's"
    wire.enqueue(after := a_request("t"))
    assert hints(wire) == ["warm", "cold"]
    assert ask(wire, "cold").id == after.id
    if fate == "gone":
        assert not {protocol.worker_key("warm"), protocol.warmth_key("warm")} & wire.key_names()
        assert wire.redis.hkeys(protocol.rooms_key(MODEL)) == [b"cold"], "nothing is left of it"


def test_of_a_worker_that_was_killed_nothing_is_left_once_it_is_forgotten(wire: Wire) -> None:
    alive(wire, "w2")
    alive(wire, "w1", warm=("t",), room=0)
    wire.silence("w1", 61_000)
    wire.orphans("w2")
    assert wire.redis.hkeys(protocol.rooms_key(MODEL)) == [b"w2"]
    assert protocol.warmth_key("w1") not in wire.key_names()


def test_where_all_are_full_a_new_tenant_goes_to_the_one_that_has_least_beyond_that(wire: Wire) -> None:
    alive(wire, "w1", room=-2)
    alive(wire, "w2", room=0)
    alive(wire, "w3", room=-1)
    wire.enqueue(request := a_request("new"))
    assert hints(wire) == ["w2"]
    for other in ("w1", "w3"):
        assert 0 < ask(wire, other, room=-1) <= KEPT_MS
    assert ask(wire, "w2", room=0).id == request.id


def test_where_all_are_full_a_request_is_kept_for_nobody_who_would_not_take_it(wire: Wire) -> None:
    """A full worker takes the head of a tenant only where it runs nothing of it."""
    alive(wire, "w1", "w2", room=1)
    wire.enqueue(first := a_request("t"))
    (owner,) = hints(wire)
    other = {"w1": "w2", "w2": "w1"}[owner]
    assert ask(wire, owner, room=1).id == first.id
    wire.redis.hset(protocol.rooms_key(MODEL), mapping={owner: 0, other: -5})
    wire.enqueue(second := a_request("t"))
    assert hints(wire) == [owner, other]
    assert ask(wire, owner, room=0, running=("t",)) is None
    assert ask(wire, other, room=-5).id == second.id


def test_a_flood_that_finds_no_room_is_told_of_once_and_goes_to_whoever_gets_some(wire: Wire) -> None:
    alive(wire, "w1", "w2", room=0)
    for _ in range(5):
        wire.enqueue(a_request("t"))
    assert len(hints(wire)) == 1
    assert isinstance(ask(wire, hints(wire)[0], room=0), Taken)
    for worker in ("w1", "w2", "w1", "w2"):
        assert isinstance(ask(wire, worker, room=1, running=("t",)), Taken), "at once"


def test_of_workers_that_ask_at_once_each_request_goes_to_one(wire: Wire, redis_url: str) -> None:
    for number in range(60):
        wire.enqueue(a_request(f"t{number % 7}"))

    def everything(name: str) -> list[str]:
        mine = Wire(redis.Redis.from_url(redis_url, protocol=2))
        mine.beat(name)
        got = []
        while isinstance(taken := ask(mine, name, room=60 - len(got)), Taken):
            got.append(taken.id)
        mine.redis.close()
        return got

    with ThreadPoolExecutor(4) as threads:
        got = list(threads.map(everything, [f"w{n}" for n in range(4)]))
    everyones = [generation for mine in got for generation in mine]
    assert len(everyones) == len(set(everyones)) == 60
    for name, mine in zip((f"w{n}" for n in range(4)), got, strict=True):
        assert wire.beat(name) == dict.fromkeys(mine, "run")


def test_a_worker_of_older_code_is_not_told_what_it_would_not_understand(wire: Wire) -> None:
    alive(wire, "old")
    alive(wire, "warm", warm=("t",))
    wire.enqueue(a_request("t"))
    call = protocol.take("old", MODEL, 8, [], [])
    assert call[-1] == "waits"
    assert wire.call(call[:-1]) is None


def test_the_library_and_the_protocol_agree_on_how_long_a_request_is_kept() -> None:
    assert f"local WARM_MS = {KEPT_MS:.0f} " in protocol.LIBRARY_SOURCE.read_text()


# --- workers ------------------------------------------------------------------------------------------------------


def answerer(wire: Wire, generation_id: str) -> str:
    (claimed,) = (event for _, event in wire.log(generation_id) if isinstance(event, Claimed))
    return claimed.worker


def published(tenant: str) -> dict[str, Any]:
    text = f"You answer for the house of {tenant}, which sells tents, boots and stoves. Be brief. " * 4
    return {"system": [SystemText(text, f"salt of {tenant}")], "prompt": f"p-{tenant}", "prompt_version": f"v-{tenant}"}


async def test_a_head_that_its_warm_worker_does_not_take_is_not_left_until_the_next_heartbeat(
    wire: Wire, serve: Callable[..., InProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing else but the time that it set itself makes the worker ask: no heartbeat, no hint."""
    monkeypatch.setattr(protocol, "HEARTBEAT_S", 60.0)
    served = serve()
    await until(workers.live)
    await until(lambda: wire.redis.hexists(protocol.rooms_key(MODEL), served.worker.id))
    alive(wire, "deaf", warm=("t",), room=99)
    for _ in range(3):
        wire.beat("deaf")
        wire.enqueue(request := a_question("t", tokens=2))
        assert hints(wire)[-1] == "deaf"
        events = await asyncio.wait_for(answer_of(request.id), 20)
        assert isinstance(events[-1], Finished)
        assert answerer(wire, request.id) == served.worker.id
        wire.redis.zadd(protocol.WORKERS, {served.worker.id: time.time() * 1000})


async def test_each_tenant_is_answered_where_its_prompt_is(wire: Wire, serve: Callable[..., InProcess]) -> None:
    served = [serve(), serve()]
    await until(lambda: len(workers.live()) == 2)
    home = {}
    for number, tenant in enumerate(("a", "b", "c", "d")):
        text = published(tenant)
        one = served[number % 2].worker
        prompts.announce(
            protocol.PublishedPrompt(
                tenant=tenant, version=text["prompt_version"], prompt=text["prompt"], system=text["system"]
            ),
            worker=one.id,
        )
        home[tenant] = one.id
    for tenant, worker in home.items():
        await until(lambda t=tenant, w=worker: wire.redis.sismember(protocol.warmth_key(w), t))
    for _ in range(3):
        for tenant, worker in home.items():
            request = a_question(tenant, tokens=2, **published(tenant))
            submit.enqueue(request)
            events = await answer_of(request.id)
            assert answerer(wire, request.id) == worker
            assert next(e.cached_tokens for e in events if isinstance(e, Started)) > 30


async def test_a_worker_does_not_say_that_it_holds_a_prompt_that_was_evicted(
    wire: Wire, serve: Callable[..., InProcess]
) -> None:
    served = serve(num_blocks=64)
    await until(workers.live)
    for tenant in ("a", "b", "c", "d", "e", "f", "g", "h"):
        request = a_question(tenant, tokens=2, **published(tenant))
        submit.enqueue(request)
        assert isinstance((await answer_of(request.id))[-1], Finished)
    held = {name for name in served.worker.prompts.pinned if served.engine.prompts.holds(name)}
    assert 0 < len(held) < 8, "the pool has room for some of them"
    told = {name.removeprefix("p-").encode() for name in held}
    await until(lambda: wire.redis.smembers(protocol.warmth_key(served.worker.id)) == told)


@pytest.mark.long
async def test_two_real_workers_share_the_work_and_no_flood_starves_another_tenant(
    wire: Wire, process: Callable[..., Process]
) -> None:
    started = [process("--name", name, "--max-num-seqs", "4") for name in ("one", "two")]
    for worker in started:
        await worker.ready()
    both = {found.id for found in workers.live()}

    # A published prompt is computed by both, so that whichever has room is warm for it.
    text = published("small")
    prompts.announce(
        protocol.PublishedPrompt(tenant="small", version="v-small", prompt="p-small", system=text["system"])
    )
    await until(lambda: prompts.warm_workers("v-small") == both)
    await until(lambda: all(wire.redis.sismember(protocol.warmth_key(one), "small") for one in both))

    flood = [a_question("flood", tokens=300) for _ in range(16)]
    for request in flood:
        submit.enqueue(request)
    await until(lambda: all(wire.redis.scard(protocol.held_key(one)) >= 4 for one in both))
    waiting = [request.id for request in flood if wire.state(request.id) == "queued"]
    assert len(waiting) >= 4
    for _ in range(3):
        submit.enqueue(request := a_question("small", tokens=8, **text))
        events = await answer_of(request.id)
        assert isinstance(events[-1], Finished)
        assert next(event.cached_tokens for event in events if isinstance(event, Started)) > 30
    assert [one for one in waiting if wire.state(one) == "queued"], "the flood had not ended when the last was answered"
    for request in flood:
        assert isinstance((await answer_of(request.id))[-1], Finished)
    shares = Counter(answerer(wire, request.id) for request in flood)
    assert set(shares) == both
    assert min(shares.values()) >= 4, shares

    # Counting, cancelling, forgetting and looking at a chat reach whichever worker has it.
    counted = await asyncio.to_thread(prompts.count, ["Be brief."], model=MODEL)
    assert counted.tokens > 0
    running = [a_question("gone", tokens=6000, conversation=f"c{n}") for n in range(4)]
    for request in running:
        submit.enqueue(request)
        await first_tokens(request.id)
    assert {answerer(wire, request.id) for request in running} == both
    look = protocol.Watch("gone", "c1", "")
    wire.call(protocol.watch(MODEL, look))
    await until(lambda: {name.decode() for name in wire.redis.hkeys(protocol.memory_key(look))} == both)
    said: Any = wire.redis.hgetall(protocol.memory_key(look))
    states = {name.decode(): protocol.decode_memory(text).state for name, text in said.items()}
    owner = answerer(wire, running[1].id)
    assert states == {owner: "answering", (both - {owner}).pop(): "new"}
    assert wire.cancel(running[0].id) == "cancelling"
    assert (await answer_of(running[0].id))[-1].__struct_config__.tag == "cancelled"
    forgetting.ask("gone")
    await until(lambda: forgetting.heard("gone") == both)
    for request in running[1:]:
        assert (await answer_of(request.id))[-1].__struct_config__.tag == "cancelled"
    for worker in started:
        worker.popen.terminate()
        status, said_last = await asyncio.to_thread(worker.end)
        assert status == 0, said_last
    assert not wire.redis.exists(protocol.rooms_key(MODEL))
