"""What it costs the engine loop that somebody looks at chats' memory: steps with 0 and with 8 looks, by turns.

    python -m bench.watchers MODEL [--chats 8] [--prompt 600] [--rounds 20]

Half of the looks are at chats that run, half at idle ones. A round is 25 steps without and 25 with looks, so that the
machine's moods meet both; figures are the medians and means of all steps of a kind, `show` included, their ratio, and
what `show` itself took, of the thread's own CPU time: a busy neighbour is none of it.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

from engine import EngineConfig, LLMEngine
from engine.protocol import Watch
from engine.regions import Region
from engine.sampling_params import SamplingParams
from engine.worker_memory import WorkerMemory

STEPS = 25
LOOKS = 8


class Sink:
    """In place of the bus: counts what it is given."""

    def __init__(self) -> None:
        self.told = 0

    def remember(self, memories: dict[Any, Any]) -> None:
        self.told += len(memories)


def ask(engine: LLMEngine, chat: str, prompt: int, tokens: int) -> None:
    shared = max(prompt // 2, 1)
    ids = [1000 + n % 5000 for n in range(shared)] + [
        7000 + (n * 31 + hash(chat)) % 9000 for n in range(prompt - shared)
    ]
    regions = [Region(shared, "salt of the team"), Region(len(ids), chat)]
    params = SamplingParams(max_tokens=tokens, temperature=0.0, ignore_eos=True)
    engine.add_request(chat, ids, params, tenant="team", regions=regions, conversation=chat)


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("model")
    options.add_argument("--chats", type=int, default=8)
    options.add_argument("--prompt", type=int, default=600)
    options.add_argument("--rounds", type=int, default=20)
    chosen = options.parse_args()
    tokens = 2 * STEPS * chosen.rounds + 100
    engine = LLMEngine(EngineConfig(model=chosen.model, device="cpu"))
    for number in range(LOOKS // 2):
        ask(engine, f"idle {number}", chosen.prompt, 40)
    while engine.has_work():
        engine.step()
    for number in range(chosen.chats):
        ask(engine, f"live {number}", chosen.prompt, tokens)
    while any(sequence.num_output < 5 for sequence in engine.scheduler.running) or not engine.scheduler.running:
        engine.step()
    watches = [Watch("team", f"{kind} {number}", "") for kind in ("idle", "live") for number in range(LOOKS // 2)]
    sink = Sink()
    memory = WorkerMemory(engine, sink, "bench")  # type: ignore[arg-type]
    spent: dict[int, list[float]] = {0: [], LOOKS: []}
    shows: list[float] = []
    for _ in range(chosen.rounds):
        for looks in (0, LOOKS):
            memory.watch(watches[:looks])
            for _ in range(STEPS):
                began = time.perf_counter()
                engine.step()
                shown, told = time.thread_time(), sink.told
                memory.show({})
                if sink.told > told:
                    shows.append(time.thread_time() - shown)
                spent[looks].append(time.perf_counter() - began)
    for looks, times in spent.items():
        median, mean = 1e3 * statistics.median(times), 1e3 * statistics.fmean(times)
        print(f"{looks} looks: step {median:.3f} ms median, {mean:.3f} ms mean, {1e3 * max(times):.2f} ms longest")
    medians, means = ([of(spent[looks]) for looks in (0, LOOKS)] for of in (statistics.median, statistics.fmean))
    print(f"ratio: {medians[1] / medians[0]:.4f} of the medians, {means[1] / means[0]:.4f} of the means")
    print(
        f"a show: {1e3 * statistics.median(shows):.3f} ms median, {1e3 * max(shows):.2f} ms longest, {len(shows)} shows"
    )
    print(f"share of the loop's time: {sum(shows) / sum(spent[LOOKS]):.4f}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
