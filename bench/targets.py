"""What Octavo is meant to reach on a plain 2-core CPU with AVX-512, and whether a run did.

The list is fixed and the figures are those of the table, of the in-process sections and of the programs' CPU time. A
figure that was not measured is neither met nor missed, and is named.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from bench.table import OURS, ROWS, Column, Grid, ratio

BESIDE_THE_ENGINE = ("web", "recorder", "redis")


@dataclass
class Results:
    """`cpu`: each program's share; `sections`: {section: {"columns": [dtype], "rows": {name: [a figure a dtype]}}};
    `carried`: what bench.transport found, {load: {figure's name: figure}}."""

    columns: list[Column] = field(default_factory=list)
    cpu: dict[str, float] = field(default_factory=dict)
    sections: dict[str, dict] = field(default_factory=dict)
    carried: dict[str, dict[str, float]] = field(default_factory=dict)

    def served(self, row: str, column: str = OURS) -> float | None:
        return next((c.figures.get(row) for c in self.columns if c.name == column), None)

    def times(self, row: str, peer: str) -> float | None:
        return ratio(next(r for r in ROWS if r.name == row), self.served(row), self.served(row, peer))

    def in_process(self, section: str, row: str) -> float | None:
        """Of the first dtype, which is the one that the product takes."""
        values = self.sections.get(section, {}).get("rows", {}).get(row)
        return values[0] if values else None

    def transport(self, load: str, figure: str) -> float | None:
        return self.carried.get(load, {}).get(figure)

    def beside_the_engine(self) -> float | None:
        return sum(self.cpu.get(name, 0.0) for name in BESIDE_THE_ENGINE) if self.cpu else None


def over(above: float | None, below: float | None) -> float | None:
    return above / below if above is not None and below else None


def prefix(results: Results, tokens: str, whose: str = "shared") -> float | None:
    return results.in_process("prefix", f"step of 16, {tokens} tokens {whose}, ms")


@dataclass(frozen=True)
class Goal:
    """`least`: the bound is the least that will do, otherwise the most."""

    name: str
    figure: Callable[[Results], float | None]
    bound: float
    least: bool = False
    form: str = ".1f"

    def verdict(self, results: Results) -> list[str] | None:
        """Name, bound, figure, and "met" or "missed"; None where it was not measured."""
        figure = self.figure(results)
        if figure is None or figure != figure:
            return None
        bound = f"{self.bound:.0%}" if self.form.endswith("%") else f"{self.bound:g}"
        met = figure >= self.bound if self.least else figure <= self.bound
        wanted = f"{'>=' if self.least else '<='} {bound}"
        return [self.name, wanted, f"{figure:{self.form}}", "met" if met else "missed"]


GOALS = [
    Goal("16 users: output tok/s", lambda r: r.served("16 users: output tok/s"), 400, least=True),
    Goal(
        "16 users: output, times llama-server's",
        lambda r: r.times("16 users: output tok/s", "llama-server"),
        10,
        least=True,
    ),
    Goal("16 users: TTFT p50, s", lambda r: r.served("16 users: TTFT p50, s"), 0.3, form=".3f"),
    Goal("16 users: TTFT p95, s", lambda r: r.served("16 users: TTFT p95, s"), 3, form=".3f"),
    Goal("16 users: ITL p50, ms", lambda r: r.served("16 users: ITL p50, ms"), 35),
    Goal("one user: ITL p50, ms", lambda r: r.served("one user: ITL p50, ms"), 7.5),
    Goal("web, recorder and Redis, share of CPU time", Results.beside_the_engine, 0.15, form=".1%"),
    Goal(
        "300 sockets at 20 tok/s: write to client p99, ms",
        lambda r: r.transport("300 websocket", "write to client p99, ms"),
        250,
    ),
    # One a step, and a heartbeat and a look for work a second: 1.1 at 20 steps a second.
    Goal(
        "300 sockets at 20 tok/s: pipelines a step, heartbeats included",
        lambda r: r.transport("300 websocket", "pipelines a step"),
        1.15,
        form=".2f",
    ),
    Goal(
        "1,000 sockets at 20 tok/s: answers at fault",
        lambda r: r.transport("1,000 websocket", "answers at fault"),
        0,
        form=".0f",
    ),
    Goal(
        "prefill, tok/s",
        lambda r: r.in_process("steps", "prefill of 1,024 tokens, tok/s"),
        1700,
        least=True,
        form=",.0f",
    ),
    Goal(
        "step of 16 behind a shared prefix, 4,096 over 512 tokens",
        lambda r: over(prefix(r, "4,096"), prefix(r, "512")),
        1.8,
        form=".2f",
    ),
    Goal(
        "step of 16 behind 4,096 tokens, shared over each its own",
        lambda r: over(prefix(r, "4,096"), prefix(r, "4,096", "each its own")),
        0.5,
        form=".2f",
    ),
]


def verdicts(results: Results) -> Grid:
    """A head and the targets that were measured."""
    said = [goal.verdict(results) for goal in GOALS]
    return [["targets for 2 cores", "wanted", "found", ""], *(line for line in said if line)]


def unmeasured(results: Results) -> str | None:
    """A line that names the others."""
    names = [goal.name for goal in GOALS if goal.verdict(results) is None]
    return f"Not measured: {'; '.join(names)}." if names else None


def cpu_line(cpu: dict[str, float]) -> str:
    """One sentence: whose CPU time the run with 16 users was."""
    parts = ", ".join(f"{name} {share:.1%}" for name, share in cpu.items())
    beside = sum(cpu.get(name, 0.0) for name in BESIDE_THE_ENGINE)
    return f"CPU time with 16 users, without the client's: {parts}; web, recorder and Redis together {beside:.1%}."
