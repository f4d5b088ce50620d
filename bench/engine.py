"""The engine in-process, without Redis and HTTP: a step's time, prefill, and conversations of several tenants.

    python -m bench.engine [--model PATH] [--dtype low-bit --dtype bfloat16]

Every dtype is one column, measured one after the other in one run; the last column is the first over the last. Steps
are timed from outside `LLMEngine.step`, so schedule, sampling and detokenizing are in.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable

from bench.load import NOUNS
from engine import EngineConfig, LLMEngine, SamplingParams
from engine.protocol import ChatMessage, SystemText
from ops.setup import MODEL_DIR

GREEDY = {"temperature": 0.0, "ignore_eos": True}


def words(count: int, seed: int) -> str:
    return " ".join(NOUNS[(seed * 7 + i * i) % len(NOUNS)] for i in range(count))


def decode_ms(engine: LLMEngine, sequences: int, context: int, steps: int = 24) -> float:
    """Median time of a step in which `sequences` decode at about `context` tokens each, nothing shared."""
    for number in range(sequences):
        prompt = [1000 + (number * 997 + i * 31) % 20000 for i in range(context)]
        params = SamplingParams(max_tokens=context, **GREEDY)
        engine.add_request(f"d{number}", prompt, params, tenant=f"t{number}")
    while len(engine.scheduler.running) < sequences or any(s.num_output == 0 for s in engine.scheduler.running):
        engine.step()
    times = []
    for _ in range(steps):
        start = time.perf_counter()
        engine.step()
        times.append(time.perf_counter() - start)
    for number in range(sequences):
        engine.abort(f"d{number}")
    engine.step()
    return 1e3 * statistics.median(times)


def prefill_tok_s(engine: LLMEngine, length: int = 1024) -> float:
    prompt = [2000 + (i * i * 13) % 20000 for i in range(length)]
    start = time.perf_counter()
    engine.add_request("p", prompt, SamplingParams(max_tokens=1, **GREEDY), tenant="p")
    while engine.has_work():
        engine.step()
    return length / (time.perf_counter() - start)


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


ROWS: dict[str, Callable[[LLMEngine], float]] = {
    "step of 1 sequence at 900, ms": lambda engine: decode_ms(engine, 1, 900),
    "step of 4 sequences at 900, ms": lambda engine: decode_ms(engine, 4, 900),
    "step of 16 sequences at 900, ms": lambda engine: decode_ms(engine, 16, 900),
    "prefill of 1,024 tokens, tok/s": prefill_tok_s,
    "4 x 4 chats of 3 turns, output tok/s": chats_tok_s,
}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=str(MODEL_DIR))
    parser.add_argument("--dtype", action="append", help="default: low-bit and bfloat16")
    args = parser.parse_args(argv or [])
    dtypes = args.dtype or ["low-bit", "bfloat16"]
    columns = []
    for dtype in dtypes:
        engine = LLMEngine(EngineConfig(model=args.model, dtype=dtype, device="cpu"))
        columns.append([measure(engine) for measure in ROWS.values()])
    ratio = [f"{dtypes[0]} / {dtypes[-1]}"] if len(dtypes) > 1 else []
    print(f"{'':38}" + "".join(f"{name:>20}" for name in [*dtypes, *ratio]))
    for name, *values in zip(ROWS, *columns, strict=True):
        ratios = [values[0] / values[-1]] if len(values) > 1 else []
        print(f"{name:38}" + "".join(f"{value:>20.2f}" for value in [*values, *ratios]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
