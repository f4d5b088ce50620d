"""What it costs a worker to count and time what it does, beside the steps that it counts; and to be read.

    python -m bench.metrics [--model PATH] [--sequences 1,16,32,256]

For each number of sequences that decode: a step of the real model, from outside `LLMEngine.step`; what the engine loop
calls of `engine.measures` for such a step, timed over thousands of them; and the share of the one that the other takes.
Numbers beyond what the model is run with have no step, and so no share. Then what a scrape takes, out of the same
engine as it runs: a thread of its own does it, which holds the interpreter's lock for that long every 15 s.

Promised: counting takes at most 0.1 % of a step, and a scrape at most 0.1 % of the time.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from itertools import count

from prometheus_client import CollectorRegistry, generate_latest

from bench.engine import end_all, median_step_ms, tokens, until_all_decode
from engine import EngineConfig, LLMEngine, SamplingParams
from engine.measures import Measures
from engine.metrics import WorkerCollector
from engine.protocol import WorkerDetails
from ops.setup import MODEL_DIR

RUN_AT_MOST = 32
CONTEXT = 200  # tokens of a sequence
STEPS = 5000
SCRAPES = 50
SCRAPE_EVERY_S = 15.0
PROMISED = 0.001


def counting_us(sequences: int) -> float:
    """Microseconds of the thread's own time for a step in which so many sequences got a token."""
    measures = Measures()
    times = []
    clock = count()
    for _ in range(9):
        began = time.thread_time()
        for _ in range(STEPS // 9):
            now = next(clock) / 32
            last = now - 1 / 32
            for _ in range(sequences):
                measures.said(last)
            measures.stepped(last, now, sequences)
        times.append((time.thread_time() - began) / (STEPS // 9))
    return 1e6 * statistics.median(times)


def fill(engine: LLMEngine, sequences: int) -> None:
    for number in range(sequences):
        params = SamplingParams(max_tokens=2000, temperature=0.0, ignore_eos=True)
        engine.add_request(f"s{number}", tokens(CONTEXT, f"own {number}"), params, tenant=f"t{number % 4}")
    until_all_decode(engine, sequences)


def scrape_ms(engine: LLMEngine) -> float:
    """With histograms that have seen something, and sequences that run."""
    details = WorkerDetails(
        id="w", model="m", context=engine.context, block_size=engine.block_size, num_blocks=engine.num_blocks, pid=1
    )
    registry = CollectorRegistry()
    registry.register(WorkerCollector(engine, Measures(), lambda: details))
    times = []
    for _ in range(SCRAPES):
        began = time.thread_time()
        generate_latest(registry)
        times.append(time.thread_time() - began)
    return 1e3 * statistics.median(times)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=str(MODEL_DIR))
    parser.add_argument("--sequences", default="1,16,32,256")
    args = parser.parse_args(argv)
    engine = LLMEngine(EngineConfig(model=args.model, device="cpu"))
    print(f"{'sequences':>10}{'step, ms':>12}{'counting, us':>15}{'share':>10}")
    worst = scrape = 0.0
    for sequences in map(int, args.sequences.split(",")):
        counting = counting_us(sequences)
        if sequences > RUN_AT_MOST:
            print(f"{sequences:>10}{'-':>12}{counting:>15.2f}{'-':>10}", flush=True)
            continue
        fill(engine, sequences)
        step = median_step_ms(engine)
        worst = max(worst, counting / step / 1e3)
        print(f"{sequences:>10}{step:>12.2f}{counting:>15.2f}{counting / step / 1e3:>10.4%}", flush=True)
        scrape = max(scrape, scrape_ms(engine))
        end_all(engine)
    print(f"\nA scrape: {scrape:.2f} ms, {scrape / 1e3 / SCRAPE_EVERY_S:.4%} of the time.")
    kept = worst <= PROMISED and scrape / 1e3 / SCRAPE_EVERY_S <= PROMISED
    print(f"Promised: at most {PROMISED:.1%} of both: {'kept' if kept else 'BROKEN'}.")
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
