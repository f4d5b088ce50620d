"""Fairness simulated: the real engine and scheduler, a null model, and a clock that a step moves by its tokens.

    python -m bench.fairness [--scale 1] [--csv FILE] [--only flood]

Service is what a tenant is charged for, counted here once more from the batches: prompt tokens computed (weight 1)
and output tokens (weight 2), divided by the tenant's weight. For every scenario it prints

- the largest service gap: over all intervals in which two tenants both have requests waiting, how much more service
  one got than the other; beside it the bound 2 max(w_p L_input, w_q M) of VTC (arXiv 2401.00588, theorem 4.4), which
  does not grow with time, and the gap in each half of the run, which shows whether ours does;
- the cost against first come, first served: the same requests at the same times under one tenant's name;
- for the tenant that sends one request at a time beside a flood, the steps to its first token: alone, fair, and FCFS.
"""

from __future__ import annotations

import argparse
import csv
import heapq
import random
import sys
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import combinations
from statistics import median

from bench.null import VOCAB, NullRunner
from engine import EngineConfig, LLMEngine, SamplingParams
from engine.fairness import OUTPUT_COST, PROMPT_COST
from engine.flat_batch import NOTHING
from engine.sampler import Drawn
from engine.scheduler import Batch
from engine.sequence import Sequence

# What a 2-core CPU takes for SmolLM2 in low bits, in round figures; the proportions matter, not the machine.
STEP_S, DECODE_S, PREFILL_S = 0.0035, 0.0012, 0.0004
CONFIG = EngineConfig(block_size=16, num_blocks=1024, max_num_seqs=16, token_budget=256)


@dataclass(frozen=True)
class Request:
    at_s: float
    tenant: str
    prompt: int
    output: int
    weight: float = 1.0


@dataclass
class Run:
    """What came of some requests. `service`: cumulative weighted service of every tenant after every step."""

    seconds: float = 0.0
    tokens: int = 0
    steps: int = 0
    preemptions: int = 0
    at_s: list[float] = field(default_factory=list)
    service: dict[str, list[float]] = field(default_factory=dict)
    waiting: list[frozenset[str]] = field(default_factory=list)
    first_token: dict[int, int] = field(default_factory=dict)  # steps from submission, by the request's number


class Meter(NullRunner):
    """Counts a step's time and everybody's service as the batches pass."""

    def __init__(self, requests: list[Request]) -> None:
        super().__init__(CONFIG, flatten=False)
        self._requests = requests
        self.step_s = 0.0
        self.tokens = 0
        self.service: dict[str, float] = defaultdict(float)
        self._counted: dict[Sequence, int] = {}  # prompt tokens of live sequences: what is recomputed is not served

    def run(self, batch: Batch, behind: Batch = NOTHING) -> dict[Sequence, Drawn]:
        drawn = super().run(batch, behind)
        prefill = sum(count for sequence, count in batch.items() if sequence.num_computed + count < sequence.num_tokens)
        decodes = len(drawn)
        for sequence, count in batch.items():
            if sequence in drawn:
                prefill += count - 1
            done = min(sequence.num_computed + count, sequence.prompt_len)
            known = self._counted.get(sequence, sequence.num_cached)
            if done > known:
                self.service[self._tenant(sequence)] += PROMPT_COST * (done - known)
                self._counted[sequence] = done
                self.tokens += done - known
        for sequence in drawn:
            self.service[self._tenant(sequence)] += OUTPUT_COST
        self.tokens += decodes
        self.step_s = STEP_S + DECODE_S * decodes + PREFILL_S * prefill
        return drawn

    def _tenant(self, sequence: Sequence) -> str:
        """The real one, also where the engine knows all requests under one name."""
        return self._requests[int(sequence.request_id)].tenant


def simulate(requests: list[Request], *, fcfs: bool = False) -> Run:
    """Serve all requests, each submitted at its time, and until the last has ended."""
    meter, run = Meter(requests), Run()
    engine = LLMEngine(CONFIG, runner=meter)
    weights = {request.tenant: request.weight for request in requests}
    run.service = {tenant: [] for tenant in sorted(weights)}
    submitted: dict[str, int] = {}
    queued = Counter[str]()  # requests that have not begun, by their real tenant
    todo = [(request.at_s, number) for number, request in enumerate(requests)]
    heapq.heapify(todo)
    while todo or engine.has_work():
        if not engine.has_work():
            run.seconds = max(run.seconds, todo[0][0])
        while todo and todo[0][0] <= run.seconds:
            number = heapq.heappop(todo)[1]
            request, name = requests[number], str(number)
            tokens = [(number * 7919 + i * i * 31 + 1) % VOCAB for i in range(request.prompt)]
            params = SamplingParams(max_tokens=request.output, ignore_eos=True)
            tenant = "everyone" if fcfs else request.tenant
            engine.add_request(name, tokens, params, tenant=tenant, weight=1.0 if fcfs else request.weight)
            submitted[name] = run.steps
            queued[request.tenant] += 1
        outputs = engine.step()
        run.steps += 1
        run.seconds += meter.step_s
        for output in outputs:
            queued[requests[int(output.request_id)].tenant] -= output.started is not None
            if output.completion_tokens == 1 and output.new_token_ids:
                run.first_token[int(output.request_id)] = run.steps - submitted[output.request_id]
        run.at_s.append(run.seconds)
        for tenant, series in run.service.items():
            series.append(meter.service[tenant] / weights[tenant])
        run.waiting.append(frozenset(tenant for tenant, count in queued.items() if count))
    run.tokens, run.preemptions = meter.tokens, engine.scheduler.preemptions
    engine.check_integrity()
    return run


def largest_gap(run: Run, start: int = 0, end: int | None = None) -> float:
    """The most by which one tenant's service outgrew another's over any interval in which both had a queue."""
    most = 0.0
    for one, other in combinations(run.service, 2):
        low = high = None
        for step in range(start, len(run.at_s) if end is None else end):
            if not {one, other} <= run.waiting[step]:
                low = high = None
                continue
            difference = run.service[one][step] - run.service[other][step]
            low = difference if low is None else min(low, difference)
            high = difference if high is None else max(high, difference)
            most = max(most, high - low)
    return most


def bound(requests: list[Request]) -> float:
    """VTC's, in weighted service: M is what can run at once, in tokens."""
    longest = max(request.prompt for request in requests)
    running = CONFIG.max_num_seqs * max(request.prompt + request.output for request in requests)
    pool = CONFIG.num_blocks * CONFIG.block_size if CONFIG.num_blocks else running
    least_weight = min(request.weight for request in requests)
    return 2 * max(PROMPT_COST * longest, OUTPUT_COST * min(running, pool)) / least_weight


# --- scenarios --------------------------------------------------------------------------------------------------------


def flood(tenant: str, count: int, prompt: int, output: int, weight: float = 1.0, seed: int = 0) -> list[Request]:
    """All at once, with lengths that vary by half around the given ones."""
    rng = random.Random(f"{seed} {tenant}")
    return [
        Request(0.0, tenant, int(prompt * rng.uniform(0.5, 1.5)), int(output * rng.uniform(0.5, 1.5)), weight)
        for _ in range(count)
    ]


def flood_and_single(scale: float) -> list[Request]:
    """A has hundreds waiting; B asks something every two seconds."""
    count = int(400 * scale)
    singles = [Request(3.0 + 2.0 * number, "B", 96, 32) for number in range(max(2, int(25 * scale)))]
    return flood("A", count, 128, 64) + singles


def equal_floods(scale: float) -> list[Request]:
    each = int(120 * scale)
    return mixed(*(flood(tenant, each, 128, 64) for tenant in "ABCD"))


def weights_1_3(scale: float) -> list[Request]:
    return mixed(flood("A", int(150 * scale), 128, 64, 1.0), flood("B", int(450 * scale), 128, 64, 3.0))


def long_and_short(scale: float) -> list[Request]:
    return mixed(flood("A", int(80 * scale), 1024, 24), flood("B", int(320 * scale), 32, 96))


def mixed(*floods: list[Request]) -> list[Request]:
    """Those of all tenants in one random order of arrival: which only FCFS can tell."""
    requests = [request for requests in floods for request in requests]
    random.Random(1).shuffle(requests)
    return requests


SCENARIOS: dict[str, Callable[[float], list[Request]]] = {
    "flood and single": flood_and_single,
    "equal floods": equal_floods,
    "weights 1 : 3": weights_1_3,
    "long and short": long_and_short,
}


# --- output -----------------------------------------------------------------------------------------------------------


def plot(run: Run, width: int = 72, height: int = 12) -> str:
    """Cumulative service over time; a star where several tenants are equal."""
    top = max(series[-1] for series in run.service.values()) or 1.0
    grid = [[" "] * width for _ in range(height)]
    step = 0
    for column in range(width):
        while step < len(run.at_s) - 1 and run.at_s[step] < run.seconds * (column + 1) / width:
            step += 1
        for tenant, series in run.service.items():
            row = height - 1 - min(height - 1, int(series[step] / top * height))
            grid[row][column] = tenant if grid[row][column] == " " else "*"
    lines = [f"{top:>9,.0f} |" + "".join(grid[0])] + [f"{'':>9} |" + "".join(row) for row in grid[1:]]
    return "\n".join([*lines, f"{'0':>9} +" + "-" * width, f"{'':>11}0 s{run.seconds:>{width - 5},.0f} s"])


def first_tokens(requests: list[Request], run: Run, tenant: str) -> list[int]:
    return [steps for number, steps in run.first_token.items() if requests[number].tenant == tenant]


def write_csv(path: str, runs: dict[str, Run]) -> None:
    with open(path, "w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["scenario", "seconds", "tenant", "service"])
        for name, run in runs.items():
            for tenant, series in run.service.items():
                points = zip(run.at_s, series, strict=True)
                table.writerows([name, f"{at:.4f}", tenant, f"{value:.1f}"] for at, value in points)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", type=float, default=1.0, help="of the number of requests")
    parser.add_argument("--only", action="append", help="scenarios whose name contains this")
    parser.add_argument("--csv", help="write every step's time, tenant and service here")
    args = parser.parse_args(argv or [])
    rows, runs = [], {}
    for name, make in SCENARIOS.items():
        if args.only and not any(part in name for part in args.only):
            continue
        requests = make(args.scale)
        fair, fcfs = simulate(requests), simulate(requests, fcfs=True)
        assert fair.tokens == fcfs.tokens, "both runs serve the same tokens"
        half = len(fair.at_s) // 2
        gaps = [largest_gap(fair), largest_gap(fair, 0, half), largest_gap(fair, half), bound(requests)]
        rows.append((name, gaps, fair.seconds, fcfs.seconds, fair.preemptions))
        print(f"\n{name}: weighted service of each tenant over {fair.steps:,} steps")
        print(plot(fair))
        if "single" in name:
            alone = simulate([request for request in requests if request.tenant == "B"])
            steps = [
                sorted(alone.first_token.values()),
                *(sorted(first_tokens(requests, r, "B")) for r in (fair, fcfs)),
            ]
            print(f"\n  steps to B's first token  {'median':>8}{'most':>8}")
            for label, values in zip(("alone", "fair", "first come"), steps, strict=True):
                print(f"  {label:26}{median(values):>8,.0f}{values[-1]:>8,}")
        runs[name] = fair
    if args.csv:
        write_csv(args.csv, runs)
    print(f"\n{'scenario':20}{'largest gap':>12}{'1st half':>10}{'2nd half':>10}{'bound':>9}", end="")
    print(f"{'fair, s':>10}{'FCFS, s':>10}{'cost':>8}{'preempted':>11}")
    for name, (gap, first, second, most), fair_s, fcfs_s, preempted in rows:
        print(f"{name:20}{gap:12,.0f}{first:10,.0f}{second:10,.0f}{most:9,.0f}{fair_s:10,.1f}{fcfs_s:10,.1f}", end="")
        print(f"{fair_s / fcfs_s - 1:8.1%}{preempted:11,}")
    print(
        "Service in prompt tokens + 2 x output tokens, by weight; 0 gap: never two queues at once. Promised cost: 3 %."
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
