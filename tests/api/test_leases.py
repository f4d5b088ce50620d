"""The leases of stateless answers that a process holds: renewed together, and ended one by one."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
import redis.asyncio
import redis.exceptions

from chatapp.api import answering
from chatapp.api.answering import Lease
from chatapp.streaming import lease


@pytest.fixture
def renewed(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    calls: list[list[str]] = []

    async def renew(generation_ids: Sequence[str]) -> None:
        calls.append(sorted(generation_ids))
        if len(calls) == 1:
            raise redis.exceptions.ConnectionError("away for a moment")

    monkeypatch.setattr(lease, "renew", renew)
    monkeypatch.setattr(lease, "RENEW_EVERY_S", 0.01)
    return calls


async def renewals(calls: list[list[str]], more: int) -> None:
    wanted = len(calls) + more
    async with asyncio.timeout(5):
        while len(calls) < wanted:  # noqa: ASYNC110
            await asyncio.sleep(0.005)


async def test_all_leases_of_a_process_are_renewed_in_one_call_also_after_one_that_failed(
    renewed: list[list[str]],
) -> None:
    held = [Lease(key) for key in ("a", "b", "c")]
    await renewals(renewed, 2)
    assert renewed[:2] == [["a", "b", "c"]] * 2
    held[1].end(stop=False)
    await renewals(renewed, 2)
    assert renewed[-1] == ["a", "c"]
    for one in held:
        one.end(stop=False)
    await asyncio.sleep(0.05)
    before = len(renewed)
    await asyncio.sleep(0.05)
    assert len(renewed) == before, "nothing is held any more"
    last = Lease("d")
    await renewals(renewed, 1)
    assert renewed[-1] == ["d"]
    last.end(stop=False)


async def test_a_generation_is_stopped_when_the_last_of_its_callers_has_gone(
    renewed: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped: list[str] = []

    async def stop(generation_id: str) -> None:
        stopped.append(generation_id)

    monkeypatch.setattr(answering, "_stop", stop)
    first, second = Lease("a"), Lease("a")
    first.end(stop=True)
    first.end(stop=True)
    await asyncio.sleep(0.02)
    assert stopped == []
    second.end(stop=True)
    await asyncio.sleep(0.02)
    assert stopped == ["a"]


async def test_any_number_of_leases_is_renewed_on_the_server(redis_url: str, settings: Any) -> None:
    from engine import protocol

    settings.REDIS_URL = redis_url
    client = redis.asyncio.Redis.from_url(redis_url, protocol=2)
    await client.flushall()
    ids = [f"g{n}" for n in range(lease.TOGETHER + 3)]
    for key in ids:
        await client.hset(protocol.request_key(key), mapping={"state": "running", "lease_ms": 1, "seq": 0})
    await lease.renew([*ids, "unknown"])
    seconds, _ = await client.time()
    for key in (ids[0], ids[-1]):
        assert int(await client.hget(protocol.request_key(key), "lease_ms")) > seconds * 1000
    assert not await client.exists(protocol.request_key("unknown"))
    await client.aclose()
