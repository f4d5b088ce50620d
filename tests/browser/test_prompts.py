"""The way of a prompt: written, measured, tried out, published, compared, and brought back."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import Page, WebSocketRoute, expect

from tests.browser.conftest import Chat

pytestmark = [pytest.mark.browser, pytest.mark.long]


def figure(page: Page, name: str) -> int:
    text = page.locator(f"[data-figure={name}]").inner_text().replace(",", "")
    return int(re.sub(r"\D", "", text))


def measured(page: Page) -> None:
    page.locator("#measure[data-state=exact]").wait_for()


def conversations(page: Page, slug: str) -> list[str]:
    path = f"/api/t/{slug}/conversations"
    listed = page.evaluate("async (path) => (await (await fetch(path)).json()).items", path)
    return [one["id"] for one in listed]


def answered(page: Page) -> str:
    page.wait_for_function(
        "() => ['completed', 'incomplete', 'cancelled', 'failed'].includes("
        "document.querySelector('#talk .message.assistant:last-child')?.dataset.status)"
    )
    return str(page.locator("#talk .message.assistant").last.get_attribute("data-status"))


def test_an_admin_edits_tries_publishes_compares_and_rolls_back(chat: Chat, picture: Callable[..., None]) -> None:
    """The figures are the engine's, the side chat leaves nothing, and members get what was published."""
    page, slug = chat.page, chat.team["slug"]
    chat.log_in(f"/t/{slug}/admin/prompts", chat.team["admin"])
    expect(page.get_by_role("heading", name="Prompts")).to_be_visible()
    picture(page, "-list")
    page.get_by_role("link", name="Assistant", exact=True).click()
    measured(page)
    before = figure(page, "tokens")
    blocks, unused, size = figure(page, "blocks"), figure(page, "unused_slots"), figure(page, "block_size")
    assert blocks * size - unused == before
    assert page.locator("#measure .blocks i").count() == blocks

    field = page.locator("#id_text")
    original = field.input_value()
    marked = f"{original}\nWhen somebody says ahoy, answer with the word harbour."
    field.fill(marked)
    page.wait_for_function("n => Number(document.querySelector('[data-figure=tokens]').textContent) > n", arg=before)
    measured(page)
    expect(page.locator("#saved")).to_have_text("saved just now")
    expect(page.get_by_role("link", name="See changes")).to_be_visible()

    kept = conversations(page, slug)
    page.get_by_label("Message to the draft").fill("ahoy")
    page.get_by_label("Message to the draft").press("Enter")
    assert answered(page) in ("completed", "incomplete")
    picture(page, "-tried")
    assert conversations(page, slug) == kept, "nothing of a trial is kept"

    page.get_by_label("Why this change?").fill("Seafarers ask")
    page.get_by_role("button", name="Publish version 2").click()
    expect(page.get_by_text("Version 2 is published.")).to_be_visible()
    page.wait_for_function(
        "async () => (await (await fetch(location.href)).text()).includes('in memory on 1 of 1 engine')"
    )

    page.get_by_role("link", name="Versions", exact=True).click()
    expect(page.get_by_role("cell", name="Seafarers ask")).to_be_visible()
    picture(page, "-versions")
    page.get_by_role("link", name="Compare").click()
    expect(page.locator("tr.added ins")).to_have_text("When somebody says ahoy, answer with the word harbour.")
    picture(page, "-compared")
    page.get_by_role("link", name="One column").click()
    expect(page.locator("tr.added")).to_have_count(1)

    page.get_by_role("link", name="Versions", exact=True).click()
    page.get_by_role("link", name="1", exact=True).click()
    page.get_by_role("button", name="Roll back to this").click()
    page.get_by_role("button", name="Roll back", exact=True).click()
    expect(page.get_by_text("The text of version 1 is back.")).to_be_visible()
    expect(page.get_by_text("the text of version 1", exact=True)).to_be_visible()
    picture(page, "-rolled-back")
    page.get_by_role("link", name="Instructions", exact=True).click()
    assert page.locator("#id_text").input_value() == original
    page.get_by_role("link", name="Audit log").click()
    for action in ("Began a draft of a prompt", "Published a prompt", "Rolled a prompt back"):
        expect(page.get_by_role("row").filter(has_text=action).first).to_be_visible()


def test_a_trial_that_is_cut_says_where_and_offers_only_what_can_be_done(
    chat: Chat, picture: Callable[..., None]
) -> None:
    page, slug = chat.page, chat.team["slug"]

    def shorter(socket: WebSocketRoute) -> None:
        server = socket.connect_to_server()
        socket.on_message(lambda frame: server.send(frame.replace('"max_tokens":512', '"max_tokens":3')))  # type: ignore[arg-type,type-var]

    page.route_web_socket("**/ws/ui**", shorter)
    chat.log_in(f"/t/{slug}/admin/prompts", chat.team["admin"])
    page.get_by_role("link", name="Assistant", exact=True).click()
    measured(page)
    page.get_by_label("Message to the draft").fill("Tell me a long story about the sea.")
    page.get_by_label("Message to the draft").press("Enter")
    assert answered(page) == "incomplete"
    answer = page.locator("#talk .message.assistant")
    expect(answer.locator(".notice")).to_have_text("The answer was cut at 3 tokens, its limit.")
    answer.hover()
    assert [one.get_attribute("data-action") for one in answer.locator("button:visible").all()] == ["copy"]
    picture(page)


def test_two_editors_at_once_and_a_new_assistant_in_the_chat(
    chat: Chat, picture: Callable[..., None], complaints: list[str]
) -> None:
    page, slug = chat.page, chat.team["slug"]
    chat.log_in(f"/t/{slug}/admin/prompts", chat.team["admin"])
    page.get_by_role("button", name="New assistant").click()
    page.get_by_label("Name").fill("Harbour desk")
    page.get_by_label("Description").fill("Berths and tides")
    page.get_by_role("button", name="Make it").click()
    page.wait_for_url("**/admin/prompts/*-*")
    measured(page)
    settings = f"{page.url}/settings"
    other = page.context.new_page()
    other.goto(page.url)
    measured(other)
    page.locator("#id_text").fill("You are the harbour desk. Answer in one short sentence.")
    expect(page.locator("#saved")).to_have_text("saved just now")
    other.locator("#id_text").fill("Mine instead.")
    expect(other.locator("#conflict")).to_contain_text("has changed this draft meanwhile")
    assert other.locator("#id_text").input_value() == "Mine instead."
    picture(other, "-conflict")
    # The refusal is on the console as well; it is what this is about.
    assert len(complaints) == 1
    assert "409" in complaints.pop()
    other.get_by_role("link", name="Take theirs").click()
    expect(other.locator("#id_text")).to_have_value("You are the harbour desk. Answer in one short sentence.")
    other.close()

    page.get_by_label("Why this change?").fill("The first one")
    page.get_by_label("Why this change?").press("Enter")
    expect(page.get_by_text("Version 1 is published.")).to_be_visible()
    page.goto(f"/t/{slug}/")
    page.get_by_text("Harbour desk").first.click()
    picture(page, "-picker")
    chat.ask("Is there a berth?")
    chat.wait_for_end()
    expect(page.locator("#assistant")).to_have_text("Harbour desk")
    page.reload()
    expect(page.locator("#assistant")).to_have_text("Harbour desk")

    page.goto(settings)
    page.get_by_role("button", name="Archive Harbour desk").click()
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_role("button", name="Archive")).to_be_disabled()
    dialog.get_by_role("textbox").fill("Harbour desk")
    dialog.get_by_role("button", name="Archive").click()
    expect(page.get_by_text("Harbour desk is archived.")).to_be_visible()
    page.go_back()
    page.goto(f"/t/{slug}/")
    expect(page.locator("#assistants")).to_have_count(0)
