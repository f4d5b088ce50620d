"""The way of an owner: invites somebody who joins and chats, publishes a prompt, makes and revokes a key, and reads of
it all in the audit log."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator

import httpx
import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect

from tests.browser.conftest import DEADLINE_MS, Chat
from tests.browser.test_prompts import measured
from tests.stack import Stack

pytestmark = [pytest.mark.browser, pytest.mark.long]

TEAM = 1
PASSWORD = "four ferries cross at dawn"


@pytest.fixture
def second(browser: Browser, product: Stack, complaints: list[str]) -> Iterator[BrowserContext]:
    """The invited person's own browser."""
    context = browser.new_context(base_url=product.url, viewport={"width": 1280, "height": 800})
    context.set_default_timeout(DEADLINE_MS)
    context.on(
        "page",
        lambda page: page.on("console", lambda line: complaints.append(line.text) if line.type == "error" else None),
    )
    yield context
    context.close()


def prompt_tokens(chat: Chat) -> int:
    """How many tokens the engine read for the newest answer."""
    return int(chat.usage()["prompt_tokens"])


def asks(product: Stack, secret: str) -> httpx.Response:
    question = {"model": "default", "max_tokens": 4, "messages": [{"role": "user", "content": "Say hello."}]}
    headers = {"Authorization": f"Bearer {secret}"}
    return httpx.post(f"{product.url}/v1/chat/completions", headers=headers, json=question, timeout=60)


def test_an_owner_invites_publishes_revokes_and_sees_it_all_in_the_audit_log(
    chat: Chat, second: BrowserContext, product: Stack, picture: Callable[..., None], complaints: list[str]
) -> None:
    """The whole way through a team's administration, with the member's own browser beside it."""
    team = product.demo["tenants"][TEAM]
    base, owner = f"/t/{team['slug']}", team["admin"]["email"]
    email, name = f"nina.{time.time_ns()}@ferry.example", f"Ferry bot {time.time_ns()}"
    page: Page = Chat(chat.page, product, TEAM).log_in(f"{base}/admin/", team["admin"]).page
    page.wait_for_url(f"**{base}/admin/")
    picture(page, "-overview")

    page.get_by_role("complementary", name="Administration").get_by_role("link", name="Members").click()
    page.get_by_role("link", name="Invite people").click()
    page.get_by_label("Email addresses").fill(email)
    page.get_by_role("button", name="Invite", exact=True).click()
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.get_by_role("row", name=email).get_by_role("button", name="Copy link").click()
    page.get_by_role("button", name="Copied").click()
    link = page.evaluate("navigator.clipboard.readText()")
    picture(page, "-invited")
    # Also after a second click the button says again what it does.
    expect(page.get_by_role("button", name="Copy link")).to_be_visible()

    theirs = Chat(second.new_page(), product, TEAM)
    theirs.page.goto(link)
    expect(theirs.page.get_by_label("Email")).to_have_value(email)
    theirs.page.get_by_label("Your name").fill("Nina")
    theirs.page.get_by_label("Password", exact=True).fill(PASSWORD)
    theirs.page.get_by_label("Password again").fill(PASSWORD)
    picture(theirs.page, "-joining")
    theirs.page.get_by_role("button", name="Make account and join").click()
    theirs.page.wait_for_url(f"**{base}/")
    theirs.ask("Say hello.").wait_for_end()
    assert theirs.status() in ("completed", "incomplete")  # the model may go on to its limit
    before = prompt_tokens(theirs)
    picture(theirs.page, "-chatting")

    page.get_by_role("link", name="Prompts").click()
    page.locator("a.name").first.click()
    measured(page)
    field = page.locator("#id_text")
    former = field.input_value()
    added = "\nWhen somebody asks about ferries, name the harbour, the hour and the fare, and wish them a calm sea."
    field.fill(former + added)
    expect(page.locator("#saved")).to_have_text("saved just now")
    measured(page)
    page.get_by_label("Why this change?").fill("Ferries are asked about")
    publish = page.get_by_role("button", name="Publish version")
    number = int(publish.inner_text().rpartition(" ")[2])
    publish.click()
    expect(page.get_by_text(f"Version {number} is published.")).to_be_visible()
    page.wait_for_function("async () => (await (await fetch(location.href)).text()).includes('in memory on 1 of 1')")
    page.reload()
    picture(page, "-published")

    theirs.page.get_by_role("link", name="New chat").click()
    theirs.ask("Say hello.").wait_for_end()
    assert theirs.status() in ("completed", "incomplete")  # the model may go on to its limit
    assert prompt_tokens(theirs) >= before + len(added.split()), "the new chat is answered under the new prompt"

    page.get_by_role("link", name="API keys").click()
    page.get_by_role("link", name="Create a key").click()
    page.get_by_label("Name", exact=True).fill(name)
    page.get_by_role("button", name="Create the key").click()
    secret = page.locator("#secret").inner_text()
    answer = asks(product, secret)
    assert answer.status_code == 200
    assert answer.json()["usage"]["prompt_tokens"] >= before
    page.get_by_role("link", name="I have copied it").click()
    page.get_by_role("link", name=name).click()
    page.get_by_label(f"Type {name} to confirm").fill(name)
    page.get_by_role("button", name="Revoke the key").click()
    expect(page.get_by_text(f"{name} is revoked")).to_be_visible()
    picture(page, "-revoked")
    refused = asks(product, secret)
    assert refused.status_code == 401
    assert "revoked" in refused.json()["error"]["message"]

    page.get_by_role("link", name="Prompts").click()
    page.locator("a.name").first.click()
    page.get_by_role("link", name="Versions", exact=True).click()
    page.get_by_role("row", name=re.compile(f"^{number - 1} ")).get_by_role("link").first.click()
    page.get_by_role("button", name="Roll back to this").click()
    page.get_by_role("button", name="Roll back", exact=True).click()
    expect(page.get_by_text(f"The text of version {number - 1} is back.")).to_be_visible()

    page.get_by_role("link", name="Audit log").click()
    happened: list[tuple[str, str, str]] = [
        (owner, "Rolled a prompt back", f"Back to version {number - 1}"),
        (owner, "Revoked an API key", name),
        (owner, "Created an API key", name),
        (owner, "Published a prompt", "Ferries are asked about"),
        (owner, "Began a draft of a prompt", ""),
        (email, "Joined the team", email),
        (owner, "Invited somebody", email),
    ]
    rows = page.locator("tbody tr")
    for place, words in enumerate(happened):
        for part in (*words, "127.0.0.1"):
            expect(rows.nth(place)).to_contain_text(part)
    for hidden in (secret, PASSWORD, link.rpartition("/")[2], added.strip()):
        assert hidden not in page.content()
    what = rows.first.get_by_role("cell").nth(2).bounding_box()
    assert what is not None
    assert what["width"] > 200, "what happened is not squeezed by a long address"
    picture(page, "-audit")

    refusal = theirs.page.goto(f"{base}/admin/audit")
    assert refusal is not None
    assert refusal.status == 403, "who did what is not for members"
    # Which Chromium reports as well.
    assert ["403" in complaint for complaint in complaints] == [True]
    complaints.clear()
