"""Passkeys in a real browser, with an authenticator that Chromium plays (CDP WebAuthn): added, used, taken away.

The content policy is the product's own, and a complaint on the console fails the test (see conftest).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import BrowserContext, Page

from tests.stack import Stack

pytestmark = [pytest.mark.browser, pytest.mark.long]

TEAM = 2


class Visitor:
    def __init__(self, page: Page, product: Stack) -> None:
        self.page = page
        # Browsers bind passkeys to a name; an address of a machine has none.
        self.home = f"http://localhost:{product.port}"
        self.team = product.demo["tenants"][TEAM]
        self.person = self.team["member"]
        self.devtools = page.context.new_cdp_session(page)
        self.devtools.send("WebAuthn.enable")
        options = {
            "protocol": "ctap2", "transport": "internal", "hasResidentKey": True, "hasUserVerification": True,
            "isUserVerified": True, "automaticPresenceSimulation": True,
        }  # fmt: skip
        added: dict[str, Any] = self.devtools.send("WebAuthn.addVirtualAuthenticator", {"options": options})
        self.authenticator = added["authenticatorId"]

    def credentials(self) -> list[dict[str, Any]]:
        told = self.devtools.send("WebAuthn.getCredentials", {"authenticatorId": self.authenticator})
        return list(told["credentials"])

    def go(self, path: str) -> None:
        self.page.goto(self.home + path)

    def press(self, name: str, **options: Any) -> None:
        self.page.get_by_role("button", name=name, **options).click()

    def type_password(self) -> None:
        self.page.get_by_label("Email").fill(self.person["email"])
        self.page.get_by_label("Password").fill(self.person["password"])
        self.press("Log in", exact=True)

    def arrive(self) -> None:
        self.page.wait_for_url(f"**/t/{self.team['slug']}/")

    def log_out(self) -> None:
        self.go("/accounts/logout/")
        self.press("Log out")
        self.page.wait_for_url("**/accounts/login/")


def test_a_passkey_is_added_logs_in_alone_or_after_the_password_and_is_removed(
    context: BrowserContext, product: Stack, picture: Callable[..., None]
) -> None:
    """P14."""
    page = context.new_page()
    visitor = Visitor(page, product)
    visitor.go("/accounts/login/")
    visitor.type_password()
    visitor.arrive()

    visitor.go("/accounts/")
    page.get_by_role("listitem").filter(has_text="Passkeys").get_by_role("link", name="Add").click()
    page.get_by_label("Password").fill(visitor.person["password"])
    visitor.press("Confirm")
    page.get_by_label("Name").fill("My laptop")
    visitor.press("Add passkey")
    page.wait_for_url("**/recovery-codes/")
    assert len(page.locator(".codes code").all()) == 10
    (credential,) = visitor.credentials()
    assert credential["isResidentCredential"]
    assert credential["rpId"] == "localhost"
    page.get_by_role("link", name="I have kept them").click()
    picture(page)

    visitor.log_out()
    visitor.press("Use a passkey")
    visitor.arrive()

    visitor.log_out()
    visitor.type_password()
    page.wait_for_url("**/accounts/2fa/authenticate/")
    visitor.press("Use a passkey")
    visitor.arrive()

    visitor.go("/accounts/2fa/webauthn/")
    assert "My laptop" in page.content()
    assert re.search(r"last used \d", page.content())
    page.get_by_role("link", name="Remove").click()
    if "reauthenticate" in page.url:
        page.get_by_role("link", name="Use a passkey").click()
        visitor.press("Use a passkey")
    page.get_by_role("heading", name="Remove this passkey?").wait_for()
    visitor.press("Remove")
    page.get_by_text("You have none.").wait_for()

    visitor.log_out()
    visitor.press("Use a passkey")
    page.get_by_text("Unknown").or_(page.get_by_text("code is not right")).or_(page.locator(".notice.bad")).wait_for()
    visitor.type_password()
    visitor.arrive()


def test_who_has_no_passkey_here_is_told_so(context: BrowserContext, product: Stack) -> None:
    page = context.new_page()
    visitor = Visitor(page, product)
    visitor.go("/accounts/login/")
    visitor.press("Use a passkey")
    page.get_by_text("No passkey was used").wait_for()
    visitor.type_password()
    visitor.arrive()
