"""A worker that is told to forget a tenant: its answers end, nothing of it is left, and the worker says so."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from chatapp.streaming import forgetting, submit, workers
from engine import occupancy_log, occupancy_wire, protocol
from engine.occupancy import Frame
from engine.protocol import Cancelled, SystemText
from tests.wire.conftest import MODEL, InProcess, Wire, a_question, answer_of, until
from tests.wire.test_worker import first_tokens

pytestmark = pytest.mark.usefixtures("closing")


async def test_a_forgotten_tenant_is_gone_from_pool_pins_and_disk_while_another_goes_on(
    wire: Wire, serve: Callable[..., InProcess], tmp_path: Path
) -> None:
    served = serve(prompt_store=str(tmp_path / "prompts"))
    await until(workers.live)

    def question(tenant: str, tokens: int) -> protocol.Request:
        system = [SystemText(f"You answer for the house of {tenant}. " * 6, f"the salt of {tenant}")]
        return a_question(tenant, tokens=tokens, system=system, prompt_version=f"v-{tenant}")

    gone, other = question("gone", 2000), question("other", 300)
    for request in (gone, other):
        submit.enqueue(request)
    await asyncio.gather(*(first_tokens(request.id) for request in (gone, other)))
    assert "gone" in served.engine.pool.owner
    key, line = protocol.occupancy_key(served.worker.id), protocol.line_key(served.worker.id)
    await until(lambda: '"gone"' in repr(wire.redis.xrange(key)))
    asked = {worker.id for worker in workers.live()}
    forgetting.ask("gone")
    await until(lambda: forgetting.heard("gone") == asked)
    assert '"gone"' not in repr(wire.redis.xrange(key)), "the history of the block table begins anew"
    assert '"gone"' not in repr(wire.redis.xrange(line))
    first: Any = wire.redis.xrange(key, count=1)
    assert occupancy_wire.decode_head(first[0][1][b"head"]).base == 0
    assert isinstance((await answer_of(gone.id))[-1], Cancelled)
    assert "gone" not in served.engine.pool.owner
    store = served.engine.prompts.store
    assert store is not None
    assert not [path for path in store.folder.iterdir() if path.name.startswith(protocol.owner_tag("gone"))]
    assert isinstance((await answer_of(other.id))[-1], protocol.Finished)
    assert served.worker.prompts.pinned == {"other": "v-other"}

    late = question("gone", 4)
    submit.enqueue(late)  # one that was on its way
    assert isinstance((await answer_of(late.id))[-1], Cancelled)
    assert "gone" not in served.engine.pool.owner
    assert served.worker.model == MODEL


async def test_what_was_published_of_a_tenant_is_gone_before_the_worker_says_that_it_forgot(
    wire: Wire, serve: Callable[..., InProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though Redis is away meanwhile, and the frame with which all began anew gets lost."""
    monkeypatch.setattr(occupancy_log, "MOST_WAITING_BYTES", 1)  # frames that have to wait are dropped
    served = serve()
    gone, other = a_question("gone", tokens=2000), a_question("other", tokens=2000)
    for request in (gone, other):
        submit.enqueue(request)
    await asyncio.gather(*(first_tokens(request.id) for request in (gone, other)))
    key, line = protocol.occupancy_key(served.worker.id), protocol.line_key(served.worker.id)
    await until(lambda: '"gone"' in repr(wire.redis.xrange(key)))
    wire.redis.config_set("maxclients", 1)  # ours
    try:
        wire.redis.client_kill_filter(_type="normal", skipme=True)
        served.worker.forget("gone")
        await until(lambda: "gone" not in served.engine.pool.owner)
        frames = served.worker._occupancy._number
        await until(lambda: served.worker._occupancy._number > frames + 1)
        assert '"gone"' in repr(wire.redis.xrange(key))
    finally:
        wire.redis.config_set("maxclients", 10_000)
    await until(lambda: wire.redis.exists(protocol.forgot_key("gone")))
    for name in (key, line):
        assert '"gone"' not in repr(wire.redis.xrange(name))
    await until(lambda: wire.redis.xlen(key))
    assert isinstance((await answer_of(other.id))[-1], protocol.Finished)


async def test_a_worker_that_breaks_over_the_frame_has_deleted_what_it_published(
    wire: Wire, serve: Callable[..., InProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    served = serve()
    request = a_question("gone", tokens=2000)
    submit.enqueue(request)
    await first_tokens(request.id)
    key = protocol.occupancy_key(served.worker.id)
    await until(lambda: '"gone"' in repr(wire.redis.xrange(key)))
    pack = occupancy_log.pack

    def full(frame: Frame) -> occupancy_log.Entry:
        if frame.anew:
            raise MemoryError
        return pack(frame)

    monkeypatch.setattr(occupancy_log, "pack", full)
    forgetting.ask("gone")
    await until(lambda: wire.redis.exists(protocol.forgot_key("gone")))
    assert '"gone"' not in repr(wire.redis.xrange(key))
    assert await asyncio.to_thread(served.join) == 1
    assert '"gone"' not in repr(wire.redis.xrange(key))
