"""What the chat's pages cost their readers, in a real Chromium: weight, first look, long conversations, streaming.

    python -m bench.pages [--messages 500 --messages 2000] [--rate 80] [--burst 1] [--json FILE]

The real web process with the files that a deployment serves, conversations of bench.chats, and answers of bench.writer.
"open": from the click in the list, or from the navigation, until the newest message is rendered, the log is at its end
and the main thread is free. "main thread a frame": CPU time of the page's main thread for each frame, from
the browser's own trace, while an answer is streamed; compositor and raster threads are not in it. Heap and nodes are
after a collection of garbage. Times are of this machine, with the server on it.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, CDPSession, Page, sync_playwright

from bench.children import ChildError, ended, environment
from bench.load import percentile
from bench.table import aligned
from bench.transport import Load, Site
from ops.setup import ROOT

START_S = 60.0
STREAM_S = 5.0
TRIES = 3
PATHS = ("chromium", "chromium-browser", "google-chrome")
ARGUMENTS = ["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu", "--disable-background-networking"]
CATEGORIES = ["toplevel", "devtools.timeline"]
KINDS = {"Document": "HTML", "Stylesheet": "CSS", "Script": "JS", "Image": "icons", "Other": "icons"}

# Free: two frames in a row whose callbacks were not held up, with what was asked for on the page.
SHOWN = """(id) => {
  const scroller = document.getElementById('scroller');
  const last = document.querySelector('.log .leaf:last-child > .message:last-child');
  return location.pathname.endsWith(id) && document.querySelector('#composer[data-ready]')
    && last?.querySelector('.block, footer') && document.querySelectorAll('.log .message').length > 12
    && scroller.scrollHeight - scroller.scrollTop - scroller.clientHeight < 2;
}"""
UNTIL_FREE = """([shown, id]) => new Promise((done) => {
  const ready = eval(shown);
  let before = performance.now();
  let calm = 0;
  const look = () => {
    const now = performance.now();
    calm = now - before < 25 && ready(id) ? calm + 1 : 0;
    before = now;
    if (calm < 2) requestAnimationFrame(look);
    else done(performance.now() - (window.began ?? 0));
  };
  requestAnimationFrame(look);
})"""


class Pages(Site):
    """The web process with collected files, and an engine that writes."""

    def __init__(self, folder: Path, stack: ExitStack, rate: float, burst: int) -> None:
        super().__init__(folder, stack, Load(sockets=1, rate=rate))
        self.burst = burst

    def open(self) -> list[str]:
        self.manage("collectstatic", "--noinput", "--verbosity", "0")
        return super().open()

    def _engine(self) -> list[str]:
        return [sys.executable, "-m", "bench.writer", "--rate", str(self.load.rate), "--burst", str(self.burst)]

    def chats(self, slug: str, email: str, sizes: list[int]) -> dict[int, str]:
        wanted = [word for size in sizes for word in ("--messages", str(size))]
        command = [sys.executable, "-m", "bench.chats", slug, email, *wanted]
        done = subprocess.run(command, cwd=ROOT, env=environment(**self.settings), capture_output=True, text=True)
        if done.returncode:
            raise ChildError(f"bench.chats: {done.stderr.strip().splitlines()[-1]}")
        return {int(size): chat for size, chat in json.loads(done.stdout).items()}


def chromium() -> str:
    given = os.environ.get("OCTAVO_CHROMIUM")
    path = given or next((found for name in PATHS if (found := shutil.which(name))), None)
    if path is None:
        raise ChildError("there is no Chromium; install it, or name one in OCTAVO_CHROMIUM")
    return path


class Reader:
    """A person with a fresh browser profile."""

    def __init__(self, browser: Browser, url: str, team: dict[str, Any]) -> None:
        self.context = browser.new_context(base_url=url, viewport={"width": 1280, "height": 800})
        self.base = f"/t/{team['slug']}/"
        self.page = self.context.new_page()
        self.page.goto(f"/accounts/login/?next={self.base}")
        self.page.get_by_label("Email").fill(team["member"]["email"])
        self.page.get_by_label("Password").fill(team["member"]["password"])
        self.page.get_by_role("button", name="Log in").click()
        self.page.locator("#composer[data-ready]").wait_for()

    def fresh_page(self) -> tuple[Page, CDPSession]:
        """A page that has nothing in its cache, and the browser's side of it."""
        page = self.context.new_page()
        cdp = self.context.new_cdp_session(page)
        cdp.send("Network.enable")
        cdp.send("Network.clearBrowserCache")
        return page, cdp


def weight(reader: Reader, path: str) -> dict[str, float]:
    """Bytes over the wire by kind, first contentful paint and when the composer can be used."""
    page, cdp = reader.fresh_page()
    kinds: dict[str, str] = {}
    sizes: dict[str, float] = defaultdict(float)
    cdp.on("Network.responseReceived", lambda event: kinds.update({event["requestId"]: event["type"]}))

    def finished(event: dict[str, Any]) -> None:
        kind = kinds.get(event["requestId"], "Other")
        sizes[KINDS.get(kind, "data" if kind in ("Fetch", "XHR") else kind)] += event["encodedDataLength"]

    cdp.on("Network.loadingFinished", finished)
    page.add_init_script(
        "window.longest = 0; new PerformanceObserver((list) => list.getEntries().forEach((entry) =>"
        " { window.longest = Math.max(window.longest, entry.duration); })).observe({type: 'longtask', buffered: true});"
        "const watch = new MutationObserver(() => { if (document.querySelector('#composer[data-ready]'))"
        " { performance.mark('ready'); watch.disconnect(); } });"
        "watch.observe(document, { attributes: true, childList: true, subtree: true });"
    )
    page.goto(path, wait_until="networkidle")
    page.wait_for_timeout(300)
    times = page.evaluate(
        "() => ({ fcp: performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? 0,"
        " ready: performance.getEntriesByName('ready')[0]?.startTime ?? 0, longest: window.longest })"
    )
    page.close()
    kib = {f"{kind}, KB": size / 1000 for kind, size in sizes.items()}
    total = sum(size for kind, size in sizes.items() if kind != "data") / 1000
    return {
        **kib,
        "HTML+CSS+JS+icons, KB": total,
        "first contentful paint, ms": times["fcp"],
        "composer ready, ms": times["ready"],
        "longest task, ms": times["longest"],
    }


def open_ms(reader: Reader, chat: str) -> dict[str, float]:
    """From a navigation, and from a click in the list."""
    navigated, clicked = [], []
    for _ in range(TRIES):
        page, _cdp = reader.fresh_page()
        page.goto(f"{reader.base}c/{chat}", wait_until="commit")
        navigated.append(page.evaluate(UNTIL_FREE, [SHOWN, chat]))
        page.close()
        page, _cdp = reader.fresh_page()
        page.goto(reader.base)
        page.locator("#composer[data-ready]").wait_for()
        page.wait_for_timeout(500)
        page.evaluate(
            "(id) => { window.began = performance.now(); document.querySelector(`a[data-id='${id}']`).click(); }", chat
        )
        clicked.append(page.evaluate(UNTIL_FREE, [SHOWN, chat]))
        page.close()
    return {"open by address, ms": statistics.median(navigated), "open by click, ms": statistics.median(clicked)}


def traced(page: Page, cdp: CDPSession, seconds: float) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = []
    done: list[bool] = []
    cdp.on("Tracing.dataCollected", lambda event: events.extend(event["value"]))
    cdp.on("Tracing.tracingComplete", lambda event: done.append(True))
    cdp.send("Tracing.start", {"transferMode": "ReportEvents", "traceConfig": {"includedCategories": CATEGORIES}})
    page.wait_for_timeout(seconds * 1000)
    cdp.send("Tracing.end")
    while not done:
        page.wait_for_timeout(50)
    return events


def frames_ms(events: list[dict[str, Any]]) -> list[float]:
    """The main thread's CPU time from each frame that it made to the next. The page is the busiest thread."""
    mains = {
        (event["pid"], event["tid"])
        for event in events
        if event.get("name") == "thread_name" and event["args"].get("name") == "CrRendererMain"
    }
    tasks: dict[Any, list[tuple[float, float]]] = defaultdict(list)
    begins: dict[Any, list[float]] = defaultdict(list)
    for event in events:
        thread = (event.get("pid"), event.get("tid"))
        if thread not in mains:
            continue
        if event["name"] == "ThreadControllerImpl::RunTask" and event.get("ph") == "X":
            tasks[thread].append((event["ts"], event.get("tdur", event.get("dur", 0.0))))
        elif event["name"] == "AnimationFrame::Render" and event["ph"] == "b":
            begins[thread].append(event["ts"])
    if not begins:
        raise ChildError("the trace has no frames")
    page = max(begins, key=lambda thread: sum(spent for _, spent in tasks[thread]))
    edges = sorted(begins[page])
    found = [0.0] * len(edges)
    at = -1
    for start, spent in sorted(tasks[page]):
        # A frame is given within the task that makes it.
        while at + 1 < len(edges) and edges[at + 1] < start + max(spent, 1.0):
            at += 1
        if at >= 0:
            found[at] += spent / 1000
    return found[1:-1]


def streaming(reader: Reader, chat: str) -> dict[str, float]:
    """While an answer comes in: at its end, and with a reader who looks at something above."""
    found = {}
    for name in ("following", "reading above"):
        page, cdp = reader.fresh_page()
        page.goto(f"{reader.base}c/{chat}" if chat else reader.base)
        page.locator("#composer[data-ready]").wait_for()
        page.wait_for_timeout(1000)
        field = page.get_by_role("textbox", name="Message")
        field.fill("Tell me about blocks.")
        field.press("Enter")
        page.wait_for_function(
            "() => (document.querySelector('.message.assistant:last-child .text')?.textContent.length ?? 0) > 200"
        )
        if name == "reading above":
            page.evaluate("() => { document.getElementById('scroller').scrollTop -= 400; }")
            page.wait_for_timeout(500)
        frames = frames_ms(traced(page, cdp, STREAM_S))
        found[f"{name}: main thread a frame p50, ms"] = percentile(frames, 0.5)
        found[f"{name}: p95, ms"] = percentile(frames, 0.95)
        found[f"{name}: p99, ms"] = percentile(frames, 0.99)
        found[f"{name}: frames a second"] = len(frames) / STREAM_S
        page.keyboard.press("Escape")
        page.wait_for_function(
            "() => !['sending', 'queued', 'running']"
            ".includes(document.querySelector('.message.assistant:last-child').dataset.status)"
        )
        page.close()
    return found


def scrolled(reader: Reader, chat: str) -> dict[str, float]:
    """Nodes and heap when it has opened, and after all of it was scrolled through and back."""
    page, cdp = reader.fresh_page()
    page.goto(f"{reader.base}c/{chat}")
    page.evaluate(UNTIL_FREE, [SHOWN, chat])
    page.wait_for_timeout(500)
    cdp.send("Performance.enable")

    def now() -> tuple[float, float]:
        cdp.send("HeapProfiler.collectGarbage")
        metrics = {one["name"]: one["value"] for one in cdp.send("Performance.getMetrics")["metrics"]}
        return metrics["Nodes"], metrics["JSHeapUsedSize"] / 1e6

    first = now()
    page.evaluate(
        """async () => {
          const scroller = document.getElementById('scroller');
          const frame = () => new Promise(requestAnimationFrame);
          for (const way of [-1, 1])
            for (;;) {
              const before = scroller.scrollTop;
              scroller.scrollTop += way * scroller.clientHeight;
              await frame(); await frame(); await frame();
              if (scroller.scrollTop === before) break;
            }
        }"""
    )
    page.wait_for_timeout(500)
    after = now()
    page.close()
    return {
        "nodes, opened": first[0],
        "nodes, after all was scrolled through": after[0],
        "JS heap, opened, MB": first[1],
        "JS heap, after all was scrolled through, MB": after[1],
    }


def measure(sizes: list[int], rate: float, burst: int) -> dict[str, dict[str, float]]:
    folder = Path(tempfile.mkdtemp(prefix="octavo-bench-"))
    columns: dict[str, dict[str, float]] = {}
    try:
        with ExitStack() as stack:
            site = Pages(folder, stack, rate, burst)
            site.open()
            team = json.loads((folder / "demo.json").read_text())["tenants"][0]
            chats = site.chats(team["slug"], team["member"]["email"], sizes)
            playwright = stack.enter_context(sync_playwright())
            browser = playwright.chromium.launch(executable_path=chromium(), args=ARGUMENTS)
            stack.callback(browser.close)
            reader = Reader(browser, site.urls[0], team)
            for name, chat in [("new chat", ""), *((f"{size:,} messages", chat) for size, chat in chats.items())]:
                print(f"* {name}", flush=True)
                found = columns[name] = weight(reader, f"{reader.base}c/{chat}" if chat else reader.base)
                if chat:
                    found |= open_ms(reader, chat) | scrolled(reader, chat)
                found |= streaming(reader, chat)
                print(f"  {json.dumps({key: round(value, 1) for key, value in found.items()})}", flush=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return columns


def table(columns: dict[str, dict[str, float]]) -> list[list[str]]:
    names = dict.fromkeys(name for figures in columns.values() for name in figures)
    grid = [["the chat's pages", *columns]]
    for name in names:
        values = [figures.get(name) for figures in columns.values()]
        digits = 0 if name.startswith(("nodes", "open", "first", "composer", "longest")) else 1
        grid.append([name, *("-" if value is None else f"{value:,.{digits}f}" for value in values)])
    return grid


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.pages", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--messages", type=int, action="append", help="may be repeated; default: 500 and 2,000")
    parser.add_argument("--rate", type=float, default=80.0, help="tokens a second of the answer that is streamed")
    parser.add_argument("--burst", type=int, default=1, help="tokens that come at once")
    parser.add_argument("--json", type=Path, help="write the figures here as well")
    args = parser.parse_args(argv)
    began = time.monotonic()
    columns = measure(args.messages or [500, 2000], args.rate, args.burst)
    print("\n" + aligned(table(columns)))
    print(
        f"\n{args.rate:g} tokens a second, {args.burst} at once; {time.monotonic() - began:.0f} s in all.", flush=True
    )
    if args.json:
        args.json.write_text(json.dumps(columns))
    return 0


if __name__ == "__main__":
    ended(main)
