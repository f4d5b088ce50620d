"""The chat by keyboard alone: never a mouse."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import Chat
from tests.browser.test_journey import LONG

pytestmark = [pytest.mark.browser, pytest.mark.long]

Picture = Callable[..., None]
PHONE = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True}


def tab_to(page: Page, name: str, most: int = 30) -> None:
    """Go on by Tab until what has the focus is called this, for people or for scripts."""
    for _ in range(most):
        page.keyboard.press("Tab")
        said = "const e = document.activeElement; return [e.id, e.getAttribute('aria-label') ?? e.textContent.trim()];"
        if name in page.evaluate(f"() => {{ {said} }}"):
            return
    raise AssertionError(f"Tab leads to no {name}")


def focused(page: Page) -> str:
    return str(page.evaluate("document.activeElement.id || document.activeElement.localName"))


def test_everything_is_done_without_a_mouse(chat: Chat, picture: Picture) -> None:
    page = chat.page
    spoken: list[str] = []
    page.expose_function("heard", lambda words: spoken.append(words))
    page.goto("/accounts/login/")
    keys = page.keyboard
    tab_to(page, "id_login")
    keys.type(chat.team["member"]["email"])
    keys.press("Tab")
    keys.type(chat.team["member"]["password"])
    keys.press("Enter")
    chat.ready()
    page.evaluate(
        "new MutationObserver(() => window.heard(document.querySelector('#spoken').textContent))"
        ".observe(document.querySelector('#spoken'), { childList: true })"
    )
    # Ask, stop, and what was said meanwhile.
    assert focused(page) == "input"
    keys.type("Say hello to the xylophone.")
    keys.press("Enter")
    page.wait_for_url("**/c/*")
    chat.wait_for_end()
    first = page.url
    keys.press("Alt+Shift+N")
    expect(page.locator("#title")).to_have_text("New chat")
    keys.type(LONG)
    keys.press("Enter")
    page.wait_for_url(lambda url: "/c/" in url and url != first)
    chat.wait_for_text(400)
    expect(page.locator("#log")).to_have_attribute("aria-busy", "true")
    # Going on writing while it answers: kept, and said why it does not go.
    keys.type("And then")
    keys.press("Enter")
    expect(page.locator(".saying")).to_contain_text("is being answered")
    expect(page.locator("#input")).to_have_value("And then")
    keys.press("Escape")
    chat.wait_for_end()
    assert chat.status() == "cancelled"
    expect(page.locator(".saying")).to_be_hidden()
    expect(page.locator("#log")).not_to_have_attribute("aria-busy", "true")
    expect(page.locator("#spoken")).to_have_text("The answer was stopped.")
    assert any(words and not words.startswith("The answer ") for words in spoken), spoken
    assert focused(page) == "input"
    keys.press("Control+a")
    keys.press("Delete")

    # The palette: commands and conversations, by a few letters of them.
    keys.press("Control+k")
    box = page.locator(".palette input")
    expect(box).to_be_focused()
    picture(page, "_palette")
    keys.type("xylophone")
    option = page.get_by_role("option", selected=True)
    expect(option).to_contain_text("xylophone")
    expect(option.locator("mark").first).to_have_text("xylophone")
    assert box.get_attribute("aria-activedescendant") == option.get_attribute("id")
    keys.press("Enter")
    page.wait_for_url(first)
    expect(page.locator(".message.user .text")).to_have_text("Say hello to the xylophone.")
    # Up edits the last question, which becomes another one beside it.
    expect(page.locator("#input")).to_be_focused()
    keys.press("ArrowUp")
    expect(page.locator(".message.user textarea")).to_be_focused()
    keys.press("Control+a")
    keys.type("Say goodbye to the xylophone.")
    keys.press("Enter")
    expect(page.locator(".message.user .text")).to_have_text("Say goodbye to the xylophone.")
    chat.wait_for_end()
    page.locator("#input").focus()
    keys.press("Control+k")
    keys.type("zzqq")
    expect(page.locator(".palette-status")).to_have_text("Nothing is called “zzqq”.")
    keys.press("Control+a")
    keys.type("hide sidebar")
    keys.press("Enter")
    expect(page.locator("#sidebar")).to_be_hidden()
    keys.press("Alt+Shift+S")
    expect(page.locator("#sidebar")).to_be_visible()
    assert focused(page) == "input", "the focus is where it was before"

    # Conversations one after the other.
    keys.press("Alt+Shift+J")
    page.wait_for_url(lambda url: url != first)
    keys.press("Alt+Shift+K")
    page.wait_for_url(first)
    expect(page.locator(".message.user .text")).to_have_text("Say goodbye to the xylophone.")

    # A question mark is one while somebody types, and the help where nobody does.
    expect(page.locator("#input")).to_be_focused()
    keys.type("?")
    expect(page.locator("#input")).to_have_value("?")
    keys.press("Backspace")
    keys.press("Shift+Tab")
    keys.press("?")
    help_ = page.get_by_role("dialog", name="Keyboard shortcuts")
    expect(help_).to_contain_text("Stop the answer")
    expect(help_).to_contain_text("Alt")
    picture(page, "_help")
    keys.press("Tab")
    expect(page.get_by_role("checkbox").first).to_be_focused()
    keys.press("Space")
    keys.press("Escape")
    expect(help_).to_have_count(0)
    keys.press("?")
    expect(help_).to_have_count(0)  # it is switched off now
    page.evaluate("localStorage.removeItem('octavo:single-keys')")

    # The theme, the last answer into the clipboard, and back to writing.
    before = page.evaluate("getComputedStyle(document.documentElement).backgroundColor")
    keys.press("Alt+Shift+D")
    assert page.evaluate("getComputedStyle(document.documentElement).backgroundColor") != before
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    keys.press("Alt+Shift+C")
    expect(page.get_by_text("The last answer is copied.")).to_be_visible()
    assert page.evaluate("navigator.clipboard.readText()") == chat.raw()
    keys.press("Alt+Shift+W")
    assert focused(page) == "input"


def test_who_sends_by_the_button_goes_on_writing(chat: Chat) -> None:
    """The button is disabled as soon as the box is empty: the focus is not lost with it, by keyboard nor by mouse."""
    page = chat.log_in().page
    chat.ready()
    for press in (lambda: page.keyboard.press("Enter"), lambda: page.locator("#composer .send:not(.stop)").click()):
        chat.field.fill("Say hello.")
        page.keyboard.press("Tab")
        press()
        page.wait_for_url("**/c/*")
        assert focused(page) == "input"
        chat.wait_for_end()
