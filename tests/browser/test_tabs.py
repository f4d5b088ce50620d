"""Two tabs on one conversation are in step, whoever asks."""

from __future__ import annotations

import pytest
from playwright.sync_api import BrowserContext

from tests.browser.conftest import Chat
from tests.stack import Stack

pytestmark = [pytest.mark.browser, pytest.mark.long]


def test_a_turn_asked_in_one_tab_runs_and_ends_in_the_other(context: BrowserContext, product: Stack) -> None:
    first = Chat(context.new_page(), product).log_in()
    first.ask("Name a colour.").wait_for_end()
    second = Chat(context.new_page(), product)
    second.page.goto(first.page.url)
    assert second.wait_for_end() == first.raw()
    first.ask("Tell me a long story about the sea.")
    first.wait_for_text()
    second.page.wait_for_function("() => document.querySelectorAll('.message').length === 4")
    second.page.get_by_role("button", name="Stop").wait_for()
    assert second.wait_for_end() == first.wait_for_end()


def test_an_operator_lands_on_the_administration_and_a_member_is_kept_out(
    context: BrowserContext, product: Stack, complaints: list[str]
) -> None:
    member = Chat(context.new_page(), product).log_in()
    member.field.wait_for()
    response = member.page.goto("/admin/")
    assert response is not None
    assert response.status == 403
    assert "Log in" not in member.page.inner_text("main")
    complaints.clear()  # Chromium reports every page with an error status
    context.clear_cookies()
    Chat(member.page, product).log_in(account=product.demo["operator"])
    member.page.wait_for_url("**/admin/**")
