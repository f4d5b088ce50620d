"""A reader chooses a language, at the login and in the account menu; scripts have it too. And lines from the right."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from playwright.sync_api import BrowserContext, Page, expect

from tests.browser.conftest import Chat
from tests.browser.test_pages import overflow
from tests.stack import Stack

pytestmark = [pytest.mark.browser, pytest.mark.long]

Picture = Callable[..., None]
PHONE = {"width": 390, "height": 844}
WIDE = {"width": 1280, "height": 800}
# Of the administration, those with most on them.
PAGES = ("usage", "members", "prompts", "keys", "limits", "data", "audit", "webhooks", "sign-in", "settings")


def to_the_right(page: Page) -> None:
    page.evaluate("document.documentElement.dir = 'rtl'")


def test_a_reader_chooses_german_and_all_that_they_see_is_german_on_every_device(
    chat: Chat, context: BrowserContext, product: Stack, picture: Picture
) -> None:
    """The login page, chat with its scripts, administration, another tab, other languages, from the right."""
    page = chat.page
    page.goto("/accounts/login/")
    page.get_by_role("button", name="Deutsch").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Anmelden")
    picture(page, "-login")
    account = chat.team["admin"]
    page.get_by_label("E-Mail").fill(account["email"])
    page.get_by_label("Passwort").fill(account["password"])
    page.get_by_role("button", name="Anmelden").click()

    chat.ready()
    expect(page.get_by_role("link", name="Neuer Chat").first).to_be_visible()
    # What scripts say: the heading of the day, the title of a new chat, a command's name.
    assert page.evaluate("async () => (await import('#octavo/format.js')).relativeTime(new Date().toISOString())") == (
        "gerade eben"
    )
    assert page.evaluate("async () => (await import('#octavo/format.js')).bytes(1_572_864)") == "1,5 MB"
    expect(page.locator("#title")).to_have_text("Neuer Chat")
    picture(page, "-chat")
    page.reload()
    chat.ready()
    assert page.evaluate("document.documentElement.lang") == "de"

    # The account's own choice: another tab has it too when it is loaded.
    other = context.new_page()
    other.goto("/accounts/")
    expect(other.get_by_role("heading", level=1)).to_have_text("Ihr Konto")
    page.locator("[popovertarget=account-menu]").click()
    page.locator("#account-menu").get_by_role("button", name="Español").click()
    page.wait_for_load_state()
    chat.ready()
    expect(page.locator("#title")).to_have_text("Chat nuevo")
    other.reload()
    expect(other.get_by_role("heading", level=1)).to_have_text("Tu cuenta")
    other.close()

    # The longest words on the narrowest page, and lines that run from right to left: nothing is wider than the screen.
    base = f"/t/{chat.team['slug']}/admin/"
    page.locator("[popovertarget=account-menu]").click()
    page.locator("#account-menu").get_by_role("button", name="Deutsch").click()
    page.wait_for_load_state()
    for size, name in ((PHONE, "phone"), (WIDE, "wide")):
        page.set_viewport_size(size)
        for path in PAGES:
            page.goto(base + path)
            assert overflow(page) <= 0, (path, name, "left to right")
            to_the_right(page)
            assert overflow(page) <= 0, (path, name, "right to left")
        picture(page, f"-settings-{name}-rtl")
        page.goto(f"/t/{chat.team['slug']}/")
        chat.ready()
        to_the_right(page)
        assert overflow(page) <= 0, ("chat", name)
        box = page.locator("#composer").bounding_box()
        assert box
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= size["width"]
        picture(page, f"-chat-{name}-rtl")
    # The sidebar stands where lines begin.
    sidebar = page.locator("#sidebar").bounding_box()
    assert sidebar
    assert sidebar["x"] + sidebar["width"] == WIDE["width"]

    page.evaluate("document.documentElement.dir = 'ltr'")
    page.locator("[popovertarget=account-menu]").click()
    page.locator("#account-menu").get_by_role("button", name="English").click()
    page.wait_for_load_state()
    chat.ready()
    expect(page.locator("#title")).to_have_text("New chat")
