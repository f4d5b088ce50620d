"""The columns of the benchmarks' table: the same conversations with Octavo and with its peers, one after the other.

Octavo and llama-server get the load client's conversations over HTTP: 16 users at once right after the start, then one
user alone whose words neither has seen. transformers serves nothing by itself: it gets 16 requests of 560 + 64 tokens
at once, and one alone, in a process of its own, without a network. A peer that is absent or fails is a column of
dashes and a line that says why.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.children import ChildError, run_module
from bench.load import Target, Work, run
from bench.servers import Product, find_llama_server, llama_server, octavo, shares
from bench.table import OURS, Column, from_load

SIXTEEN = Work()
ONE = Work(tenants=1, users=1, seed=1)
ALL: dict[str, Work] = {"16 users": SIXTEEN, "one user": ONE}
TRANSFORMERS_S = 300.0
PROVIDE_LLAMA = "absent: put llama.cpp's llama-server on PATH, or its path into LLAMA_SERVER."


def converse(column: Column, target: Target, who: str) -> None:
    """One of the two loads into the column."""
    work = ALL[who]
    print(f"  {column.name}, {who}: {work.in_flight * work.turns} answers", flush=True)
    figures, failures = asyncio.run(run(target, work))
    column.figures |= from_load(who, figures)
    wanted = work.max_tokens * figures["answers"]
    if figures["output tokens"] != wanted:
        column.notes.append(f"{who}: {figures['output tokens']:,} output tokens instead of {wanted:,}.")
    if failures:
        column.notes.append(f"{who}: {len(failures)} users ended early: {one_line(failures[0])}")


def one_line(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:200]


def guarded(column: Column, measure: Callable[[], None]) -> None:
    """What keeps an engine from being measured is a line below the table."""
    print(f"* {column.name}", flush=True)
    try:
        measure()
    except ChildError as error:
        column.notes.append(f"failed: {' '.join(str(error).split())[:200]}")
    except Exception as error:
        column.notes.append(f"failed: {one_line(error)}")


def octavo_column() -> tuple[Column, dict[str, float]]:
    """Octavo's figures, and its programs' shares of the CPU time while 16 users talked."""
    column = Column(OURS, notes=["its prompts are longer, since each tenant's own published prompt goes in front."])
    cpu: dict[str, float] = {}

    def measure() -> None:
        with octavo() as product:
            cpu.update(sixteen(product))
            converse(column, product.target, "one user")

    def sixteen(product: Product) -> dict[str, float]:
        before = product.cpu()
        converse(column, product.target, "16 users")
        return shares(before.spent())

    guarded(column, measure)
    return column, cpu


def llama_column() -> Column:
    column = Column("llama-server")
    program = find_llama_server()
    if program is None:
        column.notes.append(PROVIDE_LLAMA)
        return column

    def measure() -> None:
        with llama_server(program) as target:
            for who in ALL:
                converse(column, target, who)

    guarded(column, measure)
    return column


def transformers_column() -> Column:
    """The better of `generate` and `generate_batch` is the figure; both are noted."""
    column = Column("transformers")

    def measure() -> None:
        with tempfile.TemporaryDirectory(prefix="octavo-bench-") as folder:
            found = Path(folder) / "peers.json"
            try:
                run_module("bench.peers", "--json", str(found), timeout_s=TRANSFORMERS_S)
            finally:
                fill(column, json.loads(found.read_text()) if found.exists() else {})

    guarded(column, measure)
    return column


def fill(column: Column, found: dict[str, Any]) -> None:
    """What bench.peers wrote into the column; figures it has not come to are missing there, errors are texts."""
    rates = {name: found[name] for name in ("generate", "generate_batch") if isinstance(found.get(name), float)}
    if rates:
        column.figures["16 users: output tok/s"] = max(rates.values())
        said = ", ".join(f"{name} {rate:.1f}" for name, rate in rates.items())
        column.notes.append(f"output tok/s of 16 requests at once, {found['dtype']}: {said}; no server, no HTTP.")
    for name, value in found.items():
        if name.startswith("one user: "):
            column.figures[name] = value
        elif isinstance(value, str) and name != "dtype":
            column.notes.append(f"{name} failed: {' '.join(value.split())[:200]}")
