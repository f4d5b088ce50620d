"""All that Redis holds of a tenant: to be removed when the tenant is deleted, and to be looked for afterwards.

A key is a tenant's when its name carries one of the tenant's ids, or when it belongs to a request whose tenant it is.
Sets, hashes and sorted sets that many share lose the tenant's members. Looks at the wire's database and the cache's.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection, Iterator
from typing import Any

import redis.exceptions

from chatapp.streaming import connection
from engine import protocol

COUNT = 500
HISTORY_COUNT = 50  # entries with pictures of a block table: megabytes together
SHARED = ("octavo:backlog:", "octavo:service:", "octavo:queued_bytes:")
STREAMS = (protocol.FINISHED, "octavo:finished:aside")
REQUEST = protocol.request_key("")
LOG = protocol.generation_key("")
REWRITE_S = 60.0
# An id in the name of a key, with its hyphens or without.
ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}|[0-9a-f]{32}")


def remove(
    tenant: str, others: Collection[str], owns: Callable[[list[str]], Collection[str]], caches: Collection[Any] = ()
) -> int:
    """Remove all of it; how much that was.

    `others`: ids that only this tenant's keys can carry, as those of its API keys and prompts. `owns(ids)`:
    which of these generations are the tenant's, where Redis does not say so any more.
    """
    client = connection.sync_redis()
    removed = 0
    for keys in _owned_keys(client, tenant, others, owns):
        removed += int(client.delete(*keys)) if keys else 0
    for name, member, kind in _shared(client, tenant):
        removed += int(client.hdel(name, member) if kind == "hash" else client.zrem(name, member))
    for stream, entry in _entries(client, tenant):
        if stream == protocol.FINISHED:
            client.xack(stream, protocol.RECORDER_GROUP, entry)
        removed += int(client.xdel(stream, entry))
    for history in _histories(client, tenant):
        removed += int(client.delete(history))
    for cache in caches:
        for keys in _named(cache, {tenant, *others}):
            removed += int(cache.delete(*keys))
    return removed


def remaining(
    tenant: str, others: Collection[str], owns: Callable[[list[str]], Collection[str]], caches: Collection[Any] = ()
) -> int:
    """How many keys, members and entries are the tenant's: 0 once all are removed."""
    client = connection.sync_redis()
    found = sum(len(keys) for keys in _owned_keys(client, tenant, others, owns))
    found += sum(1 for _ in _shared(client, tenant)) + sum(1 for _ in _entries(client, tenant))
    found += sum(1 for _ in _histories(client, tenant))
    return found + sum(len(keys) for cache in caches for keys in _named(cache, {tenant, *others}))


def forget_generations(ids: Collection[str]) -> None:
    """Requests and logs of these, which have ended."""
    keys = [key for name in ids for key in (protocol.request_key(name), protocol.generation_key(name))]
    for start in range(0, len(keys), COUNT):
        connection.sync_redis().delete(*keys[start : start + COUNT])


def compact() -> dict[str, Any]:
    """Have the server write its files anew, without what was deleted. Says what it did, for the report.

    Raises redis.exceptions.ConnectionError or TimeoutError for a server that is away: its files are as they were.
    """
    client = connection.sync_redis()
    done: dict[str, Any] = {}
    try:
        info = client.info("persistence")
        if info.get("aof_enabled"):
            before = info.get("aof_base_size", 0), info.get("aof_current_size", 0)
            _wait(client, "aof_rewrite_in_progress", "aof_rewrite_scheduled")
            client.bgrewriteaof()
            _wait(client, "aof_rewrite_in_progress", "aof_rewrite_scheduled")
            info = client.info("persistence")
            done["aof"] = "rewritten" if info.get("aof_last_bgrewrite_status") == "ok" else "rewrite failed"
            done["aof_bytes"] = [before[1], info.get("aof_current_size", 0)]
        else:
            done["aof"] = "off"
        if client.config_get("save").get("save"):
            client.bgsave()
            _wait(client, "rdb_bgsave_in_progress")
            done["rdb"] = "written"
    except (redis.exceptions.ConnectionError, redis.exceptions.TimeoutError):
        raise
    except Exception as error:  # a managed server that does not let us: an operator has to know
        done["refused"] = f"{type(error).__name__}: {error}"[:200]
    return done


def _wait(client: Any, *flags: str) -> None:
    deadline = time.monotonic() + REWRITE_S
    while any(client.info("persistence").get(flag) for flag in flags):
        if time.monotonic() > deadline:
            raise TimeoutError(f"still {flags[0]} after {REWRITE_S:.0f} s")
        time.sleep(0.05)


def _owned_keys(
    client: Any, tenant: str, others: Collection[str], owns: Callable[[list[str]], Collection[str]]
) -> Iterator[list[bytes]]:
    needles = _spellings({tenant, *others})
    batch: list[bytes] = []
    for name in client.scan_iter(match="*", count=COUNT):
        batch.append(name)
        if len(batch) == COUNT:
            yield _ours(client, batch, tenant, needles, owns)
            batch = []
    if batch:
        yield _ours(client, batch, tenant, needles, owns)


def _ours(
    client: Any, names: list[bytes], tenant: str, needles: set[str], owns: Callable[[list[str]], Collection[str]]
) -> list[bytes]:
    found: set[bytes] = set()
    ids: dict[str, list[bytes]] = {}
    for name in names:
        text = name.decode(errors="replace")
        if not needles.isdisjoint(ID.findall(text)):
            found.add(name)
        elif text.startswith((REQUEST, LOG)):
            ids.setdefault(text.rpartition(":")[2], []).append(name)
    pipe = client.pipeline(transaction=False)
    for generation in ids:
        pipe.hget(protocol.request_key(generation), "tenant")
    tenants = dict(zip(ids, pipe.execute(), strict=True)) if ids else {}
    unknown = [generation for generation, owner in tenants.items() if not owner]
    mine = {generation for generation, owner in tenants.items() if owner == tenant.encode()}
    mine |= set(owns(unknown)) if unknown else set()
    for generation in mine:
        # Both, wherever in the scan the other one comes: without the request nobody would know whose the log is.
        found |= {protocol.request_key(generation).encode(), protocol.generation_key(generation).encode()}
    return [name for name in sorted(found) if client.exists(name)]


def _shared(client: Any, tenant: str) -> Iterator[tuple[bytes, str, str]]:
    for prefix in SHARED:
        for name in list(client.scan_iter(match=f"{prefix}*", count=COUNT)):
            kind = client.type(name).decode()
            present = client.hexists(name, tenant) if kind == "hash" else client.zscore(name, tenant) is not None
            if present:
                yield name, tenant, kind
    for name in list(client.scan_iter(match=f"{protocol.watches_key('')}*", count=COUNT)):
        for member in client.zrange(name, 0, -1):
            if member.decode().partition(" ")[0] == tenant:
                yield name, member.decode(), "zset"


def _entries(client: Any, tenant: str) -> Iterator[tuple[str, bytes]]:
    """Ended generations that nobody has recorded, and the hints to forget the tenant."""
    hints = [name.decode() for name in client.scan_iter(match="octavo:control:*", count=COUNT)]
    for stream in [*STREAMS, *hints]:
        for entry, fields in client.xrange(stream):
            if tenant.encode() in (fields.get(b"tenant"), fields.get(b"id")):
                yield stream, entry


def _histories(client: Any, tenant: str) -> Iterator[bytes]:
    """Streams of workers' block tables that name the tenant. A worker that was told to forget it has begun its own
    anew; left are those of workers that are gone, or did not hear it."""
    needle = tenant.encode()
    for prefix in (protocol.occupancy_key(""), protocol.line_key("")):
        for stream in list(client.scan_iter(match=f"{prefix}*", count=COUNT)):
            first = "-"
            while entries := client.xrange(stream, min=first, count=HISTORY_COUNT):
                if any(needle in fields.get(name, b"") for _, fields in entries for name in (b"head", b"line")):
                    yield stream
                    break
                first = f"({entries[-1][0].decode()}"


def _named(client: Any, ids: Collection[str]) -> Iterator[list[bytes]]:
    needles = _spellings(ids)
    batch = [
        name
        for name in client.scan_iter(count=COUNT)
        if not needles.isdisjoint(ID.findall(name.decode(errors="replace")))
    ]
    if batch:
        yield batch


def _spellings(ids: Collection[str]) -> set[str]:
    return {spelt for name in ids for spelt in (name, name.replace("-", ""))}
