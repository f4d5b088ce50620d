"""The Memory drawer on the real product: real blocks of a real engine."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, Page

from tests.browser.conftest import Chat
from tests.stack import ROOT, Stack

pytestmark = [pytest.mark.browser, pytest.mark.long]

AXE = ROOT / "node_modules/axe-core/axe.min.js"


def line(page: Page, holds: str) -> str:
    """The one line in words, once it matches."""
    page.wait_for_function(
        "holds => new RegExp(holds).test(document.getElementById('memory-line').textContent)", arg=holds
    )
    return page.locator("#memory-line").inner_text()


def means(page: Page, holds: str) -> None:
    page.wait_for_function("holds => document.getElementById('memory-meaning').textContent.includes(holds)", arg=holds)


def blocks(page: Page) -> int:
    found = re.match(r"([\d,]+) block", page.locator("#memory-line").inner_text())
    return int(found[1].replace(",", "")) if found else 0


def rows(page: Page) -> dict[str, int]:
    """What the table says: kind -> blocks."""
    return dict(
        page.evaluate(
            "() => [...document.querySelectorAll('#memory-rows tr')].map((row) =>"
            " [row.children[0].textContent, Number(row.children[1].textContent)])"
        )
    )


def picture_of(page: Page) -> str:
    return str(page.evaluate("() => document.getElementById('memory-canvas').toDataURL()"))


def complaints_of_axe(page: Page) -> list[Any]:
    page.evaluate(Path(AXE).read_text())
    return list(page.evaluate("async () => (await axe.run('#memory')).violations.map((one) => one.id)"))


def test_a_chats_blocks_fill_as_it_is_answered_stay_for_its_next_turn_and_are_nobody_elses(
    chat: Chat, browser: Browser, product: Stack, picture: Callable[..., None]
) -> None:
    page = chat.log_in().ready().page
    assert page.locator("#memory").is_hidden(), "it is closed by default"
    page.keyboard.press("Alt+Shift+M")
    line(page, r"^\d+ blocks")
    means(page, "wait here for every new chat")
    waiting = blocks(page)

    chat.ask("Tell me a long story about a lighthouse.").wait_for_text(200)
    means(page, "were ready when this answer began")
    first, before = picture_of(page), blocks(page)
    page.wait_for_function(
        "before => document.getElementById('memory-canvas').toDataURL() !== before", arg=first, polling="raf"
    )
    page.wait_for_function(
        "before => parseInt(document.getElementById('memory-line').textContent) > before + 1", arg=before
    )
    table = rows(page)
    assert table["Your team\u2019s instructions"] >= waiting - 1
    assert table["This turn"] > 1
    assert "This chat, from earlier turns" not in table
    picture(page, "-answering")
    page.get_by_role("button", name="Stop", exact=True).click()
    means(page, "All of this chat is ready for your next message.")
    assert "This turn" not in rows(page)
    own = rows(page)["This chat, from earlier turns"]

    chat.ask("Tell me another long story, about a harbour, in many words.").wait_for_text(20)
    page.wait_for_function("() => document.getElementById('memory-rows').textContent.includes('This turn')")
    assert rows(page)["This chat, from earlier turns"] >= own - 1, "the second turn found what the first one left"
    page.get_by_role("button", name="Stop", exact=True).click()
    means(page, "All of this chat is ready")
    assert re.search(r"\d+ of \d+ prompt tokens came from memory", page.locator("#memory-saved").inner_text())

    mine = page.url.rpartition("/")[2]
    shared = r"shared with (\d+) other"
    found = re.search(shared, page.locator("#memory-line").inner_text())
    others = int(found[1]) if found else 0
    theirs = browser.new_context(base_url=product.url, viewport={"width": 390, "height": 844})
    colleague = Chat(theirs.new_page(), product)
    try:
        colleague.log_in(account=colleague.team["admin"])
        colleague.ask("Tell me a long story about a storm.").wait_for_text(60)
        line(page, rf"shared with {others + 1} other chats? of your team")
        # What is this reader's own the colleague cannot look at, nor hear that it is there.
        refused = """async (id) => {
          const { octavo } = await import('#octavo/chat.js');
          const about = { conversation_id: id };
          return new Promise((told) => octavo.subscribe('memory', (frame) => told(frame.code), about));
        }"""
        assert colleague.page.evaluate(refused, mine) == "not_found"
        path = f"/api/t/{chat.team['slug']}/conversations/{mine}/memory"
        status = "async (path) => (await fetch(path)).status"
        assert (page.evaluate(status, path), colleague.page.evaluate(status, path)) == (200, 404)
        colleague.page.locator("#memory-toggle").click()
        line(colleague.page, r"^\d+ blocks, \d+ shared with")
        assert colleague.page.evaluate("() => document.documentElement.scrollWidth") == 390
        picture(colleague.page, "-phone")
    finally:
        theirs.close()


def test_the_drawer_is_worked_by_keyboard_and_stays_as_it_was_left(
    context: BrowserContext, product: Stack, complaints: list[str]
) -> None:
    chat = Chat(context.new_page(), product).log_in()
    page = chat.ready().page
    page.get_by_role("button", name="Memory of this chat").press("Enter")
    line(page, r"^\d+ blocks")
    page.locator("#memory-board").focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    card = page.locator("#memory-card")
    assert "Tokens 17 to 32" in card.inner_text()
    assert "Tokens 17 to 32" in page.locator("#memory-spoken").inner_text()
    assert complaints_of_axe(page) == []
    page.reload()
    chat.ready()
    line(page, r"^\d+ blocks")
    page.locator("#memory-board").focus()
    page.keyboard.press("Escape")
    assert page.locator("#memory").is_hidden()
    assert page.evaluate("() => document.activeElement.id") == "memory-toggle"
    page.reload()
    chat.ready()
    assert page.locator("#memory").is_hidden()
    assert complaints == []


@pytest.mark.parametrize("context", [{"forced_colors": "active", "color_scheme": "dark"}], indirect=True)
def test_in_the_systems_own_colours_blocks_keep_theirs_and_stop_is_seen(chat: Chat, picture: Any) -> None:
    """What is nothing but a background would be painted over by a high-contrast theme."""
    page = chat.log_in().page
    chat.ready()
    page.get_by_role("button", name="Memory of this chat").click()
    line(page, r"^\d+ blocks")
    chat.ask("Write a long story about a lighthouse keeper and a storm.")
    page.locator("#composer .stop").wait_for()
    stop, around, legend, drawer, drawn = page.evaluate(
        """() => {
          const colour = (of, part) => getComputedStyle(document.querySelector(of), part).backgroundColor;
          const canvas = document.getElementById('memory-canvas');
          const [red, green, blue] = canvas.getContext('2d').getImageData(3, 3, 1, 1).data;
          return [colour('#composer .stop', '::before'), colour('#composer .stop'), colour('#memory-legend .cell'),
            colour('#memory'), [red, green, blue]]; }"""
    )
    picture(page)
    assert stop != around
    assert legend != drawer
    assert len(set(drawn)) > 1, "the team's colour is not grey"
    page.keyboard.press("Escape")
    chat.wait_for_end()


def test_an_admin_watches_what_the_team_has_in_memory_and_another_teams_admin_sees_none_of_it(
    chat: Chat, browser: Browser, product: Stack, picture: Callable[..., None]
) -> None:
    """P11: the same engine, at the same moment, looked at by two teams."""
    other = product.demo["tenants"][0]
    ours, theirs = (browser.new_context(base_url=product.url) for _ in range(2))
    try:
        page = Chat(ours.new_page(), product).log_in(f"/t/{chat.team['slug']}/admin/memory", chat.team["admin"]).page
        stranger = Chat(theirs.new_page(), product).log_in(f"/t/{other['slug']}/admin/memory", other["admin"]).page
        page.locator('[data-part="count-instructions"]').wait_for()
        stranger.locator('[data-part="count-instructions"]').wait_for()
        chat.log_in().ask("Tell me a long story about a lighthouse.").wait_for_text(60)
        row = page.locator('[data-part="answers"] tr')
        row.filter(has_text="Chat").wait_for()
        held = "Number(document.querySelector('[data-part=\"count-running\"]').textContent)"
        before = int(page.evaluate(held))
        page.wait_for_function(f"before => {held} > before", arg=before)
        row.get_by_role("button").click()
        table = page.locator('[data-part="block-table-rows"]')
        table.get_by_text("Your team\u2019s instructions").wait_for()
        picture(page, "-team")
        assert stranger.locator('[data-part="answers"] tr').count() == 0
        assert stranger.locator('[data-part="note-running"]').inner_text() == "0 waiting"
        answer = str(row.get_attribute("data-key")).split()[0]
        assert answer not in stranger.content()
        chat.page.get_by_role("button", name="Stop", exact=True).click()
        row.wait_for(state="detached")
        assert int(page.locator('[data-part="count-kept"]').inner_text()) > 0
    finally:
        ours.close()
        theirs.close()
