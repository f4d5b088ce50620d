"""Answering as a reader does it: again, in other words, to the end; and back to what was there before."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from playwright.sync_api import BrowserContext, Locator, WebSocketRoute, expect

from tests.browser.conftest import Chat
from tests.stack import Stack

pytestmark = pytest.mark.browser

TEAM = 2
CUT = 12
SEA = "Write a long story about the sea. Tell every detail."
MOON = "Write a long story about the moon. Tell every detail."


class Reader(Chat):
    """What is on the page, and what is pressed there."""

    def texts(self) -> list[str]:
        return list(
            self.page.evaluate(
                "async () => { const { log } = await import('#octavo/chat.js');"
                " return [...log.views.keys()].map((message) => message.text); }"
            )
        )

    def press(self, name: str, message: int) -> Locator:
        element = self.page.locator(".message").nth(message)
        element.hover()
        element.get_by_role("button", name=name, exact=True).click()
        return element

    def answered(self) -> list[str]:
        """The texts once the newest answer has ended, however new it is."""
        return list(
            self.page.evaluate(
                """async () => {
                  const { log, session } = await import("#octavo/chat.js");
                  const shown = () => [...log.views.keys()];
                  const ended = () => shown().at(-1)?.response_id && session.underway.size === 0;
                  for (const until = Date.now() + 60_000; !ended(); await new Promise((next) => setTimeout(next, 20)))
                    if (Date.now() > until) throw new Error("the answer has not ended");
                  return shown().map((message) => message.text);
                }"""
            )
        )

    def is_version(self, message: int, text: str) -> None:
        expect(self.page.locator(".message").nth(message).locator(".count")).to_have_text(text)


@pytest.fixture
def limited(product: Stack) -> Iterator[Callable[[int | None], None]]:
    """Sets how long the answers of the second team may be, until the test has ended."""
    slug = product.demo["tenants"][TEAM]["slug"]

    def limit(tokens: int | None) -> None:
        of_team = "tenant_id = (SELECT id FROM tenants_tenant WHERE slug = ?)"
        with contextlib.closing(sqlite3.connect(product.data / "db.sqlite3", timeout=20)) as database, database:
            database.execute(f"UPDATE limits_tenantlimits SET output_tokens = ? WHERE {of_team}", (tokens, slug))

    yield limit
    limit(None)


@pytest.mark.long
def test_a_reader_continues_asks_again_edits_and_walks_between_branches(
    context: BrowserContext, product: Stack, limited: Callable[[int | None], None], picture: Callable[..., None]
) -> None:
    limited(CUT)
    reader = Reader(context.new_page(), product, TEAM)
    page = reader.log_in().page
    reader.ask(SEA)
    sea, cut = reader.answered()
    notice = page.locator(".message.assistant .notice")
    expect(notice).to_contain_text(f"The answer was cut at {CUT} tokens, your team's limit.")

    # Continue: one message with one text, which goes on right where it was.
    notice.get_by_role("button", name="Continue").click()
    whole = reader.answered()
    assert len(whole) == 2
    assert whole[1].startswith(cut)
    assert len(whole[1]) > len(cut)
    expect(page.locator(".message.assistant")).to_have_count(1)
    expect(page.locator(".message.assistant .figures")).to_contain_text("shared")
    page.reload()
    reader.ready()
    assert reader.texts() == whole

    # Another answer stands beside it, and the question is not doubled.
    reader.press("Answer again", 1)
    again = reader.answered()
    assert again[0] == sea
    reader.is_version(1, "2/2")
    reader.press("Previous version", 1)
    assert reader.texts() == whole
    reader.is_version(1, "1/2")
    expect(page.locator(".message").nth(1).get_by_role("button", name="Next version")).to_be_focused()
    page.keyboard.press("ArrowRight")
    assert reader.texts() == again
    page.keyboard.press("ArrowLeft")

    # A later question, then that one in other words; Escape leaves it as it is.
    reader.ask("And the moon?")
    moon = reader.answered()
    assert moon[:3] == [*whole, "And the moon?"]
    editor = reader.press("Edit", 2).get_by_role("textbox")
    editor.fill("Never mind")
    editor.press("Escape")
    assert reader.texts() == moon
    expect(page.locator(".message").nth(2).get_by_role("button", name="Edit")).to_be_focused()
    reader.field.press("ArrowUp")
    editor = page.locator(".message").nth(2).get_by_role("textbox")
    expect(editor).to_be_focused()
    picture(page)
    editor.fill("And the sun?")
    editor.press("Enter")
    sun = reader.answered()
    assert sun[:3] == [*whole, "And the sun?"]
    reader.is_version(2, "2/2")
    reader.field.press("Alt+Shift+H")
    assert reader.texts() == moon
    reader.field.press("Alt+Shift+L")
    assert reader.texts() == sun

    # The first one, too: a new root. Then back, and the choice outlives a reload.
    editor = reader.press("Edit", 0).get_by_role("textbox")
    editor.fill("Tell me of the mountains.")
    page.locator(".editor").get_by_role("button", name="Send").click()
    assert reader.answered()[0] == "Tell me of the mountains."
    assert len(reader.texts()) == 2
    reader.press("Previous version", 0)
    assert reader.texts() == sun
    reader.press("Previous version", 2)
    page.reload()
    reader.ready()
    assert reader.texts() == moon
    for message in (0, 2):
        reader.is_version(message, "1/2")

    # What is selected is quoted, and the draft before it stays.
    reader.field.fill("About this:")
    page.locator(".message.assistant .text").last.evaluate("(text) => getSelection().selectAllChildren(text)")
    reader.press("Quote", 3)
    assert reader.field.input_value().startswith("About this:\n\n> ")

    # Narrow: everything fits, and nothing needs a pointer that hovers.
    page.emulate_media(reduced_motion="reduce")
    page.set_viewport_size({"width": 390, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    picture(page, "-phone")


@pytest.mark.long
def test_a_stopped_answer_goes_on_and_refusals_count_down_and_go(context: BrowserContext, product: Stack) -> None:
    refusing: list[dict[str, Any]] = []

    def between(route: WebSocketRoute) -> None:
        server = route.connect_to_server()

        def pass_on(text: str | bytes) -> None:
            frame = json.loads(text)
            if frame["type"] == "response.create" and refusing:
                route.send(json.dumps({"type": "error", "event_id": frame["event_id"], **refusing.pop()}))
            else:
                server.send(text)

        route.on_message(pass_on)

    reader = Reader(context.new_page(), product)
    page = reader.page
    page.route_web_socket("**/ws/ui**", between)
    reader.log_in().ask(SEA)
    begun = reader.wait_for_text()
    page.keyboard.press("Escape")
    stopped = reader.answered()[1]
    assert stopped.startswith(begun)
    notice = page.locator(".message.assistant .notice")
    expect(notice).to_contain_text("You stopped this answer.")
    notice.get_by_role("button", name="Continue").click()
    page.wait_for_function(
        "n => document.querySelector('.message.assistant .text').textContent.length > n + 20", arg=len(stopped)
    )
    page.keyboard.press("Escape")
    assert reader.answered()[1].startswith(stopped)

    # A refusal that names a time is counted down; what was typed in place is there again.
    refusing.append({"code": "rate_limited", "message": "Too fast.", "retryable": True, "retry_after_ms": 1500})
    reader.field.fill(MOON)
    reader.field.press("Enter")
    refusal = page.locator("#refusal")
    expect(refusal.get_by_role("button")).to_have_text("Try again in 2 s")
    expect(refusal.get_by_role("button")).to_be_disabled()
    expect(refusal.get_by_role("button", name="Try again", exact=True)).to_be_enabled()
    assert reader.field.input_value() == MOON
    refusing.append({"code": "queue_full", "message": "Full.", "retryable": True})
    editor = reader.press("Edit", 0).get_by_role("textbox")
    editor.fill("In other words")
    editor.press("Enter")
    expect(page.locator(".editor textarea")).to_have_value("In other words")
    expect(refusal).to_contain_text("Full.")
    page.locator(".editor textarea").press("Escape")

    # What says to wait for an answer goes when that has ended.
    refusing.append({"code": "conversation_busy", "message": "This conversation is being answered.", "retryable": True})
    reader.field.press("Enter")
    expect(refusal).to_contain_text("being answered")
    refusal.get_by_role("button", name="Try again", exact=True).click()
    reader.wait_for_text(5)
    page.evaluate(
        "async () => { const { log, session } = await import('#octavo/chat.js');"
        " session.ask(log.conversation, 'Now?'); }"
    )
    expect(refusal).to_contain_text("being answered")
    assert reader.field.input_value() == "Now?"
    page.keyboard.press("Escape")
    reader.answered()
    expect(refusal).to_be_hidden()
    assert reader.field.input_value() == "Now?"
