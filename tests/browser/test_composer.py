"""Where one writes: what does not fit or cannot be sent, and why; beside another tab, and on a phone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect

from tests.browser.served import ORIGIN, Served, beside_playwright
from tests.chat.conftest import Team, server, strangers, team
from tests.data.conftest import Sent, a_chat, data_folder, sent
from tests.tenants.people import log_in

__all__ = ["Sent", "beside_playwright", "data_folder", "sent", "server", "strangers", "team"]

pytestmark = [pytest.mark.browser, pytest.mark.long, pytest.mark.django_db]

PASTE = """(text) => {
  const data = new DataTransfer();
  data.setData("text/plain", text);
  const input = document.querySelector("#input");
  return input.dispatchEvent(new ClipboardEvent("paste", { clipboardData: data, bubbles: true, cancelable: true }));
}"""


@pytest.fixture
def shown(browser: Browser, team: Team, request: pytest.FixtureRequest) -> Iterator[BrowserContext]:
    """The member's browser, with the chat of this process."""
    options: dict[str, Any] = {"viewport": {"width": 1280, "height": 800}, **getattr(request, "param", {})}
    context = browser.new_context(base_url=ORIGIN, **options)
    context.set_default_timeout(20_000)
    Served(context).client = log_in(team.member)
    yield context
    context.close()


def opened(context: BrowserContext, path: str) -> Page:
    page = context.new_page()
    page.goto(path)
    page.locator("#composer[data-ready]").wait_for()
    return page


def test_pasted_megabytes_are_refused_in_words_and_go_along_as_a_file(shown: BrowserContext, team: Team) -> None:
    page = opened(shown, f"/t/{team.tenant.slug}/")
    field, saying = page.locator("#input"), page.locator(".saying")
    field.fill("Read this: ")
    assert page.evaluate(PASTE, "a short text") is True, "what fits is the browser's to paste"
    assert page.evaluate(PASTE, "word " * 500_000) is False
    expect(saying).to_contain_text("What you pasted has 2.4 MB, and a message may have 63 KB.")
    expect(field).to_have_value("Read this: ")
    # Six times as long in JSON: what counts is what is sent.
    field.press("End")
    assert page.evaluate(PASTE, "\x01" * 20_000) is False
    page.get_by_role("button", name="Attach it as a file instead").click()
    expect(saying).to_be_hidden()
    expect(page.locator("#files .file")).to_contain_text("Pasted text.txt")
    expect(field).to_have_value("Read this: ")
    # One that was not pasted: it stays until it is taken along.
    field.fill("wörter " * 20_000)
    expect(page.locator(".limit")).to_contain_text("too long to send")
    field.press("Enter")
    expect(saying).to_contain_text("a message may have 63 KB")
    assert len(field.input_value()) == 140_000
    page.get_by_role("button", name="Attach it as a file instead").click()
    expect(field).to_have_value("")
    expect(page.locator("#files .file")).to_have_count(2)


def test_enter_says_in_place_why_nothing_is_sent(shown: BrowserContext, team: Team) -> None:
    page = opened(shown, f"/t/{team.tenant.slug}/")
    field, saying = page.locator("#input"), page.locator(".saying")
    field.press("Enter")
    expect(saying).to_be_hidden()
    page.locator("#picker").set_input_files([{"name": "empty.txt", "mimeType": "", "buffer": b""}])
    expect(page.locator("#files .file[data-state=failed]")).to_have_count(1)
    field.fill("What does it say?")
    field.press("Enter")
    expect(saying).to_have_text("Take off the file that cannot be read.")
    expect(page.locator(".message")).to_have_count(0)
    expect(field).to_have_value("What does it say?")
    page.get_by_role("button", name="Take off empty.txt").click()
    expect(saying).to_be_hidden()
    expect(page.locator("#composer .send:not(.stop)")).to_be_enabled()


def test_drafts_and_files_follow_another_tab_but_not_over_what_is_being_written(
    shown: BrowserContext, team: Team
) -> None:
    talk = a_chat(team.member, "Hello", "Hello to you.")
    path = f"/t/{team.tenant.slug}/c/{talk.pk}"
    first, second = opened(shown, path), opened(shown, path)
    one, other = first.locator("#input"), second.locator("#input")
    one.fill("A draft")
    expect(other).to_have_value("A draft")
    other.fill("A draft, and more")
    expect(one).to_have_value("A draft, and more")
    # What an input method is writing stays, and is the last writer's then.
    one.evaluate("input => input.dispatchEvent(new CompositionEvent('compositionstart'))")
    other.fill("The second one's")
    second.evaluate("new Promise((done) => setTimeout(done, 100))")
    expect(one).to_have_value("A draft, and more")
    one.evaluate("input => input.dispatchEvent(new CompositionEvent('compositionend'))")
    one.press("End")
    one.press_sequentially("!")
    expect(other).to_have_value("A draft, and more!")
    # A page that has slept looks at what there is when somebody comes back to it.
    first.evaluate("document.querySelector('#input').value = 'old'; dispatchEvent(new Event('focus'))")
    expect(one).to_have_value("A draft, and more!")
    first.locator("#picker").set_input_files([{"name": "plan.txt", "mimeType": "", "buffer": b"The plan."}])
    for page in (first, second):
        expect(page.locator("#files .file")).to_contain_text("plan.txt")
    second.get_by_role("button", name="Take off plan.txt").click()
    expect(first.locator("#files .file")).to_have_count(0)
    expect(first.locator("#files")).to_be_hidden()


@pytest.mark.parametrize(
    "shown",
    [{"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True}],
    indirect=True,
)
def test_on_a_phone_the_sidebar_is_a_sheet_by_touch_and_enter_breaks_the_line(
    shown: BrowserContext, team: Team
) -> None:
    talk = a_chat(team.member, "Hello", "Hello to you.")
    page = opened(shown, f"/t/{team.tenant.slug}/c/{talk.pk}")
    sidebar = page.locator("#sidebar")
    field = page.locator("#input")
    field.tap()
    field.press_sequentially("one")
    field.press("Enter")
    field.press_sequentially("two")
    expect(field).to_have_value("one\ntwo")
    assert float(field.evaluate("e => parseFloat(getComputedStyle(e).fontSize)")) >= 16, "or a phone zooms into it"
    swipe = """([from, to, y]) => {
      const touch = (x) => new Touch({ identifier: 1, target: document.querySelector("#log"), clientX: x, clientY: y });
      const tell = (kind, x, touches) => document.querySelector("#log").dispatchEvent(
        new TouchEvent(kind, { bubbles: true, touches, changedTouches: [touch(x)] }));
      tell("touchstart", from, [touch(from)]);
      tell("touchend", to, []);
    }"""
    page.evaluate(swipe, [40, 220, 300])
    expect(sidebar).to_be_in_viewport(ratio=1)
    assert page.evaluate("document.querySelector('main').inert")
    assert page.evaluate("document.querySelector('#sidebar').contains(document.activeElement)")
    page.evaluate(swipe, [220, 40, 300])
    expect(sidebar).not_to_be_in_viewport()
    assert not page.evaluate("document.querySelector('main').inert")
    small = page.evaluate(
        """() => [...document.querySelectorAll("main button, main a.icon-button, main summary")].filter((one) => {
          const { width, height } = one.getBoundingClientRect();
          return width && (height < 44 || width < 44);
        }).map((one) => one.outerHTML.slice(0, 90))"""
    )
    assert small == [], "what a finger touches has 44 px"
    # Wide enough for 400 % of zoom.
    page.set_viewport_size({"width": 320, "height": 640})
    assert page.evaluate("document.documentElement.scrollWidth") <= 320
    page.get_by_role("button", name="Sidebar").tap()
    page.locator("[popovertarget=account-menu]").tap()
    page.get_by_role("button", name="Find anything").tap()
    expect(page.get_by_role("option").first).to_be_in_viewport()
    assert page.evaluate("document.documentElement.scrollWidth") <= 320
