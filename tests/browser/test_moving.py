"""Chats that move: shared with the team and taken back, exported, imported, undone; and thumbs that an admin sees."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect

from tests.browser.conftest import Chat
from tests.moving.conftest import chatgpt, open_webui
from tests.stack import Stack

pytestmark = [pytest.mark.browser, pytest.mark.long]
PHONE = {"width": 390, "height": 800}


def run(page: Page, command: str) -> None:
    """As the palette does it."""
    page.evaluate("async (id) => (await import('#octavo/commands.js')).commands.run(id)", command)


def test_a_chat_is_rated_shared_read_continued_and_taken_back(
    browser: Browser,
    context: BrowserContext,
    product: Stack,
    complaints: list[str],
    picture: Callable[..., None],
) -> None:
    member = Chat(context.new_page(), product).log_in()
    member.ask("Name a colour.").wait_for_end()
    answer = member.raw().strip()
    page = member.page
    # Two presses reach the server in their order: what was given at once is taken back.
    page.get_by_role("button", name="Bad answer").dblclick()
    expect(page.get_by_text("Your rating is taken back.").first).to_be_visible()
    expect(page.get_by_role("dialog")).to_have_count(0)
    page.reload()
    expect(page.get_by_role("button", name="Bad answer")).to_have_attribute("aria-pressed", "false")
    # Thumbs: given, changed, with a reason, and still there after a reload.
    page.get_by_role("button", name="Good answer").click()
    expect(page.get_by_role("button", name="Good answer")).to_have_attribute("aria-pressed", "true")
    page.get_by_role("button", name="Bad answer").click()
    page.get_by_role("button", name="Not correct").click()
    page.get_by_label("In your own words (optional)").fill("I asked for another one.")
    page.get_by_label("Include this question and answer").check()
    expect(page.get_by_role("dialog")).to_contain_text("They do not see your name")
    picture(page, "-feedback")
    page.get_by_role("button", name="Send", exact=True).last.click()
    expect(page.get_by_role("dialog")).to_have_count(0)
    page.reload()
    expect(page.get_by_role("button", name="Bad answer")).to_have_attribute("aria-pressed", "true")
    # A link for the team.
    run(page, "share")
    page.get_by_role("button", name="Create the link").click()
    link = page.get_by_label("The link", exact=True).input_value()
    page.keyboard.press("Escape")
    other = browser.new_context(base_url=product.url, viewport=PHONE)
    try:
        admin = Chat(other.new_page(), product).log_in(
            link.removeprefix(product.url), product.demo["tenants"][3]["admin"]
        )
        reader = admin.page
        reader.wait_for_url(link)
        expect(reader.locator(".message.assistant .text.markdown")).to_be_visible()
        expect(reader.locator(".message.user .text")).to_have_text("Name a colour.")
        assert reader.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
        picture(reader, "-phone")
        reader.get_by_role("button", name="Continue in a chat of your own").first.click()
        reader.wait_for_url("**/c/*")
        assert admin.ready().raw().strip() == answer
        expect(reader.get_by_text("Copied from a shared conversation")).to_be_visible()
        # Revoked, it is gone for everybody.
        run(page, "shared-by-you")
        page.get_by_role("button", name="Revoke").first.click()
        page.get_by_role("button", name="Revoke for good").click()
        expect(page.get_by_text("You share no conversation.")).to_be_visible()
        response = reader.goto(link)
        assert response is not None
        assert response.status == 404
        # What the admin sees of the thumbs.
        reader.set_viewport_size({"width": 1280, "height": 800})
        reader.goto(f"/t/{admin.team['slug']}/admin/feedback?said=on")
        expect(reader.get_by_text("I asked for another one.")).to_be_visible()
        reader.get_by_text("Question and answer, which the reader has included").click()
        expect(reader.locator(".feedback")).to_contain_text("Name a colour.")
        assert member.team["member"]["email"] not in reader.content()
        picture(reader, "-admin")
    finally:
        other.close()
    # Taken back by a press.
    page.keyboard.press("Escape")
    page.get_by_role("button", name="Bad answer").click()
    expect(page.get_by_role("button", name="Bad answer")).to_have_attribute("aria-pressed", "false")


def test_chats_are_imported_after_a_look_undone_and_exported(
    context: BrowserContext, product: Stack, tmp_path: Path, picture: Callable[..., None]
) -> None:
    file = tmp_path / "export.json"
    broken = {**chatgpt("Broken"), "mapping": {"a": 7}}
    # Such as nobody else imports: what is here already is known by what was said.
    mine = open_webui(title=f"Greeting of {tmp_path.name}")
    mine["chat"]["history"]["messages"]["1"]["content"] = f"Hi from {tmp_path.name}"
    file.write_text(json.dumps([mine, broken]))
    chat = Chat(context.new_page(), product).log_in()
    page = chat.ready().page
    run(page, "import")
    page.locator(".import-dialog input[type=file]").set_input_files(file)
    expect(page.get_by_text("1 chat cannot be imported:")).to_be_visible()
    expect(page.locator(".import-total")).to_have_text("1 chat · 3 messages · Open WebUI")
    picture(page, "-found")
    listed = page.get_by_role("link", name=mine["title"])
    assert listed.count() == 0, "only looked at"
    page.get_by_role("button", name="Import 1 chat").click()
    page.get_by_role("button", name="Done").click()
    listed.click()
    expect(page.locator(".message.assistant .text")).to_have_text("Hey")
    expect(page.get_by_text("Imported from Open WebUI")).to_be_visible()
    with page.expect_download() as saved:
        run(page, "export-markdown")
    assert saved.value.suggested_filename == f"{mine['title']}.md"
    assert f"# {mine['title']}".replace("_", "\\_") in Path(saved.value.path()).read_text()
    with page.expect_download() as saved:
        run(page, "export-json")
    told = json.loads(Path(saved.value.path()).read_text())
    assert [message["text"] for message in told["conversations"][0]["messages"]][1:] == ["Hello.", "Hey"]
    page.set_viewport_size(PHONE)
    run(page, "import")
    page.locator(".import-dialog input[type=file]").set_input_files(file)
    expect(page.get_by_text("1 chat of this file is here already")).to_be_visible()
    picture(page, "-phone")
    page.get_by_role("button", name="Choose another file").click()
    page.get_by_role("button", name="Undo").click()
    expect(page.get_by_text("1 imported chat is deleted.")).to_be_visible()
    page.keyboard.press("Escape")
    page.wait_for_url(f"**/t/{chat.team['slug']}/")
    expect(listed).to_have_count(0)
