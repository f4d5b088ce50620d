"""A key's life as an admin sees it: created, copied, used, rotated, revoked, and all of it in the audit log."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Any

import httpx
import openai
import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import Chat
from tests.stack import Stack

pytestmark = [pytest.mark.browser, pytest.mark.long]

LOOKS = [
    {"viewport": {"width": 1280, "height": 800}, "color_scheme": "light"},
    {"viewport": {"width": 1280, "height": 800}, "color_scheme": "dark"},
    {"viewport": {"width": 390, "height": 844}, "color_scheme": "light"},
]


def works(product: Stack, secret: str) -> int:
    return httpx.get(f"{product.url}/v1/models", headers={"Authorization": f"Bearer {secret}"}).status_code


def shown(page: Page) -> str:
    return page.locator("#secret").inner_text()


@pytest.mark.parametrize("context", [{"permissions": ["clipboard-read", "clipboard-write"]}], indirect=True)
def test_an_admin_creates_copies_uses_rotates_and_revokes_a_key(
    chat: Chat, product: Stack, picture: Callable[..., None], complaints: list[str]
) -> None:
    base = f"/t/{chat.team['slug']}/admin/keys"
    name = f"Journey {time.time_ns()}"
    page = chat.log_in(base, chat.team["admin"]).page
    page.get_by_role("link", name="Create a key").click()
    page.get_by_role("button", name="Create the key").click()
    expect(page.get_by_text("This field is required.")).to_be_visible()
    page.get_by_label("Name", exact=True).fill(name)
    page.get_by_label("Only from these networks").fill("not a network")
    page.get_by_role("button", name="Create the key").click()
    expect(page.get_by_text("is no network")).to_be_visible()
    assert page.get_by_label("Name", exact=True).input_value() == name
    page.get_by_label("Only from these networks").fill("127.0.0.0/8")
    page.get_by_role("button", name="Create the key").click()

    # The two forms with mistakes in them were answered by 400, which a browser's console tells too.
    assert all("status of 400" in complaint for complaint in complaints)
    complaints.clear()

    first = shown(page)
    page.get_by_role("button", name="Copy", exact=True).first.click()
    expect(page.get_by_role("button", name="Copied")).to_be_visible()
    assert page.evaluate("navigator.clipboard.readText()") == first
    picture(page, "-once")
    client: Any = openai.OpenAI(base_url=f"{product.url}/v1", api_key=first, max_retries=0)
    answer = client.chat.completions.create(
        model="default", messages=[{"role": "user", "content": "Say hello."}], max_tokens=4
    )
    assert answer.usage.completion_tokens > 0
    page.get_by_role("link", name="I have copied it").click()
    row = page.get_by_role("row", name=re.compile(name))
    expect(row).to_contain_text("127.0.0.1")
    assert first not in page.content()

    row.get_by_role("link", name=name).click()
    page.get_by_label("The old key works for").select_option(label="1 hour")
    page.get_by_role("button", name="Rotate the key").click()
    second = shown(page)
    assert second != first
    assert (works(product, first), works(product, second)) == (200, 200)
    page.goto(base)
    expect(page.get_by_role("row", name=re.compile(name))).to_have_count(2)
    expect(page.get_by_text("Replaced", exact=True).first).to_be_visible()

    page.get_by_role("row", name=re.compile(f"{re.escape(second[:9])}.*Active")).get_by_role("link").click()
    revoke = page.get_by_role("button", name="Revoke the key")
    expect(revoke).to_be_disabled()
    page.get_by_label(f"Type {name} to confirm").fill(name)
    revoke.click()
    expect(page.get_by_text(f"{name} is revoked")).to_be_visible()
    assert (works(product, first), works(product, second)) == (200, 401)

    page.goto(f"/t/{chat.team['slug']}/admin/audit?q={name.replace(' ', '+')}")
    rows = page.locator("tbody tr")
    expect(rows).to_have_count(3)
    for number, words in enumerate(("Revoked an API key", "Rotated an API key", "Created an API key")):
        expect(rows.nth(number)).to_contain_text(words)
        expect(rows.nth(number)).to_contain_text(chat.team["admin"]["email"])
    picture(page, "-audit")
    with page.expect_download() as download:
        page.get_by_role("link", name="CSV").click()
    assert re.fullmatch(rf"{chat.team['slug']}-audit-[\d-]+\.csv", download.value.suggested_filename)
    assert name in download.value.path().read_text()


@pytest.mark.parametrize("context", LOOKS, indirect=True, ids=["light", "dark", "phone"])
def test_the_pages_fit_their_window_in_every_colour(
    chat: Chat, product: Stack, picture: Callable[..., None], request: pytest.FixtureRequest
) -> None:
    look = request.node.callspec.id
    slug = chat.team["slug"]
    page = chat.log_in(f"/t/{slug}/admin/keys", chat.team["admin"]).page
    listed = page.get_by_role("link", name="Demo", exact=True)
    detail = str(listed.get_attribute("href"))
    for name, path in (
        ("keys", f"/t/{slug}/admin/keys"),
        ("new", f"/t/{slug}/admin/keys/new"),
        ("key", detail),
        ("audit", f"/t/{slug}/admin/audit?actor_kind=user"),
        ("none", f"/t/{slug}/admin/audit?q=nobody"),
    ):
        page.goto(path)
        page.wait_for_timeout(200)
        wide = page.evaluate("document.querySelector('.wide').scrollWidth <= document.documentElement.clientWidth")
        assert wide, f"{name} is wider than a {look} window"
        picture(page, f"-{look}-{name}")


def test_an_operator_breaks_the_glass_and_the_team_sees_it(
    chat: Chat, product: Stack, picture: Callable[..., None]
) -> None:
    slug = chat.team["slug"]
    chat.log_in().ask("A question about xylotomous things.")
    chat.wait_for_end()
    conversation = chat.page.url.rpartition("/")[2]
    assert chat.page.context.browser is not None
    operators = chat.page.context.browser.new_context(base_url=product.url)
    page = operators.new_page()
    Chat(page, product).log_in(f"/admin/break-glass/?team={slug}", product.demo["operator"])
    expect(page.get_by_label("Team")).to_have_value(slug)
    picture(page, "-ask")
    page.get_by_label("Reason").fill("Ticket 4711: a member asks why an answer was cut.")
    page.get_by_role("button", name="Open the chats for reading").click()
    expect(page.get_by_text(f"You read chats of {chat.team['name']}")).to_be_visible()
    picture(page, "-list")
    page.locator(f"a[href$='{conversation}']").click()
    expect(page.get_by_text("A question about xylotomous things.").first).to_be_visible()
    picture(page, "-chat")

    admins = chat.page.context.browser.new_context(base_url=product.url)
    log = admins.new_page()
    Chat(log, product).log_in(f"/t/{slug}/admin/audit", chat.team["admin"])
    expect(log.get_by_text("can read chats of this team")).to_be_visible()
    expect(log.locator("tbody tr").first).to_contain_text("Read a conversation")
    picture(log, "-banner")
    page.get_by_role("button", name="Stop reading").click()
    expect(page.get_by_text("Closed. The team sees when you did.")).to_be_visible()
    log.reload()
    expect(log.get_by_text("can read chats of this team")).to_have_count(0)
    expect(log.locator("tbody tr").first).to_contain_text("Stopped reading chats")
    operators.close()
    admins.close()
