"""`make soak`: the product under a steady mixed load, and whether its memory stays flat.

    python -m bench.soak [--minutes 30] [--users 10]

Starts the product as `make run` does, in a folder of its own, and lets all sorts of clients come and go
(bench.soak_load). Every minute, and at the end, it says for each process its memory, open files and threads; Redis's
memory and keys by kind; the size of the database; how long first tokens and the gaps between tokens took; what went
wrong, by kind. At the end it says of each process's resident memory "flat" or "grows by x MB/h": its slope behind the
warm-up (the first third, at most ten minutes) by the fit of bench.flat, against BOUND_MB_H. Redis keeps logs for an
hour, so what must not grow there are the keys without an expiry; they are compared once all is idle again. Ends with 1
where something grows, or a client saw an error.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import redis

from bench.children import ChildError, ended, family
from bench.flat import judge
from bench.load import percentile
from bench.servers import Product, octavo, programs
from bench.soak_load import KINDS, Book, Broken, Site, load, log_in
from bench.table import aligned

LOOK_EVERY_S = 5.0
# Below what would matter in a month without a restart on a small machine, above what an allocator does by itself.
BOUND_MB_H = 6.0
LONGEST_WARM_UP_S = 600.0
IDLE_S = 90.0
MB = 1024 * 1024
# Of these there is one for each model or process, each within a length of its own, whatever is asked of the product.
ONE_EACH = {
    "occupancy", "line", "control", "service", "finished", "workers", "worker", "vanished", "rooms", "warmth", "server",
    "library", "dead",
}  # fmt: skip


@dataclass
class Series:
    times: list[float] = field(default_factory=list)
    rss_mb: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    files: dict[str, int] = field(default_factory=dict)
    threads: dict[str, int] = field(default_factory=dict)


def look(product: Product, series: Series) -> None:
    """Each program's memory, files and threads, those of its descendants included."""
    names = programs(product.run)
    rss, files, threads = Counter[str](), Counter[str](), Counter[str]()
    for member in family(product.process):
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            line = [member, *member.parents()]
            name = next((names[process.pid] for process in line if process.pid in names), "supervisor")
            rss[name] += member.memory_info().rss
            files[name] += member.num_fds()
            threads[name] += member.num_threads()
    series.times.append(time.monotonic())
    for name in rss:
        series.rss_mb[name].append(rss[name] / MB)
    series.files, series.threads = dict(files), dict(threads)


def kind_of(key: str) -> str:
    """`octavo:generation:018f…` is a generation; other keys by what stands before their first colon."""
    parts = key.split(":")
    return parts[1] if parts[0] == "octavo" and len(parts) > 1 else parts[0][:24]


@dataclass(frozen=True)
class Keys:
    used_mb: float
    expiring: Counter[str]
    lasting: Counter[str]


def keys_of(client: redis.Redis) -> Keys:
    expiring, lasting = Counter[str](), Counter[str]()
    names: list[Any] = list(client.scan_iter(count=1000))
    pipe = client.pipeline(transaction=False)
    for name in names:
        pipe.pttl(name)
    for name, ttl in zip(names, pipe.execute(), strict=True):
        if ttl != -2:
            (expiring if ttl >= 0 else lasting)[kind_of(name.decode(errors="replace"))] += 1
    info: Any = client.info("memory")
    return Keys(info["used_memory"] / MB, expiring, lasting)


def database_mb(data: Path) -> float:
    return sum(path.stat().st_size for path in data.glob("db.sqlite3*")) / MB


def said(counts: Counter[str]) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(counts.items()) if count) or "none"


def waits(first_s: list[float], gaps_s: list[float]) -> str:
    figures = [
        f"{what} p50 {1000 * percentile(values, 0.5):.0f}, p95 {1000 * percentile(values, 0.95):.0f} ms"
        for what, values in (("first token", first_s), ("gap", gaps_s))
        if values
    ]
    return "; ".join(figures) or "nothing was answered"


def report(title: str, series: Series, keys: Keys, data: Path, book: Book, since: tuple[int, int]) -> None:
    grid = [["", "RSS, MB", "files", "threads"]]
    for name in sorted(series.rss_mb):
        found = (f"{series.rss_mb[name][-1]:.1f}", str(series.files.get(name, 0)), str(series.threads.get(name, 0)))
        grid.append([name, *found])
    print(f"\n== {title} ==\n{aligned(grid)}")
    print(f"Redis {keys.used_mb:.1f} MB; database {database_mb(data):.1f} MB")
    print(f"keys that expire: {said(keys.expiring)}")
    print(f"keys that stay: {said(keys.lasting)}")
    print(waits(book.first_s[since[0] :], book.gaps_s[since[1] :]))
    print(f"done: {said(book.done)}")
    print(f"errors: {said(book.errors)}", flush=True)


async def until_idle(client: redis.Redis) -> bool:
    """Nothing waits, runs, or is to be recorded."""
    deadline = time.monotonic() + IDLE_S
    while time.monotonic() < deadline:
        busy = any(True for pattern in ("requests", "held") for _ in client.scan_iter(f"octavo:{pattern}:*"))
        if not busy and not client.xlen("octavo:finished"):
            return True
        await asyncio.sleep(0.5)
    return False


async def soaked(product: Product, minutes: float, users: int) -> int:
    demo = json.loads((product.data / "demo.json").read_text())
    tenant = demo["tenants"][0]
    cookie = await log_in(demo["url"], tenant["member"]["email"], tenant["member"]["password"])
    site = Site(demo["url"], [each["api_key"] for each in demo["tenants"]], tenant["slug"], cookie)
    client = redis.Redis(unix_socket_path=str(product.run / "valkey.sock"), protocol=2)
    series, book, stopping = Series(), Book(), asyncio.Event()
    at_first = keys_of(client)
    began = time.monotonic()
    clients = asyncio.create_task(load(site, book, users, stopping))
    minute, since = 1, (0, 0)
    while (passed := time.monotonic() - began) < minutes * 60:
        await asyncio.to_thread(look, product, series)
        if passed >= 60 * minute:
            report(f"minute {minute}", series, keys_of(client), product.data, book, since)
            minute, since = minute + 1, (len(book.first_s), len(book.gaps_s))
        await asyncio.sleep(LOOK_EVERY_S - (time.monotonic() - began) % LOOK_EVERY_S)
    stopping.set()
    await clients
    idle = await until_idle(client)
    at_last = keys_of(client)
    report("the end, idle again" if idle else "the end, NOT idle", series, at_last, product.data, book, (0, 0))
    return conclude(series, at_first, at_last, book, minutes) or (0 if idle else 1)


def conclude(series: Series, at_first: Keys, at_last: Keys, book: Book, minutes: float) -> int:
    """Says it; 1 where something is wrong."""
    warm_up_s = min(LONGEST_WARM_UP_S, minutes * 20)
    print(f"\n== memory behind a warm-up of {warm_up_s:.0f} s; more than {BOUND_MB_H:.0f} MB/h is growth ==")
    verdicts = {
        name: judge(series.times, values, BOUND_MB_H, warm_up_s)
        for name, values in sorted(series.rss_mb.items())
        if len(values) == len(series.times) and name != "redis"
    }
    print(aligned([["", ""], *([name, verdict.text] for name, verdict in verdicts.items())]))
    more = Counter(
        {
            kind: count - at_first.lasting[kind]
            for kind, count in at_last.lasting.items()
            if kind not in ONE_EACH and count > at_first.lasting[kind]
        }
    )
    cycled = book.done["cycles"]
    print(f"{cycled} times connected, streamed, disconnected; keys that stay and were not there before: {said(more)}")
    restarted = [name for name, values in series.rss_mb.items() if len(values) != len(series.times)]
    if restarted:
        print(f"not always there: {', '.join(sorted(restarted))}")
    grown = sorted(name for name, verdict in verdicts.items() if verdict.grows)
    print(f"grows: {', '.join(grown) or 'nothing'}; errors: {said(book.errors)}", flush=True)
    return 1 if grown or restarted or book.errors else 0


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.soak", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--users", type=int, default=len(KINDS), help="clients at once, of all kinds in turn")
    args = parser.parse_args(argv)
    with octavo() as product:
        try:
            return asyncio.run(soaked(product, args.minutes, args.users))
        except Broken as error:
            raise ChildError(str(error)) from None


if __name__ == "__main__":
    ended(main)
