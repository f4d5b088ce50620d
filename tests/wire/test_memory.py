"""What workers say of the memory of chats that somebody looks at: over a real server, by real workers."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import pytest

from chatapp.streaming import submit, workers
from engine import protocol
from engine.protocol import Memory, SystemText, Watch
from tests.wire.conftest import MODEL, InProcess, Wire, a_question, answer_of, until

pytestmark = pytest.mark.usefixtures("closing")
Serve: TypeAlias = Callable[..., InProcess]
PROMPT = [SystemText("You answer questions about foxes and dogs, in short words. " * 4, "salt of t")]
CHAT = Watch("t", "c1", "p")


def look(wire: Wire, watch: Watch = CHAT) -> None:
    wire.call(protocol.watch(MODEL, watch))


def said(wire: Wire, watch: Watch = CHAT) -> dict[str, Memory]:
    """What each worker has said last."""
    found = wire.redis.hgetall(protocol.memory_key(watch))
    return {worker.decode(): protocol.decode_memory(data) for worker, data in found.items()}


def told(wire: Wire, watch: Watch = CHAT) -> Memory | None:
    return next(iter(said(wire, watch).values()), None)


def kinds(memory: Memory) -> list[str]:
    return [run.kind for run in memory.runs for _ in range(run.blocks)]


def test_a_look_counts_until_it_is_not_renewed_and_is_told_of_once(wire: Wire) -> None:
    def hints() -> int:
        return int(wire.redis.xlen(protocol.control_key(MODEL)))

    assert wire.call(protocol.watch(MODEL, CHAT, ttl_s=0.1)) == 1
    assert wire.call(protocol.watch(MODEL, CHAT, ttl_s=0.1)) == 0
    other = Watch("u", "", "q")
    wire.call(protocol.watch(MODEL, other, ttl_s=30))
    assert hints() == 2, "one for each, however often it is renewed"
    assert set(protocol.parse_watched(wire.call(protocol.watched(MODEL)))) == {CHAT, other}
    assert protocol.parse_watched(wire.call(protocol.watched("another model"))) == []
    while len(protocol.parse_watched(wire.call(protocol.watched(MODEL)))) > 1:
        pass
    assert protocol.parse_watched(wire.call(protocol.watched(MODEL))) == [other]
    look(wire)
    assert hints() == 3, "it had ended, so it is new"


def test_looks_are_bounded_and_the_ones_that_end_first_go_first(wire: Wire) -> None:
    for number in range(1005):
        wire.call(protocol.watch(MODEL, Watch("t", f"c{number}", ""), ttl_s=60 + number))
    left = protocol.parse_watched(wire.call(protocol.watched(MODEL)))
    assert len(left) == 1000
    assert Watch("t", "c4", "") not in left
    assert wire.redis.pttl(protocol.watches_key(MODEL)) > 0


async def test_a_watched_chat_is_told_of_while_it_is_answered_and_afterwards(wire: Wire, serve: Serve) -> None:
    served = serve()
    await until(workers.live)
    request = a_question("t", tokens=3000, system=PROMPT, conversation="c1")
    look(wire)
    empty = await until(lambda: told(wire))
    assert (empty.state, empty.runs) == ("new", [])
    submit.enqueue(request)
    first = await until(lambda: (m := told(wire)) is not None and m.state == "answering" and m.seq > 0 and m)
    assert first.worker == served.worker.id
    assert first.response == request.id
    assert first.block_bytes == served.engine.runner.block_bytes > 0
    # A token is computed in the step after the one that says it.
    prompt = first.tokens - first.seq + 1
    later = await until(lambda: (m := told(wire)) is not None and m.seq > first.seq and m)
    assert later.tokens - later.seq + 1 == prompt
    assert len(kinds(later)) >= -(-later.tokens // 16)
    assert kinds(later)[0] == "team"
    assert kinds(later)[-1] == "own"
    served.worker.cancelled(request.id)
    look(wire)
    idle = await until(lambda: (m := told(wire)) is not None and m.state == "idle" and m)
    assert idle.tokens == idle.length
    assert set(kinds(idle)) == {"team", "kept"}


async def test_what_nobody_looks_at_costs_no_message(wire: Wire, serve: Serve) -> None:
    served = serve()
    request = a_question("t", tokens=40, system=PROMPT, conversation="c1")
    submit.enqueue(request)
    await answer_of(request.id)
    assert not [key for key in wire.key_names() if key.startswith(("octavo:memory", "octavo:watches"))]
    assert len(served.engine.chats) == 1


async def test_a_chat_of_another_tenant_is_not_told_of_under_its_id(wire: Wire, serve: Serve) -> None:
    """C1: not even that it is there."""
    serve()
    await until(workers.live)
    request = a_question("t", tokens=20, system=PROMPT, conversation="c1")
    submit.enqueue(request)
    await answer_of(request.id)
    look(wire)
    assert (await until(lambda: told(wire))).state == "idle"
    foreign = Watch("u", "c1", "p")
    look(wire, foreign)
    heard = await until(lambda: told(wire, foreign))
    assert (heard.state, heard.runs, heard.tokens, heard.length) == ("new", [], 0, 0)


@pytest.mark.long
async def test_each_worker_says_what_it_holds_and_only_one_of_them_has_the_chat(wire: Wire, serve: Serve) -> None:
    first, second = serve(), serve()
    await until(lambda: len(workers.live()) == 2)
    request = a_question("t", tokens=20, system=PROMPT, conversation="c1")
    submit.enqueue(request)
    await answer_of(request.id)
    look(wire)
    heard = await until(lambda: len(found := said(wire)) == 2 and found)
    assert sorted(memory.state for memory in heard.values()) == ["idle", "new"]
    holder = next(one for one in (first, second) if len(one.engine.chats))
    assert heard[holder.worker.id].state == "idle"


async def test_several_looks_are_answered_each(wire: Wire, serve: Serve) -> None:
    serve()
    await until(workers.live)
    watches = [Watch("t", f"c{number}", "") for number in range(40)]
    for watch in watches:
        look(wire, watch)
    heard = await until(lambda: all(found := [said(wire, watch) for watch in watches]) and found)
    assert [[memory.state for memory in each.values()] for each in heard] == [["new"]] * 40


def test_a_deleted_tenants_looks_and_what_was_said_of_its_chats_are_found_and_removed(wire: Wire) -> None:
    from chatapp.streaming import traces

    gone, other = "01890000-0000-7000-8000-00000000000a", "01890000-0000-7000-8000-00000000000b"
    for tenant in (gone, other):
        watch = Watch(tenant, "c1", "p")
        look(wire, watch)
        wire.redis.hset(protocol.memory_key(watch), "w1", b"{}")

    def owns(ids: list[str]) -> list[str]:
        return []

    assert traces.remaining(gone, (), owns) == 2
    assert traces.remove(gone, (), owns) == 2
    assert traces.remaining(gone, (), owns) == 0
    assert traces.remaining(other, (), owns) == 2
