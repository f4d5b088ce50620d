"""What a step costs besides the model: schedule, flatten, bookkeeping, for many sequences and large pools.

    python -m bench.scheduler [--sequences 16,128,1024] [--pools 1k,64k,1M] [--overlap] [--profile]

A null model draws the tokens, so all that is measured is ours, `LLMEngine.step` from outside. Rows:

- decode: every sequence has one token a step (the usual step); the tables are warm, a block is filled every 16 steps;
- mixed: the same, but in each step one request in 64 ends and a new one comes, with a prompt of 64 tokens;
- queue: decode, with as many requests again waiting that do not fit.

Medians of microseconds a step, of the thread's own CPU time: the work is one thread's, and a busy neighbour is none of
it. Promised: below 2 ms at 1,024 sequences, and flat in the pool's size.
"""

from __future__ import annotations

import argparse
import cProfile
import gc
import pstats
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from itertools import count

from bench.null import VOCAB, null_engine
from engine import SamplingParams

BLOCK_SIZE = 16
CONTEXT = 32  # tokens of a decoding sequence at the start; at the end of the steps it has 112 in 7 blocks
TENANTS = 16
STEPS = 80
PROMISED_US = 2000


def size(text: str) -> int:
    """64k -> 65,536; 1M -> 1,048,576."""
    units = {"k": 1 << 10, "m": 1 << 20}
    return int(float(text[:-1]) * units[text[-1].lower()]) if text[-1].lower() in units else int(text)


class Load:
    """`sequences` that decode for longer than anyone measures, spread over tenants, none sharing with another."""

    def __init__(self, sequences: int, blocks: int, overlap: bool) -> None:
        self.sequences = sequences
        self._ids = count()
        self.engine = null_engine(
            block_size=BLOCK_SIZE,
            num_blocks=blocks,
            max_num_seqs=sequences,
            token_budget=max(512, 2 * sequences),
            max_model_len=8192,
            overlap=overlap,
        )

    def add(self, prompt: int, output: int) -> str:
        number = next(self._ids)
        name = f"{number}"
        tokens = [(number * 7919 + i * i * 31) % VOCAB for i in range(prompt)]
        params = SamplingParams(max_tokens=output, ignore_eos=True)
        self.engine.add_request(name, tokens, params, tenant=f"t{number % TENANTS}")
        return name

    def fill(self) -> bool:
        """Whether all of them run; a small pool may not hold them."""
        for _ in range(self.sequences):
            self.add(CONTEXT, 4096)
        for _ in range(self.sequences):
            self.engine.step()
            running = self.engine.scheduler.running
            if len(running) == self.sequences and all(s.num_output for s in running):
                return self.engine.pool.num_available >= self.sequences * STEPS // BLOCK_SIZE
        return False


def decode(load: Load) -> Iterator[Callable[[], object]]:
    while True:
        yield load.engine.step


def mixed(load: Load) -> Iterator[Callable[[], object]]:
    each = max(1, load.sequences // 64)
    oldest = list(load.engine._live)
    while True:
        for name in oldest[:each]:
            load.engine.abort(name)
        oldest = oldest[each:] + [load.add(64, 4096) for _ in range(each)]
        yield load.engine.step


def queue(load: Load) -> Iterator[Callable[[], object]]:
    for _ in range(load.sequences):
        load.add(CONTEXT, 4096)
    while True:
        yield load.engine.step


ROWS = {"decode": decode, "mixed": mixed, "queue": queue}


def measure(
    kind: str, sequences: int, blocks: int, overlap: bool, profile: cProfile.Profile | None = None
) -> float | None:
    """Median microseconds of a step; None where the pool does not hold the sequences."""
    load = Load(sequences, blocks, overlap)
    if not load.fill():
        return None
    steps = ROWS[kind](load)
    for _ in range(3):
        next(steps)()
    gc.collect()
    gc.freeze()  # as the worker does once it has loaded
    times = []
    for _ in range(STEPS):
        step = next(steps)
        if profile is not None:
            profile.enable()
        start = time.thread_time()
        step()
        times.append(time.thread_time() - start)
        if profile is not None:
            profile.disable()
    gc.unfreeze()
    load.engine.check_integrity()
    return 1e6 * statistics.median(times)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sequences", default="16,128,1024")
    parser.add_argument("--pools", default="1k,64k,1M", help="blocks")
    parser.add_argument("--only", choices=sorted(ROWS), action="append")
    parser.add_argument("--overlap", action="store_true", help="every step is launched behind one in flight")
    parser.add_argument("--profile", action="store_true", help="where the time of the largest case goes")
    args = parser.parse_args(argv or [])
    sequences = [size(text) for text in args.sequences.split(",")]
    pools = args.pools.split(",")
    kinds = args.only or list(ROWS)
    if args.profile:
        for kind in kinds:
            profile = cProfile.Profile()
            measure(kind, sequences[-1], size(pools[-1]), args.overlap, profile)
            print(f"\n{kind}: {STEPS} steps of {sequences[-1]} sequences, pool of {pools[-1]} blocks")
            pstats.Stats(profile, stream=sys.stdout).sort_stats("tottime").print_stats(16)
        return 0
    print(
        f"{'us a step':12}{'sequences':>10}"
        + "".join(f"{'pool ' + pool:>12}" for pool in pools)
        + f"{'largest/least':>16}"
    )
    worst = 0.0
    for kind in kinds:
        for number in sequences:
            figures = [measure(kind, number, size(pool), args.overlap) for pool in pools]
            known = [figure for figure in figures if figure is not None]
            if number >= 1024:
                worst = max([worst, *known])
            cells = "".join(f"{'-':>12}" if figure is None else f"{figure:12,.0f}" for figure in figures)
            flat = f"{max(known) / min(known):16.2f}" if len(known) > 1 else f"{'':16}"
            print(f"{kind:12}{number:10,}{cells}{flat}", flush=True)
    print(f"\n-: the pool does not hold so many. Promised: below {PROMISED_US:,} us at 1,024 sequences", end="")
    print(f"; worst: {worst:,.0f} us." if worst else ".")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
