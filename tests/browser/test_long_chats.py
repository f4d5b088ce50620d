"""Long conversations: they open at their end, hold little of themselves rendered, and nothing moves while one reads."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import Chat
from tests.stack import ROOT, Stack

pytestmark = [pytest.mark.browser, pytest.mark.long]

COUNT = 500
RENDERED = ".message:not(.unloaded)"
# Where the reader is: how far the view is from the end, and what is at its top.
AT_END = """() => { const s = document.getElementById('scroller');
  return s.scrollHeight - s.scrollTop - s.clientHeight < 2; }"""
# The message in the middle of the view, and where it is.
READ = """() => { const box = document.getElementById('scroller').getBoundingClientRect();
  const seen = document.elementFromPoint(box.left + box.width / 2, box.top + box.height / 2).closest('.message');
  return [seen.dataset.id, seen.getBoundingClientRect().top]; }"""
TOP_OF = "(id) => document.querySelector(`[data-id='${id}']`).getBoundingClientRect().top"
# Frames until nothing is rendered any more.
SETTLED = """() => new Promise((done) => { let before = ''; let same = 0; (function look() {
  const now = [...document.querySelectorAll('.message:not(.unloaded)')].map((one) => one.dataset.id).join();
  same = now === before ? same + 1 : 0; before = now;
  if (same > 5) done(); else requestAnimationFrame(look); })(); })"""


def long_chat(product: Stack, team: dict[str, Any]) -> str:
    """Put into the database of the running product by a program of its own."""
    socket = product.redis.connection_pool.connection_kwargs["path"]
    environment = {
        **os.environ,
        "OCTAVO_DATA": str(product.data),
        "REDIS_URL": f"unix://{socket}",
        "OCTAVO_MODEL": product.model,
        "DJANGO_SETTINGS_MODULE": "chatapp.settings.local",
    }
    command = [sys.executable, "-m", "bench.chats", team["slug"], team["member"]["email"], "--messages", str(COUNT)]
    made = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert made.returncode == 0, made.stderr
    return str(json.loads(made.stdout)[str(COUNT)])


def scroll(page: Page, to: str) -> None:
    page.evaluate(f"() => {{ const s = document.getElementById('scroller'); s.scrollTop = {to}; }}")
    page.evaluate(SETTLED)


def test_five_hundred_messages_open_at_the_end_and_hold_little_wherever_one_reads(
    chat: Chat, product: Stack, picture: Any
) -> None:
    """P5: all of the text is there to be found, what is rendered is bounded, what is read stays where it is."""
    conversation = long_chat(product, chat.team)
    page = chat.log_in().page
    chat.ready()
    page.locator(f"#conversations a[data-id='{conversation}']").click()
    expect(page.locator(".message")).to_have_count(COUNT)
    page.wait_for_function(AT_END)
    expect(page.locator(RENDERED).last).to_contain_text(f"message {COUNT - 1}")
    page.evaluate(SETTLED)
    assert page.locator(RENDERED).count() < 30
    # The browser's own search meets all of it, also what is far away; the view goes there, and it is rendered.
    assert page.evaluate("() => document.querySelectorAll('.message')[43].textContent.includes('message 43')")
    assert page.evaluate("() => find('message 43:', false, true, true)")
    page.evaluate("() => getSelection().removeAllRanges()")

    most = 0
    for share in (0.0, 0.13, 0.5, 0.77, 1.0):
        scroll(page, f"s.scrollHeight * {share}")
        most = max(most, page.locator(RENDERED).count())
    assert most < 30, f"{most} messages of {COUNT} are rendered"
    page.wait_for_function(AT_END)

    scroll(page, "s.scrollHeight / 3")
    for _ in range(12):
        read, top = page.evaluate(READ)
        # Upwards by less than a view: what was read is still there, and messages above it are rendered meanwhile.
        page.evaluate("() => { document.getElementById('scroller').scrollTop -= 250; }")
        page.evaluate(SETTLED)
        moved = page.evaluate(TOP_OF, read) - top
        assert abs(moved - 250) < 2, f"{moved} px for 250"
    picture(page, "-desktop")

    # Switching away and back, and loading the page again, lead to the same place; following a link leads to the end.
    read, top = page.evaluate(READ)
    page.get_by_role("link", name="New chat").first.click()
    expect(page.locator(".message")).to_have_count(0)
    page.locator(f"#conversations a[data-id='{conversation}']").click()
    expect(page.locator(".message")).to_have_count(COUNT)
    page.evaluate(SETTLED)
    assert abs(page.evaluate(TOP_OF, read) - top) < 2
    page.reload()
    chat.ready()
    page.evaluate(SETTLED)
    assert abs(page.evaluate(TOP_OF, read) - top) < 2
    page.set_viewport_size({"width": 390, "height": 844})
    page.evaluate(SETTLED)
    picture(page, "-phone")
    page.goto(page.url)
    chat.ready()
    page.wait_for_function(AT_END)
    page.evaluate(SETTLED)
    assert page.locator(RENDERED).count() < 30


def test_the_view_follows_an_answer_only_while_the_reader_is_at_its_end(chat: Chat) -> None:
    """Nothing above the growing text moves, a selection in it stays, and a button tells of what came meanwhile."""
    page = chat.log_in().page
    page.set_viewport_size({"width": 900, "height": 420})
    chat.ask("Write a long story about a lighthouse keeper and a storm. Tell every detail.")
    jump = page.locator("#jump")
    page.wait_for_function(
        "() => { const s = document.getElementById('scroller'); return s.scrollHeight > s.clientHeight + 120; }"
    )
    assert chat.status() == "running"
    page.wait_for_function(AT_END)
    expect(jump).to_be_hidden()
    # A selection in a part that does not grow any more.
    selected = page.evaluate(
        "() => { const one = document.querySelector('.message.user .text'); getSelection().selectAllChildren(one);"
        " return getSelection().toString(); }"
    )
    page.mouse.move(450, 200)
    page.mouse.wheel(0, -100)
    expect(jump).to_be_visible()
    top = page.evaluate("() => document.querySelector('.message.user').getBoundingClientRect().top")
    length = len(chat.raw())
    page.wait_for_function(
        "async (n) => { const { log } = await import('#octavo/chat.js');"
        " return [...log.views.keys()].at(-1).text.length > n; }",
        arg=length + 40,
    )
    expect(jump).to_have_text("Jump to new text")
    assert page.evaluate("() => document.querySelector('.message.user').getBoundingClientRect().top") == top
    assert page.evaluate("() => getSelection().toString()") == selected
    jump.click()
    page.wait_for_function(AT_END)
    expect(jump).to_be_hidden()
    page.keyboard.press("Escape")
    chat.wait_for_end()
    page.wait_for_function(AT_END)
    letters = "(text) => text.replace(/[^\\p{L}]/gu, '')"
    shown = page.evaluate(
        f"() => ({letters})(document.querySelector('.message.assistant:last-child .text').textContent)"
    )
    assert shown == page.evaluate(letters, chat.raw()), "what came last is not all shown"
