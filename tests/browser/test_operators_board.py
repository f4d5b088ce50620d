"""The operators' block table in a real Chromium, over frames of a made-up worker: what comes over its socket is what
engine.occupancy_wire makes, and the page is the product's own."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest
from playwright.sync_api import Browser, Page, WebSocketRoute, expect

from bench.made_pool import MadePool
from chatapp.accounts.models import User
from engine import occupancy_wire as wire
from engine.protocol import WorkerDetails
from tests.browser.served import ORIGIN, Served, beside_playwright
from tests.browser.test_axe import ALL, AXE, RUN
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
        self.queued: dict[str, dict[str, int]] = {}

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
        self.say(type="workers", workers=workers, tenants=TEAMS, queued=self.queued)

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


def opened(page: Page, operators: Operators, query: str = "") -> Page:
    page.route_web_socket("**/ws/ops/occupancy", operators.answer)
    page.goto(f"/admin/occupancy/{query}")
    return page


def figure(page: Page, name: str) -> Any:
    return page.locator(f"[data-figure={name}] dd > span")


def drawn(page: Page) -> int:
    """How many colours the board has, weak ones of the edges left out."""
    return int(
        page.evaluate(
            """() => {
              const canvas = document.getElementById("grid");
              const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
              const colours = new Set();
              for (let at = 0; at < data.length; at += 4)
                if (data[at + 3] > 30) colours.add(data.slice(at, at + 4).join());
              return colours.size;
            }"""
        )
    )


def test_an_operator_sees_blocks_change_and_goes_from_block_to_sequence_by_keys(page: Page, picture: Picture) -> None:
    pool = MadePool("worker-a", 400, list(TEAMS), host_blocks=12, running=5, length=300)
    operators = Operators(pool)
    operators.live("worker-a", 40)
    opened(page, operators)
    expect(figure(page, "used")).to_have_text(str(pool.figures().used))
    assert drawn(page) > 4
    for _ in range(4):
        operators.change("worker-a", tokens=30)
    told = pool.figures()
    expect(figure(page, "used")).to_have_text(f"{told.used:,}")
    expect(figure(page, "saved")).to_have_text(f"{told.saved_blocks:,}")
    for name, (used, cached, pinned, _, running, waiting) in {
        TEAMS[team]: (*row[:3], 0, *row[3:]) for team, row in told.of.items()
    }.items():
        cells = page.locator("#counts tr", has_text=name).locator("td")
        expect(cells.nth(0)).to_have_text(f"{used:,}")
        expect(cells.nth(1)).to_have_text(f"{cached:,}")
        expect(cells.nth(2)).to_have_text(f"{pinned:,}")
        expect(cells.nth(4)).to_have_text(f"{running:,}")
        expect(cells.nth(5)).to_have_text(f"{waiting:,}")

    sequence = next(iter(pool.sequences.values()))
    block = sequence.blocks[-2]
    page.locator("#blocks summary").click()
    page.get_by_label("Go to block").fill(str(block))
    page.get_by_label("Go to block").press("Enter")
    row = page.locator("#blocks-body tr", has=page.get_by_role("button", name=str(block), exact=True))
    expect(row).to_contain_text(f"Sequence {sequence.number} at {len(sequence.blocks) - 2}")
    row.get_by_role("button").click()
    card = page.locator("#hover")
    expect(card).to_contain_text(f"Block {block}")
    expect(card).to_contain_text("16 of 16 tokens")
    expect(card).to_contain_text(f"Sequence {sequence.number}, as its block {len(sequence.blocks) - 2}")
    expect(page.locator("#board-scroll")).to_be_focused()

    page.keyboard.press("p")
    parent = sequence.blocks[-3]
    expect(card).to_contain_text(f"Block {parent}")
    expect(page.locator("#spoken")).to_contain_text(f"Block {parent}: used")
    page.keyboard.press("Enter")
    expect(page.locator("#paged-title")).to_contain_text(f"Sequence {sequence.number}")
    expect(page.locator("#paged-about")).to_contain_text(f"{sequence.tokens} tokens in {len(sequence.blocks)} blocks")
    entries = page.locator(".paged-text.chosen")
    expect(entries.filter(has_text=str(parent)).first).to_be_visible()
    picture(page)
    page.evaluate(AXE)
    assert page.evaluate(RUN, ["#content", ALL]) == []

    page.locator(".paged-scroll").focus()
    page.keyboard.press("Home")
    expect(page.locator("#spoken")).to_contain_text(f"Logical block 0 is physical block {sequence.blocks[0]}.")
    page.keyboard.press("Enter")
    expect(card).to_contain_text(f"Block {sequence.blocks[0]}")
    expect(card).to_contain_text("the platform's preamble")
    page.keyboard.press("Escape")
    expect(card).to_be_hidden()

    page.get_by_role("button", name="Acme").first.click()
    page.get_by_role("button", name="pinned", exact=True).click()
    expected = sum(
        bool(word & wire.PINNED) and (owner & 0xFFFF) == 1
        for word, owner in zip(pool.columns[0], pool.columns[1], strict=True)
    )
    expect(page.locator("#blocks-where")).to_contain_text(f"of {expected} blocks of 412, by the legend")
    few = drawn(page)
    page.get_by_role("button", name="Show all").click()
    expect(page.locator("#blocks-where")).to_contain_text("of 412 blocks")
    assert few != drawn(page)


@pytest.mark.parametrize("page", [{"forced_colors": "active", "color_scheme": "dark"}], indirect=True)
def test_in_the_systems_own_colours_the_board_has_the_systems_lines_and_each_team_its_hue(
    page: Page, picture: Picture
) -> None:
    """A canvas keeps what it draws: with the page's own lines and marks it would vanish in a high-contrast theme."""
    pool = MadePool("worker-a", 400, list(TEAMS), host_blocks=12, running=5, length=300)
    operators = Operators(pool)
    operators.live("worker-a", 40)
    opened(page, operators)
    expect(figure(page, "used")).to_have_text(str(pool.figures().used))
    sequence = next(iter(pool.sequences.values()))
    page.locator("#board-scroll").focus()
    page.keyboard.press("ArrowRight")
    expect(page.locator("#hover")).to_be_visible()
    painted = """([id, least]) => {
      const canvas = document.getElementById(id);
      const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
      const colours = new Set();
      for (let at = 0; at < data.length; at += 4) if (data[at + 3] > least) colours.add(data.slice(at, at + 3).join());
      return [...colours];
    }"""
    systems = page.evaluate(
        """() => ["Canvas", "CanvasText", "GrayText"].map((name) => {
          const probe = document.body.appendChild(document.createElement("i"));
          probe.style.color = name;
          const found = getComputedStyle(probe).color.match(/\\d+/g).join();
          probe.remove();
          return found;
        })"""
    )
    canvas, text, line = systems
    board = set(page.evaluate(painted, ["grid", 250]))
    assert {canvas, line} <= board, "marks in the colour of the ground, outlines of free blocks in the system's grey"
    assert page.evaluate(painted, ["chosen", 250]) == [text], "what is chosen"
    weak = set(page.evaluate(painted, ["grid", 100])) - {*systems}
    assert len([colour for colour in weak if len(set(colour.split(","))) > 1]) >= len(TEAMS)
    for legend in ("#legend i", "#time-line .plot-swatch"):
        shown = "i => getComputedStyle(i).forcedColorAdjust + getComputedStyle(i).backgroundColor"
        seen = {mark.evaluate(shown) for mark in page.locator(legend).all()}
        assert len([colour for colour in seen if colour.startswith("none")]) >= len(TEAMS), legend
    page.get_by_role("button", name=f"{sequence.number}", exact=False).first.wait_for()
    picture(page)


def test_what_no_worker_has_taken_yet_waits_too(page: Page) -> None:
    pool = MadePool("worker-a", 300, list(TEAMS)[:3], running=6, length=300)
    operators = Operators(pool)
    operators.live("worker-a", 30)
    opened(page, operators)
    told = pool.figures()
    expect(figure(page, "waiting")).to_have_text(str(told.waiting))
    operators.queued = {"smollm2-135m-instruct": {"t-1": 5, "t-4": 2}, "another": {"t-1": 9}}
    operators.say_workers()
    expect(figure(page, "waiting")).to_have_text(str(told.waiting + 7))
    for name, waiting in (("Acme", told.of["t-1"][4] + 5), ("Umbrella Research", 2)):
        expect(page.locator("#counts tr", has_text=name).locator("td").nth(5)).to_have_text(str(waiting))
    page.locator("#earlier").click()
    expect(page.locator("#counts tr", has_text="Umbrella Research")).to_have_count(0)


@pytest.mark.parametrize("width", [1440, 1280, 1100, 390])
def test_in_a_sequences_table_no_word_touches_another_or_the_edge(page: Page, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 900})
    pool = MadePool("worker-a", 3000, list(TEAMS), running=60, length=200)
    operators = Operators(pool)
    operators.live("worker-a", 40)
    opened(page, operators)
    page.locator("#sequences button").first.click()
    expect(page.locator(".paged-refs").filter(has_text=re.compile(r"\d\d")).first).to_be_attached()
    texts = page.evaluate(
        """() => [...document.querySelectorAll(".paged-drawing text")].map((text) => {
          const { left, right, top, bottom } = text.getBoundingClientRect();
          return { text: text.textContent, left, right, top, bottom };
        })"""
    )
    edge = page.evaluate("document.querySelector('.paged-drawing').getBoundingClientRect().right")
    assert [one["text"] for one in texts if one["right"] > edge] == []
    touching = [
        (one["text"], other["text"])
        for one in texts
        for other in texts
        if one is not other
        and one["left"] <= other["left"] < one["right"] + 4
        and one["top"] < (other["top"] + other["bottom"]) / 2 < one["bottom"]
    ]
    assert touching == []
    table = page.locator("#sequences-scroll")
    if width >= 1280:
        assert table.evaluate("table => table.scrollWidth <= table.clientWidth")


def test_the_time_line_shows_the_pool_as_it_was_and_says_where_history_ends(page: Page, picture: Picture) -> None:
    pool = MadePool("worker-a", 300, list(TEAMS), running=6, length=300)
    operators = Operators(pool)
    operators.live("worker-a", 120, passed_ms=10_000)
    opened(page, operators)
    expect(figure(page, "used")).to_have_text(str(pool.figures().used))
    expect(page.locator("#sequences tr").first).to_be_visible()  # all is said, and nothing moves any more
    chart = page.locator("#time-line .u-over")
    chart.click(position={"x": chart.evaluate("over => over.clientWidth / 4"), "y": 20})
    expect(page.locator("#go-live")).to_have_attribute("aria-pressed", "false")
    page.wait_for_function("document.getElementById('occupancy').dataset.state === 'past'")
    asked = [frame for frame in operators.asked if frame["type"] == "at"][-1]["at_ms"]
    then = next(point for point in reversed(operators.points["worker-a"]) if point["at_ms"] <= asked)
    expect(figure(page, "used")).to_have_text(str(then["figures"]["used"]))
    first = operators.points["worker-a"][0]["at_ms"]
    assert abs((asked - first) / (pool.at_ms - first) - 0.25) < 0.03
    picture(page)

    # What is said live meanwhile moves the line and not the moment that is looked at.
    operators.live("worker-a", 1)
    operators.say(type="point", worker="worker-a", point=operators.points["worker-a"][-1])
    expect(figure(page, "used")).to_have_text(str(then["figures"]["used"]))

    page.get_by_role("button", name="10 seconds earlier").click()
    before = operators.points["worker-a"][operators.points["worker-a"].index(then) - 1]
    expect(figure(page, "used")).to_have_text(str(before["figures"]["used"]))
    assert operators.asked[-1] == {"type": "at", "worker": "worker-a", "at_ms": asked - 10_000}

    operators.history["worker-a"] = operators.history["worker-a"][-20:]
    page.locator("#time-line .plot-picture").focus()
    page.keyboard.press("Home")
    page.keyboard.press("Enter")
    expect(page.locator("#notice")).to_contain_text("History does not reach back so far.")
    page.get_by_role("button", name="Live", exact=True).first.click()
    expect(figure(page, "used")).to_have_text(str(pool.figures().used))
    expect(page.locator("#notice")).to_be_hidden()
    expect(page.locator("#go-live")).to_have_attribute("aria-pressed", "true")


@pytest.mark.long
def test_workers_come_and_go_and_the_last_picture_of_one_stays(page: Page, picture: Picture) -> None:
    operators = Operators(MadePool("worker-a", 200, list(TEAMS)), MadePool("worker-b", 120, ["t-2"]))
    operators.live("worker-a", 5)
    operators.alive = []
    opened(page, operators)
    expect(page.get_by_role("heading", name="No worker is alive")).to_be_visible()
    operators.alive = ["worker-b"]
    operators.say_workers()
    expect(page.locator("#notice")).to_contain_text("This worker has said nothing of its blocks yet.")
    operators.live("worker-b", 3)
    operators.change("worker-b")  # without the frames before it: a whole one is asked for
    page.wait_for_function("document.getElementById('occupancy').dataset.state === 'live'")
    assert [frame["type"] for frame in operators.asked if frame.get("worker") == "worker-b"].count("watch") == 2
    expect(page.locator("#lanes")).to_be_hidden()

    operators.alive = ["worker-a", "worker-b"]
    operators.say_workers()
    lanes = page.locator("#lanes button")
    expect(lanes).to_have_count(2)
    lanes.filter(has_text="worker-a").click()
    expect(lanes.filter(has_text="worker-a")).to_have_attribute("aria-pressed", "true")
    expect(figure(page, "used")).to_have_text(str(operators.pools["worker-a"].figures().used))
    operators.alive = ["worker-b"]
    operators.say_workers()
    expect(page.locator("#notice")).to_contain_text("This worker is gone. What you see is its last picture")
    expect(figure(page, "used")).to_have_text(str(operators.pools["worker-a"].figures().used))
    assert drawn(page) > 4
    picture(page)
    page.locator("#earlier").click()
    expect(page.locator("#notice")).to_contain_text("This worker is gone. What you see is how it was at")
    page.get_by_role("button", name="Watch worker-b").click()
    expect(figure(page, "used")).to_have_text(str(operators.points["worker-b"][-1]["figures"]["used"]))
    operators.alive = []
    operators.say_workers()
    expect(page.locator("#about")).to_contain_text("gone")


def test_a_page_that_nobody_touches_goes_over_to_the_worker_that_came_after(page: Page) -> None:
    operators = Operators(MadePool("worker-a", 200, list(TEAMS)), MadePool("worker-b", 120, ["t-2"]))
    for worker in operators.alive:
        operators.live(worker, 3)
    operators.alive = ["worker-a"]
    page.clock.install()
    opened(page, operators)
    expect(figure(page, "used")).to_have_text(str(operators.pools["worker-a"].figures().used))
    operators.alive = ["worker-b"]
    operators.say_workers()
    expect(page.locator("#notice")).to_contain_text("This worker is gone.")
    page.locator("#board-scroll").focus()
    page.keyboard.press("End")
    page.clock.fast_forward(70_000)
    operators.say_workers()
    expect(page.locator("#notice")).to_contain_text("This worker is gone.")  # somebody looks at a block of it
    page.keyboard.press("Escape")
    operators.say_workers()
    expect(figure(page, "used")).to_have_text(str(operators.pools["worker-b"].figures().used))
    expect(page.locator("#notice")).to_be_hidden()


@pytest.mark.parametrize(("query", "shown"), [("?worker=worker-b", "worker-b"), ("?worker=gone", "worker-a")])
def test_a_link_names_the_worker_that_is_shown_first(page: Page, query: str, shown: str) -> None:
    operators = Operators(MadePool("worker-a", 200, list(TEAMS)), MadePool("worker-b", 120, ["t-2"]))
    for worker in operators.alive:
        operators.live(worker, 3)
    opened(page, operators, query)
    chosen = page.locator("#lanes button", has_text=shown)
    expect(chosen).to_have_attribute("aria-pressed", "true")
    expect(figure(page, "used")).to_have_text(str(operators.pools[shown].figures().used))


@pytest.mark.parametrize("page", [{"viewport": {"width": 390, "height": 844}, "has_touch": True}], indirect=True)
def test_a_pool_of_100_000_blocks_is_seen_whole_on_a_map_and_in_part_on_a_phone(page: Page, picture: Picture) -> None:
    pool = MadePool("worker-a", 100_000, list(TEAMS), running=40, length=3000)
    operators = Operators(pool)
    operators.live("worker-a", 2, tokens=200)
    opened(page, operators)
    expect(figure(page, "used")).to_have_text(f"{pool.figures().used:,}")
    box = page.locator("#map").bounding_box()
    assert box is not None
    page.mouse.click(box["x"] + 10, box["y"] + box["height"] - 2)
    page.wait_for_function("document.getElementById('board-scroll').scrollTop > 5000")
    page.locator("#board-scroll").focus()
    page.keyboard.press("End")
    expect(page.locator("#hover")).to_contain_text("Block 99,999")
    picture(page)
    page.keyboard.press("Home")
    expect(page.locator("#hover")).to_contain_text("Block 0")
    assert page.evaluate("document.getElementById('board-scroll').scrollTop") == 0
    wide = page.evaluate("document.documentElement.scrollWidth - innerWidth")
    assert wide <= 0, f"the page is {wide} px wider than the phone"
