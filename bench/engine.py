"""The engine in-process, without Redis and HTTP, on four workloads; with transformers beside it on the third.

    python -m bench.engine [--model PATH] [--weights auto --dtype bfloat16] [--only steps] [--scale 0.125]

- steps: a step of sequences that decode, and prefill;
- chats: conversations of several tenants that share their tenant's system prompt;
- random: nano-vllm's benchmark, 256 requests of random prompts of 100 to 1,024 tokens and outputs of as many, or
  `--scale` of them; transformers' `generate` and `generate_batch` do the same ones (`--no-peers` leaves them out);
- prefix: a step of 16 sequences whose first 512 to 4,096 tokens are shared, or only equally long.

Every form of the C++ decoder's weights (--weights) and every dtype of torch (--dtype) is one column, measured one after
the other in one run; the last column is the first over the last. Steps are timed from outside `LLMEngine.step`, so
schedule, sampling and detokenizing are in.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench import peers
from bench.load import NOUNS
from bench.null import NullRunner
from engine import EngineConfig, LLMEngine, SamplingParams
from engine.config import WEIGHTS
from engine.protocol import ChatMessage, SystemText
from ops.setup import MODEL_DIR

GREEDY: dict[str, Any] = {"temperature": 0.0, "ignore_eos": True}
IDS = (1000, 21000)  # token ids of made-up prompts: plain words
PREFIXES = (512, 1024, 2048, 4096)
NANO_REQUESTS = 256
WIDTH = 44
Rows = dict[str, Callable[[LLMEngine], float]]


@dataclass
class Table:
    """Rows of figures, a column a dtype; the last column compares the first with the last."""

    columns: list[str]
    rows: dict[str, list[float]] = field(default_factory=dict)

    def head(self, title: str) -> None:
        ratio = [f"{self.columns[0]} / {self.columns[-1]}"] if len(self.columns) > 1 else []
        print(f"\n{title:{WIDTH}}" + "".join(f"{name:>22}" for name in [*self.columns, *ratio]), flush=True)

    def row(self, name: str, values: list[float]) -> None:
        self.rows[name] = values
        ratio = [values[0] / values[-1]] if len(values) > 1 else []
        print(f"{name:{WIDTH}}" + "".join(f"{value:>22.2f}" for value in [*values, *ratio]), flush=True)


def words(count: int, seed: int) -> str:
    return " ".join(NOUNS[(seed * 7 + i * i) % len(NOUNS)] for i in range(count))


def tokens(count: int, seed: str) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(*IDS) for _ in range(count)]


# --- steps ------------------------------------------------------------------------------------------------------------


def median_step_ms(engine: LLMEngine, steps: int = 24) -> float:
    times = []
    for _ in range(steps):
        start = time.perf_counter()
        outputs = engine.step()
        times.append(time.perf_counter() - start)
        assert not any(output.finish_reason for output in outputs), "a sequence ended while it was measured"
    return 1e3 * statistics.median(times)


def until_all_decode(engine: LLMEngine, count: int) -> None:
    while len(engine.scheduler.running) < count or any(s.num_output == 0 for s in engine.scheduler.running):
        engine.step()


def end_all(engine: LLMEngine) -> None:
    for sequence in list(engine.scheduler.running):
        engine.abort(sequence.request_id)
    engine.step()


def decode_ms(engine: LLMEngine, sequences: int, context: int) -> float:
    """Median time of a step in which `sequences` decode at about `context` tokens each, nothing shared."""
    for number in range(sequences):
        params = SamplingParams(max_tokens=context, **GREEDY)
        engine.add_request(f"d{number}", tokens(context, f"decode {number}"), params, tenant=f"t{number}")
    until_all_decode(engine, sequences)
    figure = median_step_ms(engine)
    end_all(engine)
    return figure


def prefill_tok_s(engine: LLMEngine, length: int = 1024, times: int = 5) -> float:
    """Median of several prompts that share nothing, one alone at a time."""
    seconds = []
    for number in range(times):
        prompt = tokens(length, f"prefill {number}")
        start = time.perf_counter()
        engine.add_request("p", prompt, SamplingParams(max_tokens=1, **GREEDY), tenant="p")
        while engine.has_work():
            engine.step()
        seconds.append(time.perf_counter() - start)
    return length / statistics.median(seconds)


# --- chats ------------------------------------------------------------------------------------------------------------


def chats_tok_s(engine: LLMEngine, tenants: int = 4, users: int = 4, turns: int = 3, output: int = 64) -> float:
    """Output tokens a second of tenants x users conversations that share their tenant's system prompt."""
    params = SamplingParams(max_tokens=output, **GREEDY)
    systems = [SystemText(words(400, tenant), f"salt {tenant}") for tenant in range(tenants)]
    chats = {(t, u): [ChatMessage("user", words(30, 31 * t + u))] for t in range(tenants) for u in range(users)}
    text = dict.fromkeys(chats, "")
    left = dict.fromkeys(chats, turns)

    def ask(chat: tuple[int, int]) -> None:
        tenant, user = chat
        prompt, regions = engine.tokenizer.render_chat([systems[tenant]], chats[chat], f"chat {chat}")
        engine.add_request(f"{tenant} {user}", prompt, params, tenant=str(tenant), regions=regions)

    start = time.perf_counter()
    for chat in chats:
        ask(chat)
    while engine.has_work():
        for out in engine.step():
            tenant, user = map(int, out.request_id.split())
            chat = (tenant, user)
            text[chat] += out.text
            if out.finish_reason:
                left[chat] -= 1
                if left[chat]:
                    chats[chat] += [
                        ChatMessage("assistant", text[chat] or "-"),
                        ChatMessage("user", words(30, left[chat])),
                    ]
                    text[chat] = ""
                    ask(chat)
    return tenants * users * turns * output / (time.perf_counter() - start)


# --- random requests --------------------------------------------------------------------------------------------------


def random_requests(scale: float) -> peers.Workload:
    """nano-vllm's bench.py: uniform lengths, all at once."""
    rng = random.Random(0)
    count = max(1, round(NANO_REQUESTS * scale))
    lengths = [(rng.randint(100, 1024), rng.randint(100, 1024)) for _ in range(count)]
    return [(tokens(prompt, f"random {number}"), output) for number, (prompt, output) in enumerate(lengths)]


def workload_tok_s(engine: LLMEngine, workload: peers.Workload) -> float:
    start = time.perf_counter()
    for number, (prompt, output) in enumerate(workload):
        engine.add_request(str(number), prompt, SamplingParams(max_tokens=output, **GREEDY))
    count = 0
    while engine.has_work():
        count += sum(len(out.new_token_ids) for out in engine.step())
    assert count == sum(output for _, output in workload), "every request gets all its tokens"
    return count / (time.perf_counter() - start)


def compare_peers(model: str, dtypes: list[str], figures: list[float], workload: peers.Workload, dtype: str) -> None:
    """The peers' rows, with the ratio of each of our columns to them."""
    threads = len(os.sched_getaffinity(0))
    for name, figure in peers.measure(model, dtype, workload, threads).items():
        title = f"transformers {name}, {dtype}"
        if isinstance(figure, str):
            print(f"{title:{WIDTH}}  left out: {' '.join(figure.split())[:120]}", flush=True)
        else:
            ratios = ", ".join(f"{ours} x {mine / figure:.2f}" for ours, mine in zip(dtypes, figures, strict=True))
            print(f"{title:{WIDTH}}{figure:>22.2f}   {ratios}", flush=True)


# --- shared prefixes --------------------------------------------------------------------------------------------------


def prefix_step_ms(engine: LLMEngine, prefix: int, *, shared: bool, sequences: int = 16) -> float:
    """A step of sequences behind a prefix that is one in the pool, or each one's own.

    A shared one is computed. Own ones are not, since what a step costs does not depend on what stands in the blocks: a
    null model draws the first tokens, and the pool has been written to before.
    """
    runner = engine.runner
    params = SamplingParams(max_tokens=256, **GREEDY)
    head = tokens(prefix, "prefix")
    for number in range(sequences):
        prompt = (head if shared else tokens(prefix, f"prefix {number}")) + tokens(16, f"own {number}")
        engine.add_request(f"s{number}", prompt, params, tenant="t" if shared else f"t{number}")
        if shared and number == 0:
            until_all_decode(engine, 1)
    if not shared:
        engine.runner = NullRunner(engine.config, flatten=False)
    until_all_decode(engine, sequences)
    engine.runner = runner
    engine.step()  # block tables and settings of the new rows
    figure = median_step_ms(engine)
    end_all(engine)
    return figure


def write_pool(engine: LLMEngine) -> None:
    """Something finite into every slot: memory that was never written is one page of zeros, and suspiciously fast."""
    runner: Any = engine.runner
    if hasattr(runner, "_decoder"):
        runner._decoder.cache.view("uint16")[...] = 0x3C00  # bfloat16, 1/128; so are the scales of int8
    else:
        runner._kv.data.fill_(1 / 128)


# --- the tables -------------------------------------------------------------------------------------------------------


def make(args: argparse.Namespace, dtype: str, **settings: Any) -> LLMEngine:
    form, _, kv_dtype = dtype.partition("/")
    path: dict[str, Any] = {"weights" if form in WEIGHTS else "dtype": form}
    kv_dtype = kv_dtype or EngineConfig.kv_dtype
    return LLMEngine(EngineConfig(model=args.model, kv_dtype=kv_dtype, device="cpu", **path, **settings))


def close(engine: LLMEngine) -> None:
    end: Callable[[], None] | None = getattr(engine.runner, "close", None)
    if end is not None:
        end()


def by_rows(args: argparse.Namespace, title: str, rows: Rows, **settings: Any) -> Table:
    """Measure every row with an engine of each dtype; one with settings of its own has a pool that was written to."""
    columns = []
    for dtype in args.dtype:
        engine = make(args, dtype, **settings)
        if settings:
            write_pool(engine)
        columns.append([measure(engine) for measure in rows.values()])
        close(engine)
    table = Table(args.dtype)
    table.head(title)
    for name, *values in zip(rows, *columns, strict=True):
        table.row(name, values)
    return table


def steps(args: argparse.Namespace) -> Table:
    rows: Rows = {
        f"step of {n} at 900 tokens, ms": lambda engine, n=n: decode_ms(engine, n, 900)  # type: ignore[misc]
        for n in (1, 4, 16)
    }
    return by_rows(args, "steps", {**rows, "prefill of 1,024 tokens, tok/s": prefill_tok_s})


def chats(args: argparse.Namespace) -> Table:
    return by_rows(args, "chats", {"4 x 4 chats of 3 turns, output tok/s": chats_tok_s})


def random_lengths(args: argparse.Namespace) -> Table:
    workload = random_requests(args.scale)
    figures = []
    for dtype in args.dtype:
        engine = make(args, dtype)
        figures.append(workload_tok_s(engine, workload))
        close(engine)
    prompt, output = sum(len(prompt) for prompt, _ in workload), sum(output for _, output in workload)
    table = Table(args.dtype)
    table.head(f"random, {len(workload)} requests, {prompt:,} + {output:,} tokens")
    table.row("Octavo, output tok/s", figures)
    if args.peers:
        for dtype in args.peer_dtype or ["bfloat16"]:
            compare_peers(args.model, args.dtype, figures, workload, dtype)
    return table


def prefix(args: argparse.Namespace) -> Table:
    rows: Rows = {}
    for length in PREFIXES:
        for shared in (True, False):
            name = f"step of 16, {length:,} tokens {'shared' if shared else 'each its own'}, ms"
            rows[name] = lambda engine, n=length, s=shared: prefix_step_ms(engine, n, shared=s)  # type: ignore[misc]
    room = 16 * (PREFIXES[-1] + 128) // 16
    return by_rows(args, "prefix", rows, num_blocks=room, max_num_seqs=16)


SECTIONS = {"steps": steps, "chats": chats, "random": random_lengths, "prefix": prefix}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=str(MODEL_DIR))
    parser.add_argument("--weights", dest="dtype", action="append", help="default: auto; auto/int8: with such KV")
    parser.add_argument("--dtype", action="append", help="default: bfloat16")
    parser.add_argument("--only", action="append", choices=list(SECTIONS), help="may be given several times")
    parser.add_argument("--scale", type=float, default=1 / 32, help="of the 256 random requests; default 1/32")
    parser.add_argument("--no-peers", dest="peers", action="store_false")
    parser.add_argument("--peer-dtype", action="append", choices=["bfloat16", "float32"], help="default: bfloat16")
    parser.add_argument("--json", help="write the figures here as well")
    args = parser.parse_args(argv or [])
    args.dtype = args.dtype or ["auto", "bfloat16"]
    tables = {name: run(args) for name, run in SECTIONS.items() if not args.only or name in args.only}
    if args.json:
        Path(args.json).write_text(json.dumps({name: vars(table) for name, table in tables.items()}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
