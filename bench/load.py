"""Load client: several tenants' users talk to a running Octavo; prints what they had to wait for.

    python -m bench.load --demo var/demo.json                 # POST /v1/chat/completions, streamed
    python -m bench.load --demo var/demo.json --transport ws  # the websocket API

Every user holds a conversation of `--turns` turns; the next turn starts when the last answer has ended, so
tenants x users answers are in flight. TTFT runs from sending to the first text, ITL between two arrivals of text,
both in seconds at the client. Tokens are the server's own count. The workload depends on `--seed` alone.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import websockets

NOUNS = [
    "harbour",
    "engine",
    "table",
    "memory",
    "letter",
    "garden",
    "answer",
    "window",
    "signal",
    "market",
    "bridge",
    "lesson",
    "winter",
]
VERBS = ["explain", "compare", "describe", "list", "summarise", "translate", "improve", "check"]


def sentence(rng: random.Random, words: int) -> str:
    return f"Please {rng.choice(VERBS)} " + " ".join(rng.choice(NOUNS) for _ in range(words)) + "."


@dataclass
class Answer:
    """One turn as its user saw it."""

    ttft_s: float | None = None
    gaps_s: list[float] = field(default_factory=list)
    total_s: float = 0.0
    prompt: int = 0
    cached: int = 0
    output: int = 0
    text: str = ""


async def http_events(
    client: httpx.AsyncClient, key: str, body: dict[str, Any]
) -> AsyncIterator[tuple[str, dict[str, Any] | None]]:
    """Yield (text, usage or None) for every chunk of a streamed chat completion; raise on any error."""
    headers = {"Authorization": f"Bearer {key}"}
    async with client.stream("POST", "/v1/chat/completions", json=body, headers=headers) as reply:
        if reply.status_code != 200:
            raise RuntimeError(f"HTTP {reply.status_code}: {(await reply.aread())[:200]!r}")
        async for line in reply.aiter_lines():
            if not line.startswith("data:") or line == "data: [DONE]":
                continue
            chunk = json.loads(line[5:])
            if "error" in chunk:
                raise RuntimeError(str(chunk["error"]))
            texts = [choice["delta"].get("content") or "" for choice in chunk.get("choices", [])]
            yield "".join(texts), chunk.get("usage")


async def ws_events(url: str, key: str, body: dict[str, Any]) -> AsyncIterator[tuple[str, dict[str, Any] | None]]:
    """The same over the websocket API, one socket a turn."""
    address = url.replace("http", "ws", 1) + "/ws/v1"
    frame = {
        "type": "response.create",
        "input": body["messages"],
        "params": {name: body[name] for name in ("max_tokens", "temperature", "ignore_eos")},
    }
    async with websockets.connect(address, additional_headers={"Authorization": f"Bearer {key}"}) as socket:
        await socket.send(json.dumps(frame))
        async for message in socket:
            event = json.loads(message)
            kind = event["type"]
            if kind == "response.output_text.delta":
                yield event["delta"], None
            elif kind in ("response.completed", "response.incomplete"):
                usage = event["usage"]
                details = {"cached_tokens": usage["cached_tokens"]}
                yield "", {**usage, "prompt_tokens_details": details}
                return
            elif kind in ("error", "response.failed", "response.cancelled"):
                raise RuntimeError(json.dumps(event)[:200])


async def ask(client: httpx.AsyncClient, args: argparse.Namespace, key: str, messages: list[dict[str, str]]) -> Answer:
    body = {
        "model": "default",
        "messages": messages,
        "max_tokens": args.max_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    answer = Answer()
    start = last = time.perf_counter()
    events = http_events(client, key, body) if args.transport == "http" else ws_events(args.url, key, body)
    async for text, usage in events:
        now = time.perf_counter()
        if text:
            if answer.ttft_s is None:
                answer.ttft_s = now - start
            else:
                answer.gaps_s.append(now - last)
            last = now
            answer.text += text
        if usage:
            answer.prompt, answer.output = usage["prompt_tokens"], usage["completion_tokens"]
            answer.cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)
    answer.total_s = time.perf_counter() - start
    return answer


async def user(client: httpx.AsyncClient, args: argparse.Namespace, key: str, name: str, answers: list[Answer]) -> None:
    rng = random.Random(f"{args.seed} {name}")
    messages: list[dict[str, str]] = []
    for _ in range(args.turns):
        messages.append({"role": "user", "content": sentence(rng, args.words)})
        answer = await ask(client, args, key, messages)
        answers.append(answer)
        messages.append({"role": "assistant", "content": answer.text or "-"})


def percentile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else float("nan")


def report(answers: list[Answer], failures: list[BaseException], wall_s: float, in_flight: int) -> dict[str, float]:
    ttft = [a.ttft_s for a in answers if a.ttft_s is not None]
    gaps = [gap for a in answers for gap in a.gaps_s]
    prompt = sum(a.prompt for a in answers)
    return {
        "in flight": in_flight,
        "answers": len(answers),
        "errors": len(failures),
        "wall, s": round(wall_s, 2),
        "output, tok/s": round(sum(a.output for a in answers) / wall_s, 1),
        "prompt tokens": prompt,
        "cached share": round(sum(a.cached for a in answers) / prompt, 3) if prompt else 0.0,
        "TTFT p50, s": round(percentile(ttft, 0.5), 3),
        "TTFT p95, s": round(percentile(ttft, 0.95), 3),
        "ITL p50, ms": round(1e3 * percentile(gaps, 0.5), 1),
        "ITL p95, ms": round(1e3 * percentile(gaps, 0.95), 1),
    }


async def run(args: argparse.Namespace, tenants: list[dict[str, Any]]) -> tuple[dict[str, float], list[BaseException]]:
    answers: list[Answer] = []
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
    async with httpx.AsyncClient(base_url=args.url, timeout=args.timeout, limits=limits) as client:
        await ask(client, args, tenants[0]["api_key"], [{"role": "user", "content": "Hello."}])
        start = time.perf_counter()
        users = [
            user(client, args, tenant["api_key"], f"{tenant['slug']} {number}", answers)
            for tenant in tenants
            for number in range(args.users)
        ]
        results = await asyncio.gather(*users, return_exceptions=True)
        wall_s = time.perf_counter() - start
    failures = [result for result in results if result is not None]
    return report(answers, failures, wall_s, len(users)), failures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--demo", default="var/demo.json", help="the demo.json that make run wrote")
    parser.add_argument("--url", help="default: the one in demo.json")
    parser.add_argument("--transport", choices=["http", "ws"], default="http")
    parser.add_argument("--tenants", type=int, default=4)
    parser.add_argument("--users", type=int, default=4)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--words", type=int, default=30)
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--timeout", type=float, default=600)
    parser.add_argument("--json", help="write the figures here as well")
    args = parser.parse_args()
    demo = json.loads(Path(args.demo).read_text())
    args.url = args.url or demo["url"]
    figures, failures = asyncio.run(run(args, demo["tenants"][: args.tenants]))
    for failure in failures[:5]:
        print(f"error: {failure!r}", file=sys.stderr)
    for name, value in figures.items():
        print(f"{name:>16}  {value}")
    if args.json:
        Path(args.json).write_text(json.dumps(figures))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
