"""The way through the product: log in, ask, read, reload in the middle, stop."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import Chat

pytestmark = pytest.mark.browser

LONG = "Write a long story about a lighthouse keeper and a storm. Tell every detail."


def test_a_member_asks_reloads_in_the_middle_reads_the_same_rest_and_stops_another(chat: Chat) -> None:
    """P1, P3: the first page, undisturbed, and the reloaded one end with the very text that is stored."""
    page = chat.log_in().page
    expect(page.get_by_role("heading", name=f"Ask {chat.team['name']}")).to_be_visible()
    chat.ask(LONG)
    assert re.search(rf"/t/{chat.team['slug']}/c/[0-9a-f-]{{36}}$", page.url)
    before = chat.wait_for_text()
    expect(page.get_by_role("button", name="Stop")).to_be_visible()

    undisturbed = Chat(page.context.new_page(), chat.product)
    undisturbed.page.goto(page.url)
    page.reload()
    assert chat.status() in ("queued", "running")
    text = chat.wait_for_end()
    assert text.startswith(before)
    assert undisturbed.wait_for_end() == text
    expect(page.get_by_role("button", name="Send")).to_be_visible()
    expect(chat.answer.locator(".figures")).to_contain_text(
        re.compile(r"to first token · .* tok/s · .* prompt .*output")
    )
    page.wait_for_function(
        "async (path) => !(await (await fetch(path)).json()).items[0].running",
        arg=f"/api/t/{chat.team['slug']}/conversations",
    )
    assert chat.stored()["text"] == text
    undisturbed.page.close()

    chat.ask(LONG)
    chat.wait_for_text()
    page.keyboard.press("Escape")
    chat.wait_for_end()
    assert chat.status() == "cancelled"
    expect(chat.answer).to_contain_text("You stopped this answer.")
    kept = chat.raw()
    chat.product.wait_idle()
    page.wait_for_timeout(500)
    assert chat.raw() == kept
    page.reload()
    assert chat.status() == "cancelled"
    assert chat.raw() == kept
