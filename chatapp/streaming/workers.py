"""Which engines are there, and where a request stands in its queue."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from chatapp.streaming import connection
from engine import protocol

_details = msgspec.json.Decoder(protocol.WorkerDetails)


def live(model: str | None = None) -> list[protocol.WorkerDetails]:
    """Workers with a fresh heartbeat. `healthy` is False of one that says so, or that holds work without stepping."""
    client = connection.sync_redis()
    seconds, micros = client.time()
    now_ms = seconds * 1000 + micros // 1000
    ids = client.zrange(protocol.WORKERS, now_ms - protocol.STALE_AFTER_S * 1000, "+inf", byscore=True)
    pipe = client.pipeline(transaction=False)
    for worker in ids:
        pipe.hmget(protocol.worker_key(worker.decode()), "details", "stepped_ms")
        pipe.scard(protocol.held_key(worker.decode()))
    replies = pipe.execute()
    found = []
    for (details, stepped_ms), held in zip(replies[::2], replies[1::2], strict=True):
        if details is None:
            continue
        worker = _details.decode(details)
        if held and now_ms - int(stepped_ms or 0) > protocol.STALLED_AFTER_S * 1000:
            worker.healthy = False
        if model is None or worker.model == model:
            found.append(worker)
    return found


def waits(tenant: str, models: Iterable[str]) -> bool:
    """Whether anything of a tenant's waits for one of these models and is not being answered yet."""
    pipe = connection.sync_redis().pipeline(transaction=False)
    for model in models:
        pipe.zscore(protocol.backlog_key(model), tenant)
    return any(score is not None for score in pipe.execute())


def queue_position(generation_id: str) -> int:
    """1 is next in its tenant's queue; 0: it does not wait."""
    return int(connection.call(protocol.place(generation_id)))


def doing(ids: Sequence[str]) -> list[tuple[str, bool]]:
    """Of each generation the state that Redis knows ("" of one that it does not), and whether it is to be stopped."""
    if not ids:
        return []
    pipe = connection.sync_redis().pipeline(transaction=False)
    for each in ids:
        pipe.hmget(protocol.request_key(each), "state", "cancel")
    return [((state or b"").decode(), cancel == b"1") for state, cancel in pipe.execute()]
