"""Tell the engines of prompts that are published, or are no longer, and ask them how long a text is.

All of it is hints and short-lived keys (engine/protocol.py): an engine that hears nothing computes a prompt when it is
first asked for. Raises redis.exceptions.RedisError, as everything here that needs an answer from Redis.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Iterable

import redis.exceptions

from chatapp.streaming import connection, workers
from engine import protocol

COUNT_WITHIN_S = 1.0
GREETED_S = 24 * 3600


def announce(prompt: protocol.PublishedPrompt, *, models: Collection[str] | None = None, worker: str = "") -> int:
    """Every engine that runs now for one of `models` (None: any; `worker`: this one alone) computes it before anybody
    asks, and says so: `warm_workers`. Returns how many engines that are.
    """
    live = [found for found in workers.live() if models is None or found.model in models]
    live = [found for found in live if not worker or found.id == worker]
    if not live:
        return 0
    pipe = connection.sync_redis().pipeline(transaction=False)
    pipe.set(protocol.published_key(prompt.version), protocol.encode(prompt), ex=protocol.PUBLISHED_TTL_S)
    for model in {found.model for found in live}:
        hint = protocol.published_hint(prompt.version, worker)
        pipe.xadd(protocol.control_key(model), hint, maxlen=protocol.CONTROL_LENGTH, approximate=True)
    pipe.execute()
    return len(live)


def release(prompt: str, version: str) -> None:
    """It is published no longer: every engine lets go of its blocks, and nobody waits for it any more."""
    pipe = connection.sync_redis().pipeline(transaction=False)
    pipe.delete(protocol.published_key(version), protocol.warm_key(version))
    for model in {worker.model for worker in workers.live()}:
        hint = protocol.released_hint(prompt, version)
        pipe.xadd(protocol.control_key(model), hint, maxlen=protocol.CONTROL_LENGTH, approximate=True)
    pipe.execute()


def warm_workers(version: str) -> set[str]:
    """The engines that have said that they have this version in memory; some of them may have gone since."""
    return {worker.decode() for worker in connection.sync_redis().hkeys(protocol.warm_key(version))}


def ungreeted(found: Iterable[protocol.WorkerDetails]) -> list[protocol.WorkerDetails]:
    """Those of the given workers that have not been told yet what was published before they came."""
    listed = list(found)
    if not listed:
        return []
    known = connection.sync_redis().mget([protocol.greeted_key(worker.id) for worker in listed])
    return [worker for worker, mark in zip(listed, known, strict=True) if mark is None]


def greeted(worker: str) -> None:
    connection.sync_redis().set(protocol.greeted_key(worker), 1, ex=GREETED_S)


class NoWorker(Exception):
    """No engine runs for this model."""


class NoAnswer(Exception):
    """The engines did not answer in time: they are busy, stopping, or older than this question."""


def count(texts: list[str], *, model: str, within_s: float = COUNT_WITHIN_S) -> protocol.Counted:
    """What an engine of the model says of these system texts. Raises NoWorker, NoAnswer."""
    live = [worker for worker in workers.live(model) if not worker.draining]
    if not live:
        raise NoWorker(model)
    request = protocol.CountRequest(id=secrets.token_hex(16), texts=texts)
    payload = protocol.encode(request)
    if len(payload) > protocol.MOST_COUNT_BYTES:
        raise ValueError(f"{len(payload)} bytes are to be counted; at most {protocol.MOST_COUNT_BYTES} can be.")
    client = connection.sync_redis()
    pipe = client.pipeline(transaction=False)
    pipe.set(protocol.count_key(request.id), payload, ex=protocol.COUNT_TTL_S)
    hint = protocol.count_hint(request.id)
    pipe.xadd(protocol.control_key(model), hint, maxlen=protocol.CONTROL_LENGTH, approximate=True)
    pipe.execute()
    try:
        with connection.hasty_redis(within_s + connection.ANSWER_S) as waiting:
            answer = waiting.blpop([protocol.counted_key(request.id)], timeout=within_s)
    except redis.exceptions.TimeoutError:
        answer = None
    if answer is None:
        client.delete(protocol.count_key(request.id))
        raise NoAnswer(model)
    return protocol.decode_counted(answer[1])
