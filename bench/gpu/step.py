"""A decode step of an 8B model with random weights, through the engine, against the bytes it must read.

The time of a step is what `LLMEngine.step` takes from one call to the next, drawing and schedule included. The device's
share of it runs from where a step's first work begins on the device to where its last ends; in the rest of the time it
waits for the host. What the host does, covered or not, is the time of a call less what it waits for a result.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from bench.gpu.clock import Clock, copy_bytes_s
from bench.gpu.counts import step_bytes, weights_read
from bench.gpu.made import random_like
from bench.gpu.model import make_engine
from bench.gpu.report import Report
from bench.gpu.sizes import Sizes

WARM_UP = 8
"""Steps before those that are measured."""


class Watch:
    """Stands between an engine and its runner: when steps begin and end, and how long their results are waited for."""

    def __init__(self, runner: Any, device: torch.device) -> None:
        self._launch, self._cuda = runner.launch, device.type == "cuda"
        self._marks: list[tuple[Any, Any]] = []
        self.waited = 0.0
        runner.launch = self.launch

    def _now(self) -> Any:
        if not self._cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def launch(self, *arguments: Any) -> Any:
        begin = self._now()
        pending = self._launch(*arguments)
        self._marks.append((begin, self._now()))
        return _Watched(pending, self)

    def forget(self) -> None:
        self.waited = 0.0
        self._marks.clear()

    def device_seconds(self) -> float:
        """The median of the steps since `forget`. On a CPU they are done when they have been launched."""
        if not self._cuda:
            return statistics.median(end - begin for begin, end in self._marks)
        torch.cuda.synchronize()
        return statistics.median(float(begin.elapsed_time(end)) / 1e3 for begin, end in self._marks)


class _Watched:
    def __init__(self, pending: Any, watch: Watch) -> None:
        self._pending, self._watch = pending, watch

    def result(self) -> Any:
        start = time.perf_counter()
        try:
            return self._pending.result()
        finally:
            self._watch.waited += time.perf_counter() - start


def run(report: Report, sizes: Sizes, device: torch.device, seed: int) -> None:
    torch.manual_seed(seed)
    clock = Clock(device)
    bandwidth = copy_bytes_s(clock, sizes.copy_bytes)
    report.row("copy bandwidth", bandwidth / 1e9, "GB/s", note="bytes read and written")
    report.attempt("products of one step alone", lambda: products(report, sizes, device, clock, bandwidth))
    report.attempt("decode steps", lambda: steps(report, sizes, device, bandwidth, seed))


def products(report: Report, sizes: Sizes, device: torch.device, clock: Clock, bandwidth: float) -> None:
    """What torch's matrix products give for the shapes of one layer: a step cannot be quicker than they are."""
    shape, dtype = sizes.step_shape, torch.bfloat16
    pairs = [
        (shape.hidden, (shape.heads + 2 * shape.kv_heads) * shape.dim),
        (shape.heads * shape.dim, shape.hidden),
        (shape.hidden, 2 * shape.inner),
        (shape.inner, shape.hidden),
    ]
    weights = [random_like((out, into), dtype, device, into**-0.5) for into, out in pairs]
    for batch in sizes.step_batches:
        inputs = [random_like((batch, into), dtype, device) for into, _ in pairs]

        def work(inputs: list[torch.Tensor] = inputs) -> None:
            for x, weight in zip(inputs, weights, strict=True):
                torch.nn.functional.linear(x, weight)

        seconds = clock.seconds(work)
        floor = sum(weight.numel() for weight in weights) * dtype.itemsize / bandwidth
        note = f"{1e6 * seconds:,.1f} us, where their bytes take {1e6 * floor:,.1f} us"
        report.row(f"a layer's products, batch {batch}", seconds / floor, "x the floor", note=note)


def steps(report: Report, sizes: Sizes, device: torch.device, bandwidth: float, seed: int) -> None:
    shape, most = sizes.step_shape, max(sizes.step_batches)
    length = sizes.step_context + 4 * (WARM_UP + sizes.steps)
    engine = make_engine(
        shape,
        device,
        max_model_len=length,
        max_num_seqs=most,
        token_budget=max(sizes.token_budget // 2, most),
        num_blocks=(most + 1) * -(-length // sizes.block_size),
        block_size=sizes.block_size,
        # Only what a step takes is wanted: prompts are random, and nothing is found again.
        prefix_caching=False,
    )
    itemsize = 2 if device.type == "cuda" else 4
    size = weights_read(shape) * itemsize
    report.row("weights that a step reads", size / 1e9, "GB", note=f"{weights_read(shape):,} numbers")
    watch = Watch(engine.runner, device)
    for batch in sizes.step_batches:

        def one(batch: int = batch) -> None:
            _measure(report, sizes, engine, watch, batch, bandwidth, itemsize, random.Random(seed + batch))

        report.attempt(f"decode step, batch {batch}", one)


def _measure(
    report: Report,
    sizes: Sizes,
    engine: Any,
    watch: Watch,
    batch: int,
    bandwidth: float,
    itemsize: int,
    rng: random.Random,
) -> None:
    from engine import SamplingParams

    shape = sizes.step_shape
    params = SamplingParams(max_tokens=4 * (WARM_UP + sizes.steps), ignore_eos=True, temperature=0.6)
    for number in range(batch):
        prompt = [rng.randrange(shape.vocabulary) for _ in range(sizes.step_context)]
        engine.add_request(f"{batch}-{number}", prompt, params)
    try:
        running = engine.scheduler.running
        while len(running) < batch or any(s.num_output == 0 for s in running):
            engine.step()
            if report.left() <= 0:
                raise TimeoutError("no time was left behind the prompts")
        _repeat(engine.step, WARM_UP)
        watch.forget()
        before = sum(s.num_tokens for s in running)
        start = time.perf_counter()
        _repeat(engine.step, sizes.steps)
        seconds = (time.perf_counter() - start) / sizes.steps
        busy = seconds - watch.waited / sizes.steps
        contexts = (before + sum(s.num_tokens for s in running)) // 2
        on_device = watch.device_seconds()
    finally:
        for number in range(batch):
            engine.abort(f"{batch}-{number}")
        while engine.has_work():
            engine.step()
    floor = step_bytes(shape, [contexts], itemsize) / bandwidth
    report.row(
        f"decode step, batch {batch} x {contexts // batch:,} tokens",
        seconds / floor,
        "x the floor",
        note=f"{1e3 * seconds:.3f} ms, of these {1e3 * on_device:.3f} ms on the device; floor {1e3 * floor:.3f} ms",
        measures={"floor_times": seconds / floor},
    )
    share = 100 * max(0.0, seconds - on_device) / seconds
    note = f"the host is busy for {1e3 * busy:.3f} ms of a step ({100 * busy / seconds:.0f} %), covered or not"
    report.row(
        f"host time that the device waits for, batch {batch}", share, "%", note=note, measures={"host_share": share}
    )


def _repeat(step: Callable[[], object], times: int) -> None:
    for _ in range(times):
        step()
