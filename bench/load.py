"""Load client: several tenants' users talk to an OpenAI-compatible server; says what they had to wait for.

    python -m bench.load --demo var/demo.json                 # POST /v1/chat/completions, streamed
    python -m bench.load --demo var/demo.json --transport ws  # the websocket API
    python -m bench.load --url http://127.0.0.1:8080          # any other server, without keys

Every user holds a conversation of some turns behind its tenant's system prompt; the next turn starts when the last
answer has ended, so tenants x users answers are in flight. TTFT runs from sending to the first text, ITL between two
arrivals of text, both in seconds at the client. Tokens are the server's own count. What is sent depends on the `Work`
alone, up to the answers, which are part of the next turn. It knows nothing of how a server was started.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import time
from collections.abc import AsyncIterator, Sequence
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
SUBJECTS = [
    "the team",
    "every guest",
    "a colleague",
    "the reader",
    "our office",
    "the caller",
    "a visitor",
    "the editor",
]
RULES = [
    "must mention",
    "should avoid",
    "may ask about",
    "never forgets",
    "always names",
    "can borrow",
    "often repeats",
]
KINDS = ["quiet", "early", "plain", "careful", "short", "public", "second", "open", "friendly", "exact"]
PLACES = ["before noon", "in writing", "near the desk", "without haste", "on request", "after a call", "at the counter"]
Events = AsyncIterator[tuple[str, dict[str, Any] | None]]


def sentence(rng: random.Random, words: int) -> str:
    return f"Please {rng.choice(VERBS)} " + " ".join(rng.choice(NOUNS) for _ in range(words)) + "."


def house_rules(rng: random.Random, words: int) -> str:
    """A system prompt of exactly so many words: rules of an office that does not exist."""
    said: list[str] = []
    while len(said) < words:
        thing = f"{rng.choice(KINDS)} {rng.choice(NOUNS)}"
        rule = f"{rng.choice(SUBJECTS)} {rng.choice(RULES)} the {thing} {rng.choice(PLACES)}."
        said += (rule[0].upper() + rule[1:]).split()
    return " ".join(said[:words])


@dataclass(frozen=True)
class Work:
    """What is asked for: `tenants` x `users` conversations of `turns` turns of `words` words, each answered with
    exactly `max_tokens` tokens, behind a system prompt of `system_words` words a tenant (0: none)."""

    tenants: int = 4
    users: int = 4
    turns: int = 3
    system_words: int = 450
    words: int = 30
    max_tokens: int = 64
    seed: int = 0

    @property
    def in_flight(self) -> int:
        return self.tenants * self.users


@dataclass(frozen=True)
class Target:
    """A server: tenant t uses key t, modulo their number; without keys nothing is authorised."""

    url: str
    keys: Sequence[str] = ()
    transport: str = "http"
    timeout_s: float = 600.0

    def headers(self, tenant: int) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.keys[tenant % len(self.keys)]}"} if self.keys else {}


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


async def http_events(client: httpx.AsyncClient, headers: dict[str, str], body: dict[str, Any]) -> Events:
    """Yield (text, usage or None) for every chunk of a streamed chat completion; raise RuntimeError on any error."""
    async with client.stream("POST", "/v1/chat/completions", json=body, headers=headers) as reply:
        if reply.status_code != 200:
            raise RuntimeError(f"HTTP {reply.status_code}: {(await reply.aread())[:200]!r}")
        async for line in reply.aiter_lines():
            if not line.startswith("data:") or line[5:].strip() == "[DONE]":
                continue
            chunk = json.loads(line[5:])
            if "error" in chunk:
                raise RuntimeError(str(chunk["error"])[:200])
            texts = [choice["delta"].get("content") or "" for choice in chunk.get("choices") or []]
            yield "".join(texts), chunk.get("usage")


async def ws_events(url: str, headers: dict[str, str], body: dict[str, Any]) -> Events:
    """The same over the websocket API, one socket a turn."""
    address = url.replace("http", "ws", 1) + "/ws/v1"
    frame = {
        "type": "response.create",
        "input": body["messages"],
        "params": {name: body[name] for name in ("max_tokens", "temperature", "ignore_eos")},
    }
    async with websockets.connect(address, additional_headers=headers) as socket:
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


async def ask(
    client: httpx.AsyncClient, target: Target, tenant: int, messages: list[dict[str, str]], max_tokens: int
) -> Answer:
    """One turn; RuntimeError when the server refuses it, breaks it off or does not say what it cost."""
    body = {
        "model": "default",
        "messages": messages,
        "max_tokens": max_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    answer, headers, counted = Answer(), target.headers(tenant), False
    start = last = time.perf_counter()
    events = http_events(client, headers, body) if target.transport == "http" else ws_events(target.url, headers, body)
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
            answer.prompt, answer.output, counted = usage["prompt_tokens"], usage["completion_tokens"], True
            answer.cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    answer.total_s = time.perf_counter() - start
    if not counted:
        raise RuntimeError(f"the answer ended without its usage, after {len(answer.text)} characters")
    return answer


async def user(
    client: httpx.AsyncClient, target: Target, work: Work, tenant: int, number: int, answers: list[Answer]
) -> None:
    """A conversation; whatever ends a turn ends it."""
    rng = random.Random(f"{work.seed} {tenant} {number}")
    messages: list[dict[str, str]] = []
    if work.system_words:
        rules = house_rules(random.Random(f"{work.seed} {tenant}"), work.system_words)
        messages.append({"role": "system", "content": rules})
    for _ in range(work.turns):
        messages.append({"role": "user", "content": sentence(rng, work.words)})
        answer = await ask(client, target, tenant, messages, work.max_tokens)
        answers.append(answer)
        messages.append({"role": "assistant", "content": answer.text or "-"})


def percentile(values: list[float], share: float) -> float:
    """The value that `share` of them do not exceed, by rank; nan of none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else float("nan")


def report(answers: list[Answer], failures: int, wall_s: float, in_flight: int) -> dict[str, float]:
    ttft = [a.ttft_s for a in answers if a.ttft_s is not None]
    gaps = [gap for a in answers for gap in a.gaps_s]
    prompt = sum(a.prompt for a in answers)
    return {
        "in flight": in_flight,
        "answers": len(answers),
        "errors": failures,
        "wall, s": round(wall_s, 2),
        "output tokens": sum(a.output for a in answers),
        "output, tok/s": round(sum(a.output for a in answers) / wall_s, 1),
        "prompt tokens": prompt,
        "cached share": round(sum(a.cached for a in answers) / prompt, 3) if prompt else 0.0,
        "TTFT p50, s": round(percentile(ttft, 0.5), 3),
        "TTFT p95, s": round(percentile(ttft, 0.95), 3),
        "ITL p50, ms": round(1e3 * percentile(gaps, 0.5), 1),
        "ITL p95, ms": round(1e3 * percentile(gaps, 0.95), 1),
    }


async def run(target: Target, work: Work) -> tuple[dict[str, float], list[BaseException]]:
    """Do the work, one small answer before it; figures, and what ended users early. TimeoutError after timeout_s."""
    answers: list[Answer] = []
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)  # a kept one may just be closing
    async with (
        asyncio.timeout(target.timeout_s),
        httpx.AsyncClient(base_url=target.url, timeout=target.timeout_s, limits=limits) as client,
    ):
        await ask(client, target, 0, [{"role": "user", "content": "Hello."}], work.max_tokens)
        start = time.perf_counter()
        users = [
            user(client, target, work, tenant, number, answers)
            for tenant in range(work.tenants)
            for number in range(work.users)
        ]
        results = await asyncio.gather(*users, return_exceptions=True)
        wall_s = time.perf_counter() - start
    failures = [result for result in results if result is not None]
    return report(answers, len(failures), wall_s, work.in_flight), failures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--demo", help="the demo.json that make run wrote; default without --url: var/demo.json")
    parser.add_argument("--url", help="default: the one in demo.json")
    parser.add_argument("--transport", choices=["http", "ws"], default="http")
    for name, default in vars(Work()).items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=default)
    parser.add_argument("--timeout", type=float, default=600, help="seconds, of the whole run")
    parser.add_argument("--json", help="write the figures here as well")
    args = parser.parse_args()
    url, keys = args.url, []
    if args.demo or not url:
        demo = json.loads(Path(args.demo or "var/demo.json").read_text())
        url, keys = url or demo["url"], [tenant["api_key"] for tenant in demo["tenants"]]
    work = Work(**{name: getattr(args, name) for name in vars(Work())})
    figures, failures = asyncio.run(run(Target(url, keys, args.transport, args.timeout), work))
    for failure in failures[:5]:
        print(f"error: {failure!r}", file=sys.stderr)
    for name, value in figures.items():
        print(f"{name:>16}  {value}")
    if args.json:
        Path(args.json).write_text(json.dumps(figures))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
