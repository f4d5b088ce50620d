"""A reader's chats beside asking: found, named, starred, tagged, put away, brought back; on a desk and on a phone."""

from __future__ import annotations

import contextlib
import sqlite3
import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from playwright.sync_api import BrowserContext, Page, Route, expect

from tests.browser.conftest import Chat
from tests.stack import Stack

pytestmark = [pytest.mark.browser, pytest.mark.long]

Picture = Callable[..., None]
# More than anybody sees at once, and than one page of the list has.
MANY = 240
NEEDLE = "Where the Café du coin keeps its <b>needle</b> & thread."
TO_THE_LAST = """last => { const list = document.querySelector("#conversations"); list.scrollTop = list.scrollHeight;
  return list.textContent.includes(last); }"""


def seed(product: Stack, slug: str, email: str) -> None:
    """Chats of before, without a word from a model; the oldest one has the needle, in its second message."""
    at = datetime.now(UTC) - timedelta(days=2)

    def stamp(moment: datetime) -> str:
        return moment.strftime("%Y-%m-%d %H:%M:%S.%f")

    with contextlib.closing(sqlite3.connect(product.data / "db.sqlite3", timeout=20)) as database, database:
        (tenant,) = database.execute("SELECT id FROM tenants_tenant WHERE slug = ?", (slug,)).fetchone()
        (user,) = database.execute("SELECT id FROM accounts_user WHERE email = ?", (email,)).fetchone()
        for number in range(MANY):
            moment = at - timedelta(hours=number)
            key, question, answer = uuid.uuid4().hex, uuid.uuid4().hex, uuid.uuid4().hex
            named = {
                "id": key, "tenant_id": tenant, "user_id": user, "title": f"Chat number {number}",
                "titled_by": "words", "params": "{}", "model": "", "salt": key,
                "created_at": stamp(moment), "updated_at": stamp(moment),
            }  # fmt: skip
            columns = ", ".join(named)
            marks = ", ".join("?" * len(named))
            database.execute(f"INSERT INTO chat_conversation ({columns}) VALUES ({marks})", [*named.values()])
            says = NEEDLE if number == MANY - 1 else "Hay. " * 40
            for place, (message, parent, role, text) in enumerate(
                [(question, None, "user", "Where is it?\n\n" + "Please. " * 400), (answer, question, "assistant", says)]
            ):
                database.execute(
                    "INSERT INTO chat_message (id, conversation_id, parent_id, role, text, status, created_at)"
                    " VALUES (?, ?, ?, ?, ?, 'done', ?)",
                    (message, key, parent, role, text, stamp(moment + timedelta(seconds=place))),
                )


def rows(page: Page) -> Any:
    return page.locator("#conversations .conversation")


def row(page: Page, title: str) -> Any:
    return rows(page).filter(has_text=title).first


def choose(page: Page, title: str, entry: str) -> None:
    """From the menu at a row."""
    row(page, title).hover()
    row(page, title).get_by_role("button", name="More about").click()
    page.get_by_role("menuitem", name=entry, exact=True).click()


def test_a_reader_finds_names_and_puts_away_chats(
    context: BrowserContext, product: Stack, picture: Picture, complaints: list[str]
) -> None:
    chat = Chat(context.new_page(), product)
    admin = chat.team["admin"]
    seed(product, chat.team["slug"], admin["email"])
    page = chat.log_in(f"/t/{chat.team['slug']}/", admin).ready().page
    other = context.new_page()
    other.goto(page.url)

    # Of many only those in sight are in the document; more come as somebody scrolls.
    expect(rows(page).first).to_be_visible()
    nav = page.locator("#conversations")
    page.wait_for_function(TO_THE_LAST, arg=f"Chat number {MANY - 1}")
    assert rows(page).count() < 100
    # What comes to nothing while a search stands in the list's place is said once the list is back.
    held: list[Route] = []
    other.route("**/conversations?cursor=*", lambda route: held.append(route))
    older = other.locator("#conversations")
    older.evaluate("list => { list.scrollTop = list.scrollHeight; }")
    expect(older.get_by_role("status", name="Loading")).to_be_visible()
    other.locator("#search-text").fill("needle")
    expect(rows(other).first.locator(".snippet mark").first).to_be_visible()
    with other.expect_event("console"):
        held[0].fulfill(status=503)
    other.locator("#search-text").press("Escape")
    expect(older).to_contain_text("Older chats could not be loaded.")
    other.unroute("**/conversations?cursor=*")
    complaints.clear()
    older.get_by_role("button", name="Try again").click()
    expect(older).not_to_contain_text("could not be loaded")
    other.wait_for_function(TO_THE_LAST, arg=f"Chat number {MANY - 1}")
    older.evaluate("list => { list.scrollTop = 0; }")
    nav.evaluate("list => { list.scrollTop = 0; }")
    expect(row(page, "Chat number 0")).to_be_visible()

    # A search by the keyboard, without the accent, leads to the message and marks it.
    page.locator("#scroller").press("/")  # not while a message is written
    page.keyboard.type("NEEDLE cafe")
    hit = rows(page).first
    expect(hit.locator(".snippet mark").first).to_have_text("Café")
    expect(hit).to_contain_text("<b>needle</b> & thread")
    picture(page, "-search")
    page.keyboard.press("Enter")
    page.wait_for_url("**/c/*")
    expect(page.locator(".message.assistant.found")).to_be_in_viewport()
    assert page.evaluate("() => [...CSS.highlights.get('found')].map(String)") == ["Café", "needle"]
    page.locator("#search-text").fill("no such %_ thing")
    expect(nav.locator(".none")).to_contain_text("“no such %_ thing” in its title or messages")
    page.locator("#search-text").press("Escape")
    expect(row(page, "Chat number 0")).to_be_visible()

    # Renamed where it stands; an empty name is refused, Escape leaves it, the other tab is in step.
    row(page, "Chat number 0").locator("a").focus()
    page.keyboard.press("F2")
    name = nav.get_by_role("textbox", name="Title of this chat")
    name.fill("  ")
    name.press("Enter")
    expect(name).to_be_focused()
    name.press("Escape")
    expect(row(page, "Chat number 0").locator("a")).to_be_focused()
    page.keyboard.press("F2")
    name.fill("Opening hours <i>")
    name.press("Enter")
    expect(row(page, "Opening hours <i>")).to_be_visible()
    expect(row(other, "Opening hours <i>")).to_be_visible()

    # Starred ones stand on top; a tag leads to all that have it.
    choose(page, "Chat number 3", "Star")
    expect(nav.locator("section").first).to_contain_text("StarredChat number 3")
    expect(other.locator("#conversations section").first).to_contain_text("StarredChat number 3")
    choose(page, "Chat number 3", "Tags")
    page.get_by_role("textbox", name="Add a tag").fill("Vorräte")
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog").locator(".tag")).to_have_text("Vorräte")
    picture(page, "-tags")
    page.keyboard.press("Escape")
    row(page, "Chat number 3").locator("a").click()
    page.get_by_role("button", name="Vorräte", exact=True).click()
    expect(rows(page)).to_have_count(1)
    page.get_by_role("button", name="Vorräte: take this filter off").click()

    # Put away and found there; deleted with a way back, and found where it can be asked back.
    choose(page, "Chat number 4", "Archive")
    expect(row(page, "Chat number 4")).to_have_count(0)
    expect(row(other, "Chat number 4")).to_have_count(0)
    page.get_by_role("button", name="Filters, archive").click()
    page.get_by_role("menuitem", name="Archived").click()
    expect(rows(page)).to_have_count(1)
    choose(page, "Chat number 4", "Take out of the archive")
    expect(nav.locator(".none")).to_contain_text("Nothing is archived")
    page.get_by_role("button", name="Archived: take this filter off").click()
    expect(row(page, "Chat number 4")).to_be_visible()
    choose(page, "Chat number 3", "Delete")
    expect(row(page, "Chat number 3")).to_have_count(0)
    expect(page.locator("#empty")).to_be_visible()
    page.get_by_role("button", name="Undo").click()
    expect(row(page, "Chat number 3")).to_be_visible()
    expect(page.locator("#title")).to_have_text("Chat number 3")

    # Several at once.
    page.get_by_role("button", name="Filters, archive").click()
    page.get_by_role("menuitem", name="Choose several").click()
    row(page, "Chat number 5").click()
    row(page, "Chat number 7").click(modifiers=["Shift"])
    expect(page.locator("#chosen")).to_contain_text("3 chosen")
    picture(page, "-choosing")
    page.locator("#chosen").get_by_role("button", name="Delete").click()
    expect(row(other, "Chat number 6")).to_have_count(0)
    page.get_by_role("button", name="Filters, archive").click()
    page.get_by_role("menuitem", name="Recently deleted").click()
    expect(rows(page)).to_have_count(3)
    choose(page, "Chat number 6", "Restore")
    expect(rows(page)).to_have_count(2)
    page.locator("#search-text").press("Escape")
    expect(row(page, "Chat number 6")).to_be_visible()

    # An answer that ends while another chat is shown is marked, until it is looked at.
    page.locator("[data-new-chat]").first.click()
    chat.ask("Tell me a long story about the sea, in many words.")
    asked = page.url.rpartition("/")[2]
    row(page, "Chat number 6").locator("a").click()
    mine = page.locator(f"#conversations .conversation[data-id='{asked}']")
    expect(mine).to_have_class("conversation running")
    stop(page, f"/api/t/{chat.team['slug']}", asked)
    expect(mine).to_have_class("conversation unread")
    mine.locator("a").click()
    expect(mine).to_have_class("conversation")

    # On a phone all of it is in the sheet.
    page.set_viewport_size({"width": 390, "height": 844})
    page.get_by_role("button", name="Sidebar").first.click()
    page.locator("#search-text").fill("needle")
    expect(rows(page)).to_have_count(1)
    assert page.evaluate("() => document.documentElement.scrollWidth <= innerWidth")
    picture(page, "-phone")
    rows(page).first.locator("a").click()
    expect(page.locator("#sidebar")).not_to_be_in_viewport()
    expect(page.locator(".message.found")).to_be_in_viewport()
    page.locator("#conversation-menu").click()
    page.get_by_role("menuitem", name="Rename").click()
    page.locator("main").get_by_role("textbox", name="Title of this chat").fill("Found")
    with page.expect_response(lambda answer: answer.request.method == "PATCH"):
        page.keyboard.press("Enter")
    expect(page.locator("#title")).to_have_text("Found")
    stored = page.evaluate("async (path) => (await (await fetch(path)).json()).title", f"/api{page_path(page)}")
    assert stored == "Found"


def stop(page: Page, api: str, conversation: str) -> None:
    """The answer that runs there ends: a program stops it."""
    page.evaluate(
        """async ([api, conversation]) => {
            const { messages } = await (await fetch(`${api}/conversations/${conversation}`)).json();
            const headers = { "X-CSRFToken": document.querySelector("[name=csrfmiddlewaretoken]").value };
            await fetch(`${api}/responses/${messages.at(-1).response_id}/cancel`, { method: "POST", headers });
        }""",
        [api, conversation],
    )


def page_path(page: Page) -> str:
    """The conversation's address in the product's API."""
    slug, _, key = page.url.partition("/t/")[2].partition("/c/")
    return f"/t/{slug}/conversations/{key.partition('#')[0]}"
