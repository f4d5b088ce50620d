"""`make bench`: Octavo beside transformers and llama-server in one table, then every other benchmark but what is
measured on demand (`--only pages`).

    python -m bench [--only octavo --only llama-server] [--log]

Every part runs in processes of its own, one after the other; a part that fails is named and the others go on. The
targets come last. `--log` puts the tables into docs/LOG.md. llama-server is taken from PATH or LLAMA_SERVER.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

from bench import log, serve
from bench.children import ChildError, heed_signals, run_module
from bench.table import LEGEND, Column, aligned, compare, notes
from bench.targets import Results, cpu_line, unmeasured, verdicts
from ops.run import die_with_make

PART_S = 300.0
RANDOM_SCALE = 1 / 64  # of nano-vllm's requests: four, since transformers takes its time
SERVED = ["octavo", "llama-server", "transformers"]
SECTIONS = ["steps", "chats", "prefix", "random"]  # of bench.engine
TRANSPORT = "transport"
OTHERS = ["scheduler", "fairness", "quality", "occupancy"]
# The one needs a Chromium, and says nothing of engines; the other is about many machines.
ON_DEMAND = ["pages", "routing"]
PEERS: dict[str, Callable[[], Column]] = {
    "llama-server": serve.llama_column,
    "transformers": serve.transformers_column,
}


def served(results: Results, parts: list[str]) -> None:
    """The table's columns, Octavo's first."""
    if "octavo" in parts:
        column, results.cpu = serve.octavo_column()
        results.columns.append(column)
    for name, measure in PEERS.items():
        if name in parts:
            results.columns.append(measure())
    if results.columns:
        print("\n" + aligned(compare(results.columns)))
        for line in [LEGEND, *notes(results.columns), *([cpu_line(results.cpu)] if results.cpu else [])]:
            print(textwrap.fill(line, 120, subsequent_indent="  "), flush=True)


def in_process(results: Results, section: str) -> None:
    with tempfile.TemporaryDirectory(prefix="octavo-bench-") as folder:
        found = Path(folder) / "figures.json"
        arguments = ["--only", section, "--scale", str(RANDOM_SCALE), "--json", str(found)]
        run_module("bench.engine", *arguments, timeout_s=PART_S)
        results.sections |= json.loads(found.read_text())


def carried(results: Results) -> None:
    """Tokens to sockets, in the short form; its table is printed there."""
    with tempfile.TemporaryDirectory(prefix="octavo-bench-") as folder:
        found = Path(folder) / "figures.json"
        try:
            run_module("bench.transport", "--json", str(found), timeout_s=PART_S)
        finally:
            results.carried |= json.loads(found.read_text()) if found.exists() else {}


def part(name: str, run: Callable[[], None]) -> bool:
    """Whether it went well."""
    print(f"\n== {name} ==", flush=True)
    try:
        run()
    except ChildError as error:
        print(f"{name} failed: {error}", flush=True)
        return False
    return True


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    every = [*SERVED, TRANSPORT, *SECTIONS, *OTHERS]
    parser.add_argument("--only", action="append", choices=[*every, *ON_DEMAND], help="may be repeated")
    parser.add_argument("--log", action="store_true", help="put what was found into docs/LOG.md")
    args = parser.parse_args(argv)
    parts = args.only or every
    started = time.monotonic()
    results = Results()
    served(results, parts)
    # A peer that is absent is no failure, unless it was asked for by name.
    needed = args.only or [serve.OURS]
    well = all(column.figures for column in results.columns if column.name in needed or column.name == serve.OURS)
    if TRANSPORT in parts:
        well &= part(TRANSPORT, lambda: carried(results))
    for name in SECTIONS:
        if name in parts:
            well &= part(name, lambda name=name: in_process(results, name))  # type: ignore[misc]
    for name in [*OTHERS, *ON_DEMAND]:
        if name in parts:
            well &= part(name, lambda name=name: run_module(f"bench.{name}", timeout_s=PART_S))  # type: ignore[misc]
    if results.columns or results.sections or results.carried:
        print("\n" + aligned(verdicts(results)))
        print(textwrap.fill(unmeasured(results) or "", 120, subsequent_indent="  "))
    print(f"\n{time.monotonic() - started:.0f} s in all.")
    if args.log:
        log.append(results, argv, log.LOG)
        print("docs/LOG.md has a new entry at its top.")
    return 0 if well else 1


if __name__ == "__main__":
    die_with_make()
    heed_signals()
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        print("\nStopped; nothing is left running.", file=sys.stderr)
        sys.exit(130)
