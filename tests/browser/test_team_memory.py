"""A team's memory page in a browser: frames as the server makes them of a block table, which no engine fills here."""

from __future__ import annotations

import re
from collections.abc import Callable

import msgspec
import pytest
from playwright.sync_api import Page, WebSocketRoute, expect

from chatapp.api.team_memory import Engine, Memory
from chatapp.chat.memory import Answer
from chatapp.streaming.tenant_memory import view
from engine import occupancy_wire as wire
from engine.occupancy_wire import Figures, Row
from tests.browser.served import beside_playwright
from tests.browser.test_axe import Checked, checked
from tests.chat.conftest import Team, server, strangers, team
from tests.dashboard.frames import FREE, cell
from tests.dashboard.test_tenant_memory import THEM, US, table_of
from tests.tenants.people import log_in

__all__ = ["beside_playwright", "checked", "server", "strangers", "team"]
pytestmark = [pytest.mark.browser, pytest.mark.long, pytest.mark.django_db]

CHAT, API = "0192a1b2-0000-7000-8000-0000c0ffee01", "0192a1b2-0000-7000-8000-0000deadbeef"
ANSWERS = {CHAT: Answer("chat", "Lighthouse keeper"), API: Answer("api", "")}


def pool(*, tokens: int = 430, answers: int = 2, kept: int = 60) -> wire.Table:
    """A preamble and instructions of 16 blocks, answers that run, what earlier ones left, and other teams' blocks."""
    cells = [cell(tenant=1, refs=3, kind=wire.PLATFORM, parent=place - 1) for place in range(2)]
    for place in range(2, 16):
        cells.append(cell(tenant=0, refs=answers, kind=wire.TEAM, parent=place - 1, pinned=True))
    shared = list(range(16))
    rows = []
    for number, name in list(enumerate((CHAT, API)))[:answers]:
        own = range(len(cells), len(cells) + -(-tokens // 16) - 16)
        cells += [cell(tenant=0, refs=1) for _ in own]
        rows.append(
            Row(
                number=number, id=name, tenant=0, prompt=300, cached=256, tokens=tokens, regions=(32, 256),
                blocks=[*shared, *own],
            )
        )  # fmt: skip
    for number in range(kept):
        state = wire.HOST if number > 40 else wire.CACHED
        parent = 15 if number % 12 == 0 else len(cells) - 1
        cells.append(cell(state, tenant=0, parent=parent, used=1_700_000_000 - 60 * number))
    cells += [cell(tenant=1, refs=1), FREE]
    figures = Figures(used=3, of={US: (0, 0, 0, answers, 1), THEM: (9, 9, 9, 9, 9)})
    return table_of(cells, rows, [US, THEM], figures=figures)


def frame(*tables: wire.Table, quota: int = 96, queued: int = 0) -> str:
    engines = [Engine(f"w{n}", "smollm2", quota, view(table, US), queued) for n, table in enumerate(tables)]
    return msgspec.json.encode(Memory(engines, ANSWERS)).decode()


class Server:
    """The other end of the page's sockets."""

    def __init__(self, page: Page) -> None:
        self.sockets: list[WebSocketRoute] = []
        page.route_web_socket(re.compile(r"/ws/t/.*/memory$"), lambda socket: self.sockets.append(socket))

    def say(self, text: str) -> None:
        self.sockets[-1].send(text)


def drawn(page: Page, part: str) -> str:
    """What is on a board, as an address of its picture."""
    return str(page.evaluate(f"""() => document.querySelector('[data-part="board-{part}"] canvas').toDataURL()"""))


def test_a_team_looks_at_its_blocks_picks_an_answer_and_reads_its_block_table(
    checked: Checked, team: Team, picture: Callable[..., None]
) -> None:
    page = checked.page
    complaints: list[str] = []
    page.on("console", lambda said: said.type in ("error", "warning") and complaints.append(said.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    server = Server(page)
    checked.served.client = log_in(team.owner)
    page.goto("/t/acme/admin/memory")
    expect(page.locator(".waiting i").first).to_be_visible()

    server.say(frame())
    expect(page.get_by_text("No engine that serves your team is running now.")).to_be_visible()
    server.say(frame(table_of([FREE], [], [])))
    expect(page.get_by_text("Nothing of your team is in memory right now.")).to_be_visible()
    picture(page, "-empty")
    server.say(frame(table_of([FREE], [], []), queued=3))
    expect(page.locator('[data-part="note-running"]')).to_have_text("3 waiting")

    server.say(frame(pool()))
    expect(page.locator('[data-part="figure-used"]')).to_have_text("38")
    expect(page.locator('[data-part="note-used"]')).to_have_text("of 96 blocks")
    expect(page.locator('[data-part="note-running"]')).to_have_text("1 waiting")
    counts = [page.locator(f'[data-part="count-{part}"]') for part in ("instructions", "running", "kept")]
    assert [count.inner_text() for count in counts] == ["16", "22", "60"]
    row = page.get_by_role("row", name=re.compile("c0ffee01"))
    expect(row).to_contain_text("Chat")
    expect(row).to_contain_text("Lighthouse keeper")
    checked.look("blocks of a team", narrow=True)
    picture(page, "-light")

    # An answer is picked: its blocks stand out, its table says where they are.
    before = drawn(page, "kept")
    row.get_by_role("button").press("Enter")
    expect(row.get_by_role("button")).to_have_attribute("aria-pressed", "true")
    assert drawn(page, "kept") != before, "what is not of the answer is dimmed"
    table = page.locator('[data-part="block-table-rows"]').inner_text()
    places = [[span.replace("\u2013", "-") for span in line.split("\t")[:2]] for line in table.splitlines()]
    assert places == [["1-2", "1-2"], ["3-16", "3-16"], ["17-27", "17-27"]]
    server.say(frame(pool(tokens=433)))
    expect(page.locator('[data-part="block-table-rows"] tr').last).to_contain_text("17\u201328")
    expect(row.get_by_role("button")).to_be_focused()

    # By keyboard from block to block.
    page.locator('[data-part="board-running"]').focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("End")
    card = page.locator("#card")
    expect(card).to_contain_text("Block 40")
    expect(card).to_contain_text("1 of 16 slots filled")
    expect(page.locator("#spoken")).to_contain_text("Number 28 in the table of …deadbeef")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="Block table of …deadbeef")).to_be_visible()
    page.locator("details", has_text="As a table").locator("summary").click()
    expect(page.locator('[data-part="table-rows"] tr').first).to_contain_text("The platform\u2019s preamble")
    page.evaluate("document.documentElement.dataset.theme = 'dark'")
    picture(page, "-dark")
    page.keyboard.press("Escape")

    # Two engines, the connection goes and comes, the answers end.
    server.say(frame(pool(), pool(answers=0, kept=5), queued=2))
    expect(page.get_by_role("heading", name="smollm2, engine 2")).to_be_visible()
    waiting = page.locator('[data-part="note-running"]')
    expect(waiting.first).to_have_text("3 waiting")
    expect(waiting.last).to_have_text("1 waiting")  # there; the queue that both take from is counted once
    server.sockets[-1].close(code=1011)
    expect(page.get_by_text("No connection. This is how it was.")).to_be_visible()
    while len(server.sockets) < 2:
        page.wait_for_timeout(50)
    server.say(frame(pool(answers=0)))
    expect(page.get_by_text("Nothing is being answered right now.")).to_be_visible()
    expect(page.get_by_text("No connection. This is how it was.")).to_be_hidden()
    expect(page.get_by_role("heading", name="smollm2, engine 2")).to_have_count(0)
    page.set_viewport_size({"width": 390, "height": 844})
    page.evaluate("document.documentElement.dataset.theme = 'light'")
    server.say(frame(pool()))
    picture(page, "-phone")
    server.sockets[-1].close(code=4440)
    expect(page.get_by_text("You may not see this any more. Log in again.")).to_be_visible()
    assert complaints == []
    checked.nothing()
