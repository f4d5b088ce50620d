"""One run, from a start to the table."""

from __future__ import annotations

import asyncio
import random
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from tests.chaos import checks, load, questions, report
from tests.chaos.clients import Clients, Seen
from tests.chaos.product import Product, wait_whole
from tests.chaos.trouble import Done, Trouble, planned
from tests.engine.tiny import make_tiny


def made_model(folder: Path) -> str:
    """A random model that takes a few milliseconds a step: its answers last seconds, and it is loaded in no time."""
    shape = {"hidden_size": 384, "intermediate_size": 1024, "num_hidden_layers": 8, "head_dim": 96}
    return str(make_tiny(folder, max_position_embeddings=8192, **shape))


@dataclass(frozen=True)
class Plan:
    """`model`: a folder; empty: a random one is made. `kills`: signals of all kinds. `every_s`: from one to the next on
    average. `scale`: of the answers' lengths. `only`: the programs that are hit, all of them where it is empty."""

    model: str
    seed: int
    kills: int = 100
    every_s: float = 3.0
    engines: int = 2
    webs: int = 2
    scale: float = 1.0
    only: tuple[str, ...] = ()


@dataclass
class Outcome:
    seen: list[Seen]
    done: list[Done]
    findings: checks.Findings
    table: str


async def _ask_and_disturb(product: Product, plan: Plan, say: object) -> tuple[list[tuple[Seen, Seen]], list[Done]]:
    rng = random.Random(plan.seed)
    asked = questions.made(rng, plan.scale)
    events = planned(rng, plan.kills, engines=plan.engines, webs=plan.webs, every_s=plan.every_s, only=plan.only)
    async with Clients(product.url, product.demo["tenants"]) as clients:
        began = time.monotonic()
        bases = await load.undisturbed(clients, rng, asked)
        unanswered = [f"{one.question.name}: {one.ended}" for one in bases.values() if one.ended not in ENDS]
        assert not unanswered, f"undisturbed, and yet not answered: {unanswered}"
        tell(say, f"{len(bases)} answers undisturbed in {time.monotonic() - began:.0f} s")
        enough, seen = asyncio.Event(), list[Seen]()
        asking = asyncio.create_task(load.under_way(clients, rng, list(bases), enough, seen))
        trouble = Trouble(product, events)
        try:
            await trouble.make()
        finally:
            product.wake_all()
            enough.set()
            await asking
        return [(one, bases[one.question]) for one in seen], trouble.done


ENDS = ("completed", "incomplete")


def tell(say: object, line: str) -> None:
    if callable(say):
        say(line)


def run(plan: Plan, folder: Path | None = None, say: object = None) -> Outcome:
    """Start the product, ask, disturb, wait, check. `say` is called with a line about how it goes."""
    data = folder or Path(tempfile.mkdtemp(prefix="octavo-chaos-"))
    model = plan.model or made_model(data.with_name(f"{data.name}-model"))
    tell(say, f"seed {plan.seed}, {plan.kills} events; data and logs in {data}")
    # The answers must depend on nothing else that runs: one thread, and rows that do not know of each other.
    env = {"OCTAVO_WORKER_THREADS": "1", "OCTAVO_WORKER_BATCH_INVARIANT": "1"}
    with Product(data, model, engines=plan.engines, webs=plan.webs, **env) as product:
        tell(say, "the product runs")
        pairs, done = asyncio.run(_ask_and_disturb(product, plan, say))
        tell(say, f"{len(done)} events and {len(pairs)} answers; waiting for what is left")
        whole_s = wait_whole(product, plan.engines)
        findings = checks.all_of_it(product, pairs, done)
    seen = [one for one, _ in pairs]
    return Outcome(seen, done, findings, report.table(plan.seed, seen, done, findings, whole_s))
