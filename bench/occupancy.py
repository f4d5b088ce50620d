"""What publishing the block table costs: the engine's own thread, and the ones that encode and compress.

    python -m bench.occupancy [--model PATH] [--seconds 15]

Rows, each with the frames that a worker makes, five a second and no more, for as long as --seconds say:

- the real model, and 16 conversations of 4 tenants that go on and are asked anew as they end;
- a model without arithmetic whose steps take as long as a GPU's, in a pool of 100,000 blocks that is three quarters
  full: 16 and 256 sequences of 4,000 tokens, some 25,000 and 50,000 prompt tokens a second as they end and others come.

Shares of the time that passed, measured in the run itself: of the engine's loop (promised: 1 % at most), and of the
packing thread's processor time. Then milliseconds of the loop for a change and for a whole frame, the median and the
worst, and the bytes of each.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from bench.null import null_engine
from engine import EngineConfig, LLMEngine, SamplingParams
from engine.occupancy import SHARE, WHOLE_EVERY_MS, Frame, Occupancy, Pace
from engine.occupancy_log import Entry, pack
from ops.setup import MODEL_DIR

POOL = 100_000
CONTEXT = 4000
ANSWER = 128
WHOLE = 5
"""Whole frames, for their cost alone: one comes a minute."""


@dataclass
class Found:
    """`loop_s`: of each frame in the engine's thread, by whether it was a whole one."""

    elapsed_s: float = 0.0
    packing_s: float = 0.0
    steps: int = 0
    loop_s: dict[bool, list[float]] = field(default_factory=lambda: {False: [], True: []})
    entries: list[Entry] = field(default_factory=list)

    @property
    def share(self) -> float:
        return sum(self.loop_s[False]) / self.elapsed_s + statistics.mean(self.loop_s[True]) / (WHOLE_EVERY_MS / 1000)

    def size(self, whole: bool) -> float:
        sizes = [entry.size for entry in self.entries if entry.whole is whole]
        return statistics.mean(sizes) / 1024 if sizes else 0.0


class Load:
    """`sequences` at once, each with its tenant's prefix; one that has ended is followed by another."""

    def __init__(self, engine: LLMEngine, sequences: int, tenants: int, prompt: int, answer: int, own: int) -> None:
        self.engine = engine
        self._numbers = count()
        self._shape = tenants, prompt, own
        self.answer = answer
        self.step_s = 0.0  # what a step takes at least
        for _ in range(sequences):
            self.add()

    def add(self) -> None:
        tenants, prompt, own = self._shape
        number = next(self._numbers)
        tenant = number % tenants
        tokens = [1000 + (tenant * 7919 + i * 31) % 9000 for i in range(prompt - own)]
        tokens += [1000 + (number * 104_729 + i * i * 17) % 20_000 for i in range(own)]
        params = SamplingParams(max_tokens=self.answer + number % 64, ignore_eos=True, temperature=0.0)
        self.engine.add_request(f"{number}", tokens, params, tenant=f"7b0f7c0e-0000-7000-8000-{tenant:012}")

    def step(self) -> None:
        ends = time.monotonic() + self.step_s
        for output in self.engine.step():
            if output.finish_reason:
                self.add()
        if self.step_s:
            time.sleep(max(0.0, ends - time.monotonic()))


def measure(load: Load, seconds: float) -> Found:
    found = Found()
    occupancy = Occupancy(load.engine, worker="bench")
    packer = ThreadPoolExecutor(1)

    def packing(frame: Frame) -> None:
        began = time.thread_time()
        found.entries.append(pack(frame))
        found.packing_s += time.thread_time() - began

    # What has gathered before anybody looked is no worker's usual frame.
    occupancy.frame(int(time.monotonic() * 1000))
    gc.collect()
    gc.freeze()  # a look for garbage takes longer than any frame, wherever it falls
    started = now = time.monotonic()
    frame_at, pace = 0.0, Pace()
    while now - started < seconds:
        load.step()
        found.steps += 1
        began = time.monotonic()
        if began >= frame_at:
            frame = occupancy.frame(int(began * 1000))
            if frame is not None:
                packer.submit(packing, frame)
            took = time.monotonic() - began
            frame_at = began + pace.wait_s(took)
            found.loop_s[False].append(took)
        now = time.monotonic()
    packer.shutdown()
    found.elapsed_s = now - started
    for _ in range(WHOLE):
        load.step()
        began = time.monotonic()
        frame = occupancy.frame(int(began * 1000), whole=True)
        found.loop_s[True].append(time.monotonic() - began)
        assert frame is not None
        found.entries.append(pack(frame))
    gc.unfreeze()
    return found


def row(name: str, found: Found) -> str:
    changes, wholes = ([1000 * value for value in found.loop_s[whole]] for whole in (False, True))
    return (
        f"{name:40}{100 * found.share:8.3f} %{100 * found.packing_s / found.elapsed_s:8.3f} %"
        f"{statistics.median(changes):9.2f}{max(changes):9.2f}{statistics.median(wholes):9.2f}{max(wholes):9.2f}"
        f"{found.size(False):9.1f}{found.size(True):9.1f}{len(changes):8}{found.steps:8}"
    )


def full_pool(sequences: int, answer: int, step_s: float) -> Load:
    """Three quarters hold something: what runs, and what is cached of others. Answers end at different times."""
    engine = null_engine(
        block_size=16, num_blocks=POOL, max_num_seqs=sequences, token_budget=8192, max_model_len=2 * CONTEXT
    )
    load = Load(engine, sequences, tenants=20, prompt=CONTEXT, answer=ANSWER // 4, own=CONTEXT - 400)
    while engine.pool.num_free > POOL // 4:
        load.step()
    load.answer, load.step_s = answer, step_s
    for _ in range(ANSWER):
        load.step()
    return load


def real(model: str) -> Load:
    engine = LLMEngine(EngineConfig(model=model, max_num_seqs=16))
    load = Load(engine, 16, tenants=4, prompt=200, answer=ANSWER, own=80)
    for _ in range(30):
        load.step()
    return load


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.occupancy", description=str(__doc__).split("\n")[0])
    parser.add_argument("--model", default=str(MODEL_DIR))
    parser.add_argument("--seconds", type=float, default=15.0)
    options: Any = parser.parse_args(argv)
    print(
        f"{'':40}{'loop':>10}{'packing':>10}{'change':>9}{'worst':>9}{'whole':>9}{'worst':>9}"
        f"{'KiB':>9}{'whole':>9}{'frames':>8}{'steps':>8}"
    )
    worst = 0.0
    for name, made in (
        ("real model, 16 conversations", lambda: real(options.model)),
        (f"{POOL:,} blocks, 16 sequences", lambda: full_pool(16, 500, 0.005)),
        (f"{POOL:,} blocks, 256 sequences", lambda: full_pool(256, 1000, 0.02)),
    ):
        found = measure(made(), options.seconds)
        worst = max(worst, found.share)
        print(row(name, found), flush=True)
    print(f"the engine loop's share at most: {100 * worst:.3f} % (promised {100 * SHARE:.0f} %)")
    return int(worst > SHARE)


if __name__ == "__main__":
    sys.exit(main())
