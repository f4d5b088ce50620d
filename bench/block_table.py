"""What an update of the operators' block table costs its page's main thread, in a real Chromium.

    python -m bench.block_table [--blocks 100000] [--seconds 15] [--json FILE]

The real web process, Redis and the files that a deployment serves; a made-up worker (bench.made_pool) writes frames,
five a second, to the streams that an engine writes to. A figure is the CPU time of all tasks of the page's main
thread, from the browser's own trace, from one update's arrival to the next: reading, applying, drawing, the words
beside it, the time line, style, layout and paint. Compositor and raster threads are not in it. The columns are kinds
of load: what a busy engine changes; more than any could; and a whole frame each time, which comes once a minute else.
"scrolled" is the busy one while the reader goes through the board.
"""

from __future__ import annotations

import argparse
import bisect
import json
import shutil
import sys
import tempfile
import time
from collections import defaultdict
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
import redis
from playwright.sync_api import CDPSession, Page, sync_playwright

from bench.children import ChildError, ended
from bench.load import percentile
from bench.made_pool import MadePool
from bench.pages import ARGUMENTS, CATEGORIES, chromium
from bench.table import aligned
from bench.transport import MODEL, Load, Site
from engine import occupancy_wire as wire
from engine import protocol

RATE = 5
KINDS = {"busy": 0, "10 % changed": 0.1, "whole frames": 0, "scrolled": 0}
TEAMS = 12
WORKER = "bench"
# Marks the arrival of every binary message, whoever reads it.
MARKS = """
  const Real = window.WebSocket;
  window.WebSocket = class extends Real {
    constructor(...of) {
      super(...of);
      this.addEventListener('message', ({ data }) => typeof data !== 'string' && performance.mark('update'));
    }
  };
"""


# --- the worker -------------------------------------------------------------------------------------------------------


def publish(url: str, blocks: int, control: Path) -> None:
    """Write frames until the parent ends; `control` has the kind of load."""
    client = redis.Redis.from_url(url, protocol=2)
    client.function_load(protocol.LIBRARY_SOURCE.read_text(), replace=True)
    details = protocol.WorkerDetails(id=WORKER, model=MODEL, context=8192, block_size=16, num_blocks=blocks, pid=1)
    pool = MadePool(
        WORKER, blocks, [f"team-{n}" for n in range(TEAMS)], running=200, length=4000, at_ms=int(time.time() * 1000)
    )
    while sum(word & wire.STATE == wire.FREE for word in pool.columns[0]) > blocks // 2:
        pool.step(0, tokens=400)
    due = time.monotonic()
    turn = 0
    while True:
        kind = control.read_text() if control.exists() else "busy"
        if turn % RATE == 0:
            client.fcall(*protocol.heartbeat(WORKER, details))
        pool.step(1000 // RATE, tokens=20)
        pool.stir(int(KINDS[kind] * blocks))
        figures = pool.figures()
        head, cells = pool.frame(kind == "whole frames" or turn % 256 == 0, figures)
        fields: Any = {"head": wire.encode_head(head), "cells": cells}
        client.xadd(protocol.occupancy_key(WORKER), fields, maxlen=600)
        if turn % (2 * RATE) == 0:
            line = {"at_ms": head.at_ms, "number": head.number, "figures": figures}
            client.xadd(protocol.line_key(WORKER), {"line": msgspec.json.encode(line)}, maxlen=900)
        turn += 1
        due += 1 / RATE
        time.sleep(max(due - time.monotonic(), 0))


class Board(Site):
    """The web process with collected files, and a worker that is made up."""

    def __init__(self, folder: Path, stack: ExitStack, blocks: int) -> None:
        super().__init__(folder, stack, Load(sockets=1))
        self.blocks = blocks
        self.control = folder / "load"

    def open(self) -> list[str]:
        self.manage("collectstatic", "--noinput", "--verbosity", "0")
        return super().open()

    def _engine(self) -> list[str]:
        more = ["--publish", self.settings["REDIS_URL"], "--control", str(self.control), "--blocks", str(self.blocks)]
        return [sys.executable, "-m", "bench.block_table", *more]


# --- the page ---------------------------------------------------------------------------------------------------------


def traced(page: Page, cdp: CDPSession, seconds: float, scrolled: bool) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = []
    done: list[bool] = []
    cdp.on("Tracing.dataCollected", lambda event: events.extend(event["value"]))
    cdp.on("Tracing.tracingComplete", lambda event: done.append(True))
    categories = [*CATEGORIES, "blink.user_timing"]
    cdp.send("Tracing.start", {"transferMode": "ReportEvents", "traceConfig": {"includedCategories": categories}})
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        if scrolled:
            page.mouse.wheel(0, 120)
        page.wait_for_timeout(100)
    cdp.send("Tracing.end")
    while not done:
        page.wait_for_timeout(50)
    return events


def updates_ms(events: list[dict[str, Any]]) -> tuple[list[float], float]:
    """The main thread's CPU time from each update to the next, and its longest task."""
    marks: dict[Any, list[float]] = defaultdict(list)
    tasks: dict[Any, list[tuple[float, float]]] = defaultdict(list)
    for event in events:
        thread = (event.get("pid"), event.get("tid"))
        if event["name"] == "update":
            marks[thread].append(event["ts"])
        elif event["name"] == "ThreadControllerImpl::RunTask" and event.get("ph") == "X":
            tasks[thread].append((event["ts"], event.get("tdur", event.get("dur", 0.0))))
    if not marks:
        raise ChildError("no update came to the page")
    thread = max(marks, key=lambda one: len(marks[one]))
    edges = sorted(marks[thread])
    found = [0.0] * len(edges)
    longest = 0.0
    for start, spent in tasks[thread]:
        # A message is marked within the task that brings it.
        place = bisect.bisect_right(edges, start + max(spent, 1.0)) - 1
        if place >= 0:
            found[place] += spent / 1000
            longest = max(longest, spent / 1000)
    return found[1:-1], longest


def measure(blocks: int, seconds: float) -> dict[str, dict[str, float]]:
    folder = Path(tempfile.mkdtemp(prefix="octavo-bench-"))
    columns: dict[str, dict[str, float]] = {}
    try:
        with ExitStack() as stack:
            site = Board(folder, stack, blocks)
            site.open()
            operator = json.loads((folder / "demo.json").read_text())["operator"]
            playwright = stack.enter_context(sync_playwright())
            browser = playwright.chromium.launch(executable_path=chromium(), args=ARGUMENTS)
            stack.callback(browser.close)
            context = browser.new_context(base_url=site.urls[0], viewport={"width": 1440, "height": 900})
            page = context.new_page()
            page.add_init_script(MARKS)
            cdp = context.new_cdp_session(page)
            page.goto("/accounts/login/?next=/admin/occupancy/")
            page.get_by_label("Email").fill(operator["email"])
            page.get_by_label("Password").fill(operator["password"])
            page.get_by_role("button", name="Log in").click()
            page.locator("[data-figure=used]").wait_for()
            page.mouse.move(700, 400)
            for kind in KINDS:
                site.control.write_text(kind)
                page.wait_for_timeout(3000)
                found, longest = updates_ms(traced(page, cdp, seconds, kind == "scrolled"))
                columns[kind] = {
                    "main thread an update p50, ms": percentile(found, 0.5),
                    "p95, ms": percentile(found, 0.95),
                    "most, ms": max(found),
                    "longest task, ms": longest,
                    "updates a second": (len(found) + 2) / seconds,
                }
                print(f"  {kind}: {json.dumps({name: round(ms, 1) for name, ms in columns[kind].items()})}", flush=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return columns


def table(columns: dict[str, dict[str, float]], blocks: int) -> list[list[str]]:
    names = list(next(iter(columns.values())))
    rows = [[name, *(f"{figures[name]:.1f}" for figures in columns.values())] for name in names]
    return [[f"block table of {blocks:,}", *columns], *rows]


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.block_table", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--blocks", type=int, default=100_000)
    parser.add_argument("--seconds", type=float, default=15.0, help="of each column")
    parser.add_argument("--json", type=Path, help="write the figures here as well")
    parser.add_argument("--publish", help=argparse.SUPPRESS)
    parser.add_argument("--control", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.publish:
        publish(args.publish, args.blocks, args.control)
    columns = measure(args.blocks, args.seconds)
    print("\n" + aligned(table(columns, args.blocks)), flush=True)
    if args.json:
        args.json.write_text(json.dumps(columns))
    return 0


if __name__ == "__main__":
    ended(main)
