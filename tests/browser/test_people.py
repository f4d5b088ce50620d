"""The way of a person through a team: invited, in, asking, promoted, suspended."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect

from tests.browser.conftest import DEADLINE_MS, Chat
from tests.stack import Stack

pytestmark = [pytest.mark.browser, pytest.mark.long]

TEAM = 2
PASSWORD = "a long enough password"


@pytest.fixture
def owned(product: Stack) -> Iterator[dict[str, Any]]:
    """A demo team whose admin is its owner for the time of the test."""
    team = product.demo["tenants"][TEAM]
    where = "WHERE user_id = (SELECT id FROM accounts_user WHERE email = ?)"

    def role(name: str) -> str:
        """Give it, and return the former one."""
        with contextlib.closing(sqlite3.connect(product.data / "db.sqlite3", timeout=20)) as database, database:
            email = team["admin"]["email"]
            (former,) = database.execute(f"SELECT role FROM tenants_membership {where}", (email,)).fetchone()
            database.execute(f"UPDATE tenants_membership SET role = ? {where}", (name, email))
        return str(former)

    former = role("owner")
    yield team
    role(former)


@pytest.fixture
def second(browser: Browser, product: Stack, complaints: list[str]) -> Iterator[BrowserContext]:
    """The invited person's own browser, a phone."""
    context = browser.new_context(base_url=product.url, viewport={"width": 390, "height": 844})
    context.set_default_timeout(DEADLINE_MS)
    # A page that is gone is this test's subject; everything else that the console says still fails it.
    context.on(
        "page",
        lambda page: page.on(
            "console",
            lambda line: complaints.append(line.text) if line.type == "error" and "404" not in line.text else None,
        ),
    )
    yield context
    context.close()


@pytest.mark.parametrize("context", [{"viewport": {"width": 390, "height": 844}}], indirect=True)
def test_the_pages_about_people_fit_a_phone(chat: Chat, owned: dict[str, Any], picture: Any) -> None:
    """Wide tables scroll in their frame, and the page does not: also what only screen readers read stays in there."""
    base = f"/t/{owned['slug']}"
    page = chat.log_in(f"{base}/admin/members", account=owned["admin"]).page
    page.wait_for_url(f"**{base}/admin/members")
    for name in ("members", "invitations/new", "invitations", "prompts", "audit", "sign-in", "settings"):
        page.goto(f"{base}/admin/{name}")
        assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0, f"{name} is wider than a phone"
        picture(page, f"-{name.replace('/', '-')}")


def test_an_owner_invites_somebody_who_joins_asks_is_promoted_and_suspended(
    chat: Chat, second: BrowserContext, owned: dict[str, Any], picture: Any
) -> None:
    """P12: the invited one's open page hears of the new role and of the suspension by itself."""
    base = f"/t/{owned['slug']}"
    page: Page = chat.log_in(f"{base}/admin/members", account=owned["admin"]).page
    page.wait_for_url(f"**{base}/admin/members")
    picture(page, "-members")
    page.get_by_role("link", name="Invite people").click()
    page.get_by_label("Email addresses").fill("Nora+Work@Example.ORG\nnonsense")
    picture(page, "-invite")
    page.get_by_role("button", name="Invite", exact=True).click()
    page.wait_for_url(f"**{base}/admin/invitations")
    expect(page.get_by_text("Is no email address.")).to_be_visible()
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.get_by_role("button", name="Copy link").click()
    expect(page.get_by_role("button", name="Copied")).to_be_visible()
    link = page.evaluate("navigator.clipboard.readText()")
    assert "/invitations/" in link
    picture(page, "-invitations")

    theirs = second.new_page()
    theirs.goto(link)
    expect(theirs.get_by_role("heading", name=f"Join {owned['name']}")).to_be_visible()
    expect(theirs.get_by_label("Email")).to_have_value("nora+work@example.org")
    picture(theirs, "-join-phone")
    theirs.get_by_label("Your name").fill("Nora")
    theirs.get_by_label("Password", exact=True).fill(PASSWORD)
    theirs.get_by_label("Password again").fill(PASSWORD)
    theirs.get_by_role("button", name="Make account and join").click()
    theirs.wait_for_url(f"**{base}/")
    asking = Chat(theirs, chat.product, TEAM).ask("Say hello.")
    assert asking.wait_for_end()

    page.goto(f"{base}/admin/members?q=nora")
    page.get_by_role("link", name="Manage").click()
    picture(page, "-member")
    page.get_by_label("Nora is").select_option("editor")
    page.get_by_role("button", name="Change role").click()
    expect(page.get_by_text("nora+work@example.org is prompt editor now.")).to_be_visible()
    banner = theirs.locator("#banner")
    expect(banner).to_contain_text("Your access to this team has ended or changed.", timeout=5000)
    banner.get_by_role("link", name="Load again").click()
    expect(banner).to_be_hidden()
    asking.ready()

    page.get_by_role("button", name="Suspend").click()
    expect(page.get_by_text("is suspended")).to_be_visible()
    expect(banner).to_contain_text("has ended or changed", timeout=5000)
    picture(theirs, "-suspended-phone")
    banner.get_by_role("link", name="Load again").click()
    expect(theirs.get_by_role("heading", name="Nothing is here")).to_be_visible()
    theirs.get_by_role("link", name="To your chats").click()
    expect(theirs.get_by_role("heading", name="Your access is suspended")).to_be_visible()
    expect(theirs.get_by_text(f"{owned['name']} is closed to you for now")).to_be_visible()
    picture(theirs, "-home-phone")

    page.goto(f"{base}/admin/audit")
    for action in ("Invited somebody", "Joined the team", "Changed a member's role", "Suspended a member"):
        expect(page.get_by_role("cell", name=action).first).to_be_visible()
    page.goto(f"{base}/admin/members?q=nora")
    page.get_by_role("link", name="Manage").click()
    page.get_by_text("Remove from the team").click()
    page.get_by_role("button", name="Remove Nora").click()
    expect(page.get_by_text("belongs to the team no more")).to_be_visible()
