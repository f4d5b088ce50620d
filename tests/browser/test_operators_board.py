"""The operators' block table in a real Chromium, over frames of a made-up worker: what comes over its socket is what
engine.occupancy_wire makes, and the page is the product's own."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest
from playwright.sync_api import Browser, Page, WebSocketRoute

from bench.made_pool import MadePool
from chatapp.accounts.models import User
from engine.protocol import WorkerDetails
from tests.browser.served import ORIGIN, Served, beside_playwright
from tests.tenants.people import log_in

__all__ = ["beside_playwright"]

pytestmark = [pytest.mark.browser, pytest.mark.django_db]

TEAMS = {"t-1": "Acme", "t-2": "Northwind", "t-3": "Globex", "t-4": "Umbrella Research"}
Picture = Callable[..., None]


class Operators:
    """The other end of the page's socket: workers with their pools, and what of them is kept."""

    def __init__(self, *pools: MadePool) -> None:
        self.pools = {pool.worker: pool for pool in pools}
        self.alive = list(self.pools)
        self.asked: list[dict[str, Any]] = []
        self.history: dict[str, list[tuple[int, bytes]]] = {name: [] for name in self.pools}
        self.points: dict[str, list[dict[str, Any]]] = {name: [] for name in self.pools}
        self.socket: WebSocketRoute | None = None
        self.lived: dict[str, int] = {}

    def live(self, worker: str, steps: int, passed_ms: int = 2000, tokens: int = 8) -> None:
        """A stretch of a worker's life, kept: every moment a whole frame, which is what a reader is given."""
        pool = self.pools[worker]
        for _ in range(steps):
            pool.step(passed_ms, tokens)
            figures = pool.figures()
            self.points[worker].append(
                {"at_ms": pool.at_ms, "number": pool.number, "figures": msgspec.to_builtins(figures)}
            )
            self.history[worker].append((pool.at_ms, pool.message(whole=True, figures=figures)))

    def answer(self, socket: WebSocketRoute) -> None:
        self.socket = socket
        socket.on_message(lambda text: self.hear(json.loads(text)))
        self.say_workers()

    def hear(self, frame: dict[str, Any]) -> None:
        assert self.socket is not None
        self.asked.append(frame)
        worker = frame.get("worker", "")
        if frame["type"] == "line":
            self.say(type="line", worker=worker, points=self.points.get(worker, []))
        elif frame["type"] == "watch" and self.history.get(worker):
            self.socket.send(self.history[worker][-1][1])
        elif frame["type"] == "at":
            kept = self.history[worker]
            at_ms, message = next((one for one in reversed(kept) if one[0] <= frame["at_ms"]), kept[0])
            self.socket.send(message)
            self.say(type="shown", worker=worker, at_ms=frame["at_ms"], frame_ms=at_ms)

    def say(self, **frame: Any) -> None:
        assert self.socket is not None
        self.socket.send(json.dumps(frame))

    def say_workers(self) -> None:
        workers = [
            msgspec.to_builtins(
                WorkerDetails(
                    id=name, model="smollm2-135m-instruct", context=2048, block_size=16, pid=1, dtype="int8",
                    num_blocks=self.pools[name].blocks, running=len(self.pools[name].sequences),
                )
            )
            for name in self.alive
        ]  # fmt: skip
        self.say(type="workers", workers=workers, tenants=TEAMS)

    def change(self, worker: str, tokens: int = 8) -> None:
        """Goes on for a fifth of a second, and says what has changed."""
        assert self.socket is not None
        self.pools[worker].step(200, tokens)
        self.socket.send(self.pools[worker].message())


@pytest.fixture
def page(browser: Browser, complaints: list[str], request: pytest.FixtureRequest) -> Iterator[Page]:
    options = {"viewport": {"width": 1440, "height": 900}, **getattr(request, "param", {})}
    context = browser.new_context(base_url=ORIGIN, **options)
    served = Served(context)
    served.client = log_in(User.objects.create_superuser("op@octavo.test", "a password"))
    page = context.new_page()
    page.on("console", lambda line: complaints.append(line.text) if line.type == "error" else None)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    yield page
    context.close()


def opened(page: Page, operators: Operators) -> Page:
    page.route_web_socket("**/ws/ops/occupancy", operators.answer)
    page.goto("/admin/occupancy/")
    return page


def figure(page: Page, name: str) -> Any:
    return page.locator(f"[data-figure={name}] dd > span")
