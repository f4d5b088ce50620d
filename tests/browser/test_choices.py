"""What a reader chooses about how a chat is answered: before its first question, later, and back."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import Chat

pytestmark = [pytest.mark.browser, pytest.mark.long]


def test_a_chat_is_answered_as_its_reader_chose_and_keeps_that(chat: Chat, picture: Callable[..., None]) -> None:
    page = chat.log_in().page
    chat.field.wait_for()
    opener = page.get_by_role("button", name="How this chat is answered")
    opener.click()
    dialog = page.get_by_role("dialog", name="How this chat is answered")
    length = dialog.get_by_label("Longest answer, in tokens")
    most = int(length.get_attribute("max") or 0)
    length.fill(str(most + 1))
    dialog.get_by_role("button", name="Use these").click()
    expect(dialog).to_be_visible()  # the field says why
    length.fill("12")
    dialog.get_by_label("Temperature").fill("1.2")
    expect(dialog.get_by_label("Temperature")).to_have_attribute("aria-valuetext", "1.2")
    dialog.get_by_text("More", exact=True).click()
    dialog.get_by_label("Seed").fill("7")
    picture(page)
    dialog.get_by_role("button", name="Use these").click()
    expect(dialog).to_have_count(0)
    expect(opener).to_be_focused()
    chat.ask("Tell me a long story about the sea.").wait_for_end()
    assert chat.status() == "incomplete"
    assert chat.usage()["completion_tokens"] == 12

    page.set_viewport_size({"width": 390, "height": 800})
    page.reload()
    chat.ready()
    opener.click()
    expect(length).to_have_value("12")
    expect(dialog.get_by_label("Seed")).to_have_value("7")
    picture(page, "-phone")
    dialog.get_by_role("button", name="Back to the defaults").click()
    expect(length).to_have_value("")
    dialog.get_by_role("button", name="Use these").click()
    expect(page.get_by_role("status").filter(has_text="The next answer")).to_be_visible()
    page.reload()
    chat.ready()
    opener.click()
    expect(length).to_have_value("")
